//! Random programs, by seed, on many threads and several streams at once, against the same programs on
//! one thread and one stream.
//!
//! Each thread has a program of its own and works on tensors of its own, on tensors that all read, and
//! on sums and leaves to which all add. All numbers are integers that floats hold exactly, so that sums
//! do not depend on the order in which threads come; each number that a thread reads, and every sum at
//! the end, must be that of the one thread. The device fills free and fresh memory with patterns, so
//! that work which comes too early or too late reads nonsense.

use std::sync::{Arc, Barrier};

use tonnage_memory::{DeviceOptions, Stream, with_stream};
use tonnage_tensor::autograd::BackwardOptions;
use tonnage_tensor::checkpoint::checkpoint;
use tonnage_tensor::offload::Offload;
use tonnage_tensor::{Complex64, DType, Device, Result, Tensor};

use crate::computing_with;

/// Seeds, unless the environment says otherwise.
const SEEDS: u64 = 12;

/// Threads of a round, and so many streams beside the default one.
const THREADS: usize = 4;
const STREAMS: usize = 2;

/// Steps of a program.
const STEPS: usize = 60;

/// Tensors of a program that are alive at once, at most.
const OWN: usize = 6;

/// All tensors are of this shape, or views and results of it: 96 KiB, and a multiple of nothing round.
const SHAPE: [usize; 2] = [123, 100];

fn seeds() -> u64 {
    std::env::var("TONNAGE_TENSOR_SEEDS").map_or(SEEDS, |seeds| {
        seeds.parse().expect("TONNAGE_TENSOR_SEEDS is the number of seeds to run")
    })
}

/// Numbers by seed: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A small integer that is not zero.
    fn factor(&mut self) -> f64 {
        [-2.0, -1.0, 1.0, 2.0, 3.0][self.below(5)]
    }
}

/// What the threads of a round share.
struct Shared {
    device: Device,
    /// Read by all.
    inputs: Vec<Tensor>,
    /// Added to by all.
    sums: Vec<Tensor>,
    /// Leaves to which all go back.
    leaves: Vec<Tensor>,
    /// A complex leaf.
    complex: Tensor,
}

fn integers(device: &Device, salt: u64) -> Result<Tensor> {
    let count = SHAPE.iter().product::<usize>() as u64;
    let numbers: Vec<f64> = (0..count).map(|it| ((it * 7 + salt * 13) % 11) as f64 - 5.0).collect();
    Tensor::from_slice(&numbers, SHAPE, device)
}

impl Shared {
    fn new(device: &Device) -> Result<Self> {
        let several = |count: u64, salt: u64| -> Result<Vec<Tensor>> {
            (0..count).map(|it| integers(device, salt + it)).collect()
        };
        let leaves = several(3, 20)?.into_iter().map(|it| it.requires_grad_(true));
        let numbers: Vec<Complex64> = (0..600)
            .map(|it| Complex64::new((it % 7) as f32 - 3.0, (it % 5) as f32 - 2.0))
            .collect();
        Ok(Self {
            device: device.clone(),
            inputs: several(3, 1)?,
            sums: several(2, 10)?,
            leaves: leaves.collect::<Result<_>>()?,
            complex: Tensor::from_slice(&numbers, [600], device)?.requires_grad_(true)?,
        })
    }

    /// What was collected: sums, gradients.
    fn collected(&self) -> Result<Vec<Vec<f64>>> {
        let gradients = self.leaves.iter().map(|it| it.grad().unwrap_or_else(|| it.detach()));
        let mut all = gradients
            .chain(self.sums.iter().cloned())
            .map(|it| it.to_vec())
            .collect::<Result<Vec<Vec<f64>>>>()?;
        if let Some(gradient) = self.complex.grad() {
            let numbers = gradient.to_vec::<Complex64>()?;
            all.push(numbers.iter().flat_map(|it| [f64::from(it.re), f64::from(it.im)]).collect());
        }
        Ok(all)
    }
}

/// One thread's program.
struct Program<'a> {
    random: Random,
    shared: &'a Shared,
    /// None to run everything on the default stream.
    streams: Option<&'a [Stream]>,
    offload: Offload,
    own: Vec<Tensor>,
    /// What was read, in order.
    read: Vec<Vec<f64>>,
}

impl<'a> Program<'a> {
    fn new(seed: u64, shared: &'a Shared, streams: Option<&'a [Stream]>) -> Result<Self> {
        let offload = match streams {
            Some(_) => Offload::new(&shared.device)?,
            None => Offload::in_order(&shared.device),
        };
        let (own, read) = (Vec::new(), Vec::new());
        Ok(Self { random: Random(seed), shared, streams, offload: offload.min_bytes(0), own, read })
    }

