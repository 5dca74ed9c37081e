//! The loader: batches made by worker threads, copied to the device beside the computation.
//!
//! In:  a dataset.
//! Out: batches on the device, in an order that depends on seed and epoch alone.
//!
//! ```text
//! workers: samples ─ batch in pinned memory ─┐ in order
//! caller:  side stream: copy ─ copy ─ …      │ `prefetch` batches ahead
//!          current stream: the batch         ┘
//! ```
//!
//! Workers touch neither the device's allocator nor its streams: batches are allocated by the thread
//! that iterates, so that the sequence of requests is that of the program.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tonnage_memory::{Stream, with_stream};

use super::dataset::Dataset;
use crate::device::Device;
use crate::error::{Call, ErrorKind, Result};
use crate::random::philox;
use crate::tensor::Tensor;
use crate::transfer::Pinned;

/// Batches that each worker may be ahead: PyTorch's prefetch factor.
const AHEAD_PER_WORKER: usize = 2;

/// Makes batches of a dataset.
pub struct DataLoader {
    dataset: Arc<dyn Dataset>,
    device: Device,
    batch_size: usize,
    seed: Option<u64>,
    drop_last: bool,
    workers: usize,
    prefetch: usize,
    /// Where batches are copied ahead, from the first epoch that does so on. One for all: memory that was
    /// allocated on a stream serves that stream alone, and would be of no use to a later epoch's.
    side: OnceLock<Arc<Stream>>,
}

impl DataLoader {
    /// Single samples in order, made by the thread that iterates.
    #[must_use]
    pub fn new(dataset: impl Dataset + 'static, device: &Device) -> Self {
        Self {
            dataset: Arc::new(dataset),
            device: device.clone(),
            batch_size: 1,
            seed: None,
            drop_last: false,
            workers: 0,
            prefetch: 0,
            side: OnceLock::new(),
        }
    }

    /// Samples in a batch, at least one.
    #[must_use]
    pub fn batch_size(mut self, samples: usize) -> Self {
        self.batch_size = samples.max(1);
        self
    }

    /// In random order, by this seed and the epoch.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Leaves out a last batch that is not full.
    #[must_use]
    pub fn drop_last(mut self, on: bool) -> Self {
        self.drop_last = on;
        self
    }

    /// How many threads make batches; with none, the thread that iterates does.
    #[must_use]
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads;
        self
    }

    /// How many batches are copied to the device before they are asked for, on a stream of their own.
    #[must_use]
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches;
        self
    }

    /// How many batches an epoch has.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.drop_last {
            true => self.dataset.len() / self.batch_size,
            false => self.dataset.len().div_ceil(self.batch_size),
        }
    }

    /// Whether an epoch has no batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One way through the dataset.
    ///
    /// # Errors
    ///
    /// If the device has no further stream.
    #[track_caller]
    pub fn epoch(&self, epoch: u64) -> Result<Epoch> {
        let call = Call::here("epoch");
        let side = match self.prefetch {
            0 => None,
            _ => Some(self.side_stream(call)?),
        };
        let order = match self.seed {
            Some(seed) => shuffled(self.dataset.len(), seed, epoch),
            None => (0..self.dataset.len()).collect(),
        };
        let batches = order.chunks(self.batch_size).take(self.len()).map(<[_]>::to_vec).collect();
        let (dataset, device) = (Arc::clone(&self.dataset), self.device.clone());
        let maker = Maker { call, dataset, device, batches };
        let made = match self.workers {
            0 => Made::Here { maker, next: 0 },
            workers => Made::Workers(Workers::start(maker, workers)),
        };
        Ok(Epoch {
            made,
            side,
            prefetch: self.prefetch,
            uploaded: VecDeque::new(),
            left: self.len(),
        })
    }
}

impl DataLoader {
    fn side_stream(&self, call: Call) -> Result<Arc<Stream>> {
        if let Some(side) = self.side.get() {
            return Ok(Arc::clone(side));
        }
        let side = self.device.create_stream().map_err(|error| call.driver(error))?;
        Ok(Arc::clone(self.side.get_or_init(|| Arc::new(side))))
    }
}

impl std::fmt::Debug for DataLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataLoader")
            .field("samples", &self.dataset.len())
            .field("batch_size", &self.batch_size)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

/// The numbers below `length` in random order: Fisher and Yates, with counter-based numbers.
fn shuffled(length: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..length).collect();
    for place in (1..length).rev() {
        let [a, b, ..] = philox(seed, place as u128 | u128::from(epoch) << 64);
        let bits = u64::from(a) << 32 | u64::from(b);
        let other = ((u128::from(bits) * (place as u128 + 1)) >> 64) as usize;
        order.swap(place, other);
    }
    order
}

/// Makes batches in pinned memory.
struct Maker {
    call: Call,
    dataset: Arc<dyn Dataset>,
    device: Device,
    batches: Vec<Vec<usize>>,
}

type Batch = Result<Vec<Pinned>>;

impl Maker {
    fn make(&self, batch: usize) -> Batch {
        let arrays = self.dataset.batch(&self.batches[batch])?;
        let pin = |array: &super::Array| {
            Pinned::from_bytes(array.bytes(), array.shape(), array.dtype(), &self.device)
        };
        arrays.iter().map(pin).collect()
    }

    /// The same; a panic of the dataset is an error in the batch's place, not the end of a thread for
    /// whose batch the caller would wait for ever.
    fn make_or_tell(&self, batch: usize) -> Batch {
        let made = catch_unwind(AssertUnwindSafe(|| self.make(batch)));
        made.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let what = format!("the dataset panicked: {}", text.unwrap_or("with no text"));
            Err(self.call.error(ErrorKind::Value, what).with("batch", batch))
        })
    }
}

enum Made {
    Here { maker: Maker, next: usize },
    Workers(Workers),
}

impl Made {
    fn next(&mut self) -> Option<Batch> {
        match self {
            Self::Here { maker, next } => {
                *next += 1;
                Some(maker.make(*next - 1))
            }
            Self::Workers(workers) => workers.next(),
        }
    }
}

/// Threads that make batches, a bounded number ahead of the caller.
struct Workers {
    /// None once they are told to stop.
    done: Option<Receiver<(usize, Batch)>>,
    /// A token for each batch that may be begun.
    tokens: Option<SyncSender<()>>,
    threads: Vec<JoinHandle<()>>,
    /// Made before their turn.
    early: BTreeMap<usize, Batch>,
    next: usize,
}

impl Workers {
    fn start(maker: Maker, threads: usize) -> Self {
        let ahead = threads.saturating_mul(AHEAD_PER_WORKER);
        let maker = Arc::new(maker);
        let next = Arc::new(AtomicUsize::new(0));
        // As many as may be begun and not taken: neither channel ever makes its sender wait.
        let (tokens, begin) = sync_channel(ahead);
        let (results, done) = sync_channel(ahead);
        let begin = Arc::new(Mutex::new(begin));
        let work = || {
            let (maker, next) = (Arc::clone(&maker), Arc::clone(&next));
            let (begin, results) = (Arc::clone(&begin), results.clone());
            move || loop {
                let token = begin.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let batch = next.fetch_add(1, Ordering::Relaxed);
                if token.is_err() || batch >= maker.batches.len() {
                    return;
                }
                if results.send((batch, maker.make_or_tell(batch))).is_err() {
                    return;
                }
            }
        };
        let threads = (0..threads).map(|_| std::thread::spawn(work())).collect();
        for _ in 0..ahead {
            let _ = tokens.try_send(());
        }
        let (done, tokens) = (Some(done), Some(tokens));
        Self { done, tokens, threads, early: BTreeMap::new(), next: 0 }
    }

    fn next(&mut self) -> Option<Batch> {
        let batch = loop {
            if let Some(batch) = self.early.remove(&self.next) {
                break batch;
            }
            let (place, batch) = self.done.as_ref()?.recv().ok()?;
            self.early.insert(place, batch);
        };
        self.next += 1;
        if let Some(tokens) = &self.tokens {
            // Workers that have nothing more to do are gone.
            let _ = tokens.try_send(());
        }
        Some(batch)
    }
}

impl Drop for Workers {
    /// Lets the threads end.
    fn drop(&mut self) {
        (self.tokens, self.done) = (None, None);
        for thread in self.threads.drain(..) {
            // Panics were told in their batches' places.
            let _ = thread.join();
        }
    }
}

/// One way through a dataset: an iterator over batches.
pub struct Epoch {
    made: Made,
    /// None without prefetch.
    side: Option<Arc<Stream>>,
    prefetch: usize,
    uploaded: VecDeque<Result<Vec<Tensor>>>,
    /// Batches not asked of the workers yet.
    left: usize,
}

impl Epoch {
    fn upload(&mut self) -> Option<Result<Vec<Tensor>>> {
        self.left = self.left.checked_sub(1)?;
        let batch = self.made.next()?;
        let copy = |pinned: Vec<Pinned>| pinned.iter().map(Tensor::from_pinned).collect();
        Some(batch.and_then(|pinned| match &self.side {
            Some(side) => with_stream(side, || copy(pinned)),
            None => copy(pinned),
        }))
    }
}