    fn run(mut self) -> Result<Vec<Vec<f64>>> {
        for _ in 0..STEPS {
            // The same numbers are drawn whether there are streams or not.
            let stream = self.random.below(STREAMS + 1);
            match self.streams.and_then(|streams| streams.get(stream)) {
                Some(stream) => with_stream(stream, || self.step())?,
                None => self.step()?,
            }
        }
        while let Some(tensor) = self.own.pop() {
            self.read.push(tensor.to_vec()?);
        }
        Ok(self.read)
    }

    /// One of the program's own tensors, or of the shared inputs.
    fn any(&mut self) -> Tensor {
        let (own, inputs) = (self.own.len(), &self.shared.inputs);
        let place = self.random.below(own + inputs.len());
        self.own.get(place).unwrap_or_else(|| &inputs[place - own]).clone()
    }

    /// One of the program's own, which it may change.
    fn own(&mut self) -> Result<Tensor> {
        if self.own.is_empty() {
            let fresh = integers(&self.shared.device, 3)?;
            self.keep(fresh)?;
        }
        let place = self.random.below(self.own.len());
        Ok(self.own[place].clone())
    }

    /// Keeps a result; numbers stay small, so that all results are exact.
    fn keep(&mut self, tensor: Tensor) -> Result<()> {
        if self.own.len() == OWN {
            let place = self.random.below(OWN);
            drop(self.own.swap_remove(place));
        }
        self.own.push(tensor.clamp(-64.0, 64.0)?);
        Ok(())
    }

    /// A view of it as the whole shape again, whatever its strides: itself, turned twice, or rows of it
    /// repeated.
    fn seen(&mut self, tensor: &Tensor) -> Result<Tensor> {
        let [rows, columns] = SHAPE;
        match self.random.below(5) {
            0 => tensor.reshape([rows * columns])?.reshape(SHAPE),
            1 => tensor.t()?.reshape([columns, rows])?.t(),
            2 => tensor.narrow(0, self.random.below(rows), 1)?.expand(SHAPE),
            3 => tensor.narrow(1, self.random.below(columns), 1)?.expand(SHAPE),
            _ => Ok(tensor.clone()),
        }
    }

    fn step(&mut self) -> Result<()> {
        let device = &self.shared.device;
        match self.random.below(14) {
            0 => {
                // Memory that someone has just given back; its first use may be on any stream.
                let fresh = Tensor::empty(SHAPE, (device, DType::F64))?;
                self.elsewhere(|random| fresh.fill_(random.factor()))?;
                self.keep(fresh)
            }
            1 | 2 => {
                let (a, b) = (self.any(), self.any());
                let (a, b) = (self.seen(&a)?, self.seen(&b)?);
                self.keep(a.add(&b)?)
            }
            3 => {
                let (a, b) = (self.any(), self.any());
                let b = self.seen(&b)?;
                self.keep(a.mul(&b.clamp(-1.0, 1.0)?)?)
            }
            4 => {
                // In place, through a view, in order with what reads and writes the rest of it.
                let (target, start) = (self.own()?, self.random.below(SHAPE[0] - 20));
                let (part, other) = (target.narrow(0, start, 20)?, self.any());
                let other = other.narrow(0, self.random.below(SHAPE[0] - 20), 20)?;
                self.elsewhere(|_| part.copy_(&other))
            }
            5 => {
                let (target, factor) = (self.own()?, self.random.factor());
                target.add_(factor)?;
                self.elsewhere(|_| target.narrow(1, 5, 50)?.mul_(-1.0))
            }
            6 if !self.own.is_empty() => {
                let place = self.random.below(self.own.len());
                drop(self.own.swap_remove(place));
                Ok(())
            }
            7 => {
                let tensor = self.any();
                let sum = self.random.below(self.shared.sums.len());
                self.shared.sums[sum].add_(&tensor)
            }
            8 => {
                let tensor = self.any();
                let numbers = self.seen(&tensor)?.to_vec()?;
                self.read.push(numbers);
                Ok(())
            }
            9 => {
                let pinned = self.any().to_pinned()?;
                let back = self.elsewhere(|_| Tensor::from_pinned(&pinned))?;
                drop(pinned);
                self.keep(back)
            }
            10 if self.random.below(8) == 0 => {
                device.memory().empty_cache()?;
                Ok(())
            }
            11 => self.complex_backward(),
            _ => self.backward(),
        }
    }

    /// Does something on another stream, or on the same.
    fn elsewhere<T>(&mut self, work: impl FnOnce(&mut Random) -> Result<T>) -> Result<T> {
        let stream = self.random.below(STREAMS + 1);
        let random = &mut self.random;
        match self.streams.and_then(|streams| streams.get(stream)) {
            Some(stream) => with_stream(stream, || work(random)),
            None => work(random),
        }
    }

    /// Goes back to two of the leaves, through views, products, checkpoints and host memory.
    fn backward(&mut self) -> Result<()> {
        let [a, b] = [0, 1].map(|_| self.random.below(self.shared.leaves.len()));
        let [a, b] = [a, b].map(|it| self.shared.leaves[it].clone());
        let (mask, factor) = (self.any().clamp(-1.0, 1.0)?, self.random.factor());
        let (a, b) = (self.seen(&a)?, self.seen(&b)?);
        let forward = move |_: &[Tensor]| {
            let product = a.mul(&mask)?.add(&b)?;
            product.relu()?.mul(&mask)?.sum()
        };
        let loss = match self.random.below(4) {
            0 => checkpoint(&[], forward)?,
            1 => self.offload.run(|| forward(&[]))?,
            2 => self.offload.run(|| checkpoint(&[], forward))?,
            _ => forward(&[])?,
        };
        let retained = self.random.below(4) == 0;
        self.elsewhere(|_| {
            if retained {
                loss.backward_with(None, BackwardOptions::default().retain_graph(true))?;
            }
            loss.mul(factor)?.backward()
        })
    }

    /// Goes back through conjugates.
    fn complex_backward(&mut self) -> Result<()> {
        let z = self.shared.complex.mul(self.random.factor())?;
        let product = |z: &Tensor| z.mul(&z.conj()?);
        let y = match self.random.below(2) {
            0 => self.offload.run(|| product(&z))?,
            _ => product(&z)?,
        };
        let ones = Tensor::ones([600], (&self.shared.device, DType::Complex64))?;
        self.elsewhere(|_| y.backward_with(Some(&ones), BackwardOptions::default()))
    }
}

/// What each thread read, and what all collected.
type Outcome = (Vec<Vec<Vec<f64>>>, Vec<Vec<f64>>);

fn device() -> Device {
    let options = DeviceOptions { poison: true, ..DeviceOptions::default() };
    computing_with("1 GiB", options)
}

/// The seed of a thread.
fn seed_of(seed: u64, thread: usize) -> u64 {
    seed.wrapping_mul(1_000_003).wrapping_add(thread as u64)
}

/// One after the other, on one stream.
fn alone(seed: u64) -> Result<Outcome> {
    let device = device();
    let shared = Shared::new(&device)?;
    let read = (0..THREADS)
        .map(|thread| Program::new(seed_of(seed, thread), &shared, None)?.run())
        .collect::<Result<_>>()?;
    Ok((read, shared.collected()?))
}

/// All at once, on several streams.
fn together(seed: u64) -> Result<Outcome> {
    let device = device();
    let shared = Shared::new(&device)?;
    let streams: Vec<Stream> = (0..STREAMS).map(|_| device.create_stream().unwrap()).collect();
    let start = Arc::new(Barrier::new(THREADS));
    let read = std::thread::scope(|scope| {
        let begin = |thread| {
            let (start, shared, streams) = (Arc::clone(&start), &shared, &streams[..]);
            scope.spawn(move || {
                start.wait();
                Program::new(seed_of(seed, thread), shared, Some(streams))?.run()
            })
        };
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>>>()
    })?;
    let collected = shared.collected()?;
    drop(shared);
    device.synchronize()?;
    device.memory().empty_cache()?;
    assert_eq!(device.memory().allocated(), 0, "seed {seed}: everything goes back");
    assert_eq!(device.memory().reserved(), 0, "seed {seed}: to the device too");
    Ok((read, collected))
}

#[test]
fn threads_and_streams_compute_what_one_thread_on_one_stream_does() -> Result<()> {
    for seed in 0..seeds() {
        let (read, collected) = alone(seed)?;
        let (read_together, collected_together) = together(seed)?;
        for thread in 0..THREADS {
            let [one, many] = [&read, &read_together].map(|it| &it[thread]);
            assert_eq!(one.len(), many.len(), "seed {seed}, thread {thread}");
            for (place, (one, many)) in one.iter().zip(many).enumerate() {
                assert!(one == many, "seed {seed}, thread {thread}, read {place}");
            }
        }
        for (place, (one, many)) in collected.iter().zip(&collected_together).enumerate() {
            let wrong = one.iter().zip(many).filter(|(one, many)| one != many).count();
            assert!(one == many, "seed {seed}: {wrong} numbers of sum {place}");
        }
        assert_eq!(collected.len(), collected_together.len(), "seed {seed}");
    }
    Ok(())
}