impl Iterator for Epoch {
    type Item = Result<Vec<Tensor>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.uploaded.len() <= self.prefetch {
            let Some(batch) = self.upload() else { break };
            self.uploaded.push_back(batch);
        }
        self.uploaded.pop_front()
    }
}

impl std::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch").field("left", &self.left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Array, TensorDataset};

    fn numbers(length: usize) -> TensorDataset {
        let x: Vec<f32> = (0..length * 2).map(|it| it as f32).collect();
        let y: Vec<i64> = (0..length as i64).collect();
        let arrays = [Array::from_slice(&x, [length, 2]), Array::from_slice(&y, [length])];
        TensorDataset::new(arrays.into_iter().collect::<Result<_>>().unwrap()).unwrap()
    }

    fn labels(loader: &DataLoader, epoch: u64) -> Result<Vec<Vec<i64>>> {
        loader.epoch(epoch)?.map(|batch| batch?[1].to_vec()).collect()
    }

    #[test]
    fn batches_are_the_same_however_they_are_made() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let loader = || DataLoader::new(numbers(103), &device).batch_size(10);
        assert_eq!(labels(&loader(), 0)?[10], [100, 101, 102]);
        assert_eq!(labels(&loader().drop_last(true), 0)?.len(), 10);
        let expected = labels(&loader().shuffle(3), 0)?;
        let mut all: Vec<i64> = expected.concat();
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
        assert_ne!(labels(&loader().shuffle(3), 1)?, expected, "another epoch");
        for (workers, prefetch) in [(0, 2), (1, 0), (3, 2), (40, 40)] {
            let loader = loader().shuffle(3).workers(workers).prefetch(prefetch);
            assert_eq!(labels(&loader, 0)?, expected, "{workers} workers, {prefetch} ahead");
        }
        for batch in loader().workers(2).prefetch(1).epoch(0)? {
            let batch = batch?;
            let (x, y) = (batch[0].to_vec::<f32>()?, batch[1].to_vec::<i64>()?);
            assert!(x.chunks(2).zip(y).all(|(x, y)| x[0] as i64 == 2 * y));
        }
        Ok(())
    }

    #[test]
    fn an_epoch_that_is_left_early_ends_its_workers() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let loader = DataLoader::new(numbers(1000), &device).workers(3).prefetch(2);
        for _ in 0..5 {
            assert!(loader.epoch(0)?.next().is_some());
        }
        assert!(DataLoader::new(numbers(0), &device).workers(2).epoch(0)?.next().is_none());
        Ok(())
    }

    /// Has a sample that cannot be had.
    struct Broken;

    impl Dataset for Broken {
        fn len(&self) -> usize {
            10
        }
        fn get(&self, index: usize) -> Result<Vec<Array>> {
            assert!(index != 3, "a bug");
            let wrong = if index == 7 { 2 } else { 1 };
            Ok(vec![Array::from_slice(&[index as i64], [wrong])?])
        }
    }

    #[test]
    fn a_sample_that_cannot_be_had_is_an_error_in_its_place() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let batches: Vec<_> =
            DataLoader::new(Broken, &device).batch_size(2).workers(2).epoch(0)?.collect();
        let kinds: Vec<_> =
            batches.iter().map(|it| it.as_ref().err().map(|it| it.kind())).collect();
        assert_eq!(kinds, [None, Some(&ErrorKind::Value), None, Some(&ErrorKind::Shape), None]);
        Ok(())
    }

    #[test]
    fn an_epoch_takes_the_same_bytes_on_every_device() -> Result<()> {
        let mut peaks = Vec::new();
        for device in [Device::host("64 MiB").unwrap(), Device::dry("64 MiB").unwrap()] {
            let loader = DataLoader::new(numbers(1000), &device).batch_size(100).prefetch(2);
            for batch in loader.epoch(0)? {
                batch?[0].sum()?;
            }
            device.synchronize()?;
            peaks.push((device.memory().max_allocated(), device.memory().allocated()));
        }
        // Three batches of two tensors, and the sum.
        assert_eq!(peaks, [(3 * 2 * 1024 + 512, 0); 2]);
        Ok(())
    }

    #[test]
    fn later_epochs_need_no_more_memory_than_the_first() -> Result<()> {
        let device = Device::dry("64 MiB").unwrap();
        let loader = DataLoader::new(numbers(1000), &device).batch_size(100).prefetch(2);
        let reserved = |epoch| -> Result<u64> {
            loader.epoch(epoch)?.try_for_each(|batch| batch.map(drop))?;
            Ok(device.memory().reserved())
        };
        let first = reserved(0)?;
        for epoch in 1..20 {
            assert_eq!(reserved(epoch)?, first, "epoch {epoch}");
        }
        Ok(())
    }
}
