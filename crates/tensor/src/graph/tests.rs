//! Graphs against the same steps without one, and what they refuse.

use tonnage_memory::with_stream;

use super::Graph;
use crate::checkpoint::checkpoint;
use crate::error::{Call, ErrorKind, Result};
use crate::optim::{Adam, AdamW, Optimizer, Sgd};
use crate::testing::conformance;
use crate::{DType, Device, Tensor};

/// A small network with dropout, of which a part is recomputed, over tokens; and an optimizer.
struct Trained {
    table: Tensor,
    weight: Tensor,
    optimizer: Box<dyn Optimizer>,
}

impl Trained {
    fn new(device: &Device, which: usize) -> Result<Self> {
        device.manual_seed(3);
        let table = Tensor::randn([50, 16], device)?.requires_grad_(true)?;
        let weight = Tensor::randn([16, 50], device)?.requires_grad_(true)?;
        let all = vec![table.clone(), weight.clone()];
        let optimizer: Box<dyn Optimizer> = match which {
            0 => Box::new(Adam::new(all, Adam::options().lr(0.01))?),
            1 => Box::new(AdamW::new(all, AdamW::options().lr(0.01))?),
            2 => Box::new(Sgd::new(all, Sgd::options(0.1).momentum(0.9).nesterov(true))?),
            _ => Box::new(Sgd::new(all, Sgd::options(0.1))?),
        };
        Ok(Self { table, weight, optimizer })
    }

    fn step(&mut self, tokens: &Tensor) -> Result<Tensor> {
        let rows = self.table.index_select(0, tokens)?.dropout(0.25, true)?;
        let weight = self.weight.clone();
        let scores =
            checkpoint(&[&rows], move |x| x[0].dropout(0.5, true)?.tanh()?.matmul(&weight))?;
        let loss = scores.cross_entropy(tokens)?;
        loss.backward()?;
        self.optimizer.step()?;
        self.optimizer.zero_grad(true)?;
        Ok(loss.detach())
    }
}

fn tokens(device: &Device, step: usize) -> Result<Tensor> {
    let numbers: Vec<i64> = (0..8).map(|it| ((it * 7 + step * 3) % 50) as i64).collect();
    Tensor::from_slice(&numbers, [8], device)
}

/// Losses and weights of some steps, of which all but the first two are replays.
fn replayed(device: &Device, which: usize, steps: usize) -> Result<Vec<Tensor>> {
    let mut trained = Trained::new(device, which)?;
    let input = tokens(device, 0)?;
    let mut losses = vec![trained.step(&input)?];
    let (graph, loss) = Graph::capture(device, || trained.step(&input))?;
    for step in 1..steps {
        // A schedule, as if the steps were run.
        trained.optimizer.set_lr(0.01 / step as f64);
        input.copy_(&tokens(device, step)?)?;
        graph.replay()?;
        losses.push(loss.add(0.0)?);
    }
    losses.extend([trained.table.detach().add(0.0)?, trained.weight.detach().add(0.0)?]);
    // And on without it: steps and random numbers were counted.
    losses.push(trained.step(&tokens(device, steps)?)?);
    Ok(losses)
}

fn run(device: &Device, which: usize, steps: usize) -> Result<Vec<Tensor>> {
    let mut trained = Trained::new(device, which)?;
    let mut losses = vec![trained.step(&tokens(device, 0)?)?];
    for step in 1..steps {
        trained.optimizer.set_lr(0.01 / step as f64);
        losses.push(trained.step(&tokens(device, step)?)?);
    }
    losses.extend([trained.table.detach().add(0.0)?, trained.weight.detach().add(0.0)?]);
    losses.push(trained.step(&tokens(device, steps)?)?);
    Ok(losses)
}

#[test]
fn replays_are_the_steps_bit_by_bit() -> Result<()> {
    for which in 0..4 {
        let [one, other] = [(); 2].map(|()| Device::host("256 MiB").unwrap());
        let expected = run(&one, which, 5)?;
        let got = replayed(&other, which, 5)?;
        assert_eq!(got.len(), expected.len());
        for (place, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let bits = |it: &Tensor| -> Result<Vec<u32>> {
                Ok(it.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
            };
            assert!(bits(got)? == bits(expected)?, "optimizer {which}, result {place}");
        }
    }
    Ok(())
}

conformance!(adam_in_a_graph, |device| replayed(device, 0, 4));

conformance!(adamw_in_a_graph, |device| replayed(device, 1, 3));

conformance!(momentum_in_a_graph, |device| replayed(device, 2, 3));

conformance!(sgd_in_a_graph, |device| replayed(device, 3, 3));

conformance!(images_in_a_graph, |device| {
    let images = Tensor::randn([2, 3, 8, 8], device)?;
    let filter = Tensor::randn([4, 3, 3, 3], device)?.requires_grad_(true)?;
    let options = crate::ConvOptions::default().padding(1);
    let step = || {
        filter.set_grad(None)?;
        images.conv2d(&filter, None, options)?.relu()?.mean()?.backward()?;
        filter.grad().ok_or_else(|| Call::here("grad").error(ErrorKind::Autograd, "no gradient"))
    };
    step()?;
    let (graph, gradient) = Graph::capture(device, step)?;
    graph.replay()?;
    images.mul_(2.0)?;
    graph.replay()?;
    Ok(vec![gradient.add(0.0)?])
});

impl Tensor {
    /// One of its numbers.
    fn item_at(&self, place: usize) -> Result<f32> {
        Ok(self.to_vec::<f32>()?[place])
    }
}

/// A stream of a device.
fn side(device: &Device) -> tonnage_memory::Stream {
    device.create_stream().unwrap()
}

conformance!(replays_on_several_streams, |device| {
    let x = Tensor::zeros([1000], device)?;
    let (graph, y) = Graph::capture(device, || {
        x.add_(1.0)?;
        x.mul(2.0)
    })?;
    let other = side(device);
    let mut seen = Vec::new();
    for step in 0..6 {
        if step % 2 == 0 {
            graph.replay()?;
        } else {
            with_stream(&other, || graph.replay())?;
        }
        seen.push(y.add(0.0)?);
    }
    let last = seen[5].narrow(0, 0, 3)?;
    if device.kind() == "host" {
        assert_eq!(last.to_vec::<f32>()?, [12.0; 3]);
    }
    Ok(seen)
});

#[test]
fn what_a_graph_uses_stays_while_it_can_be_replayed() -> Result<()> {
    let options = tonnage_memory::DeviceOptions { poison: true, ..Default::default() };
    let device = Device::host_with("256 MiB", options).unwrap();
    let result = {
        // From before, and gone before the capture ends.
        let x = Tensor::full([1 << 18], 3.0, &device)?;
        let kept = Tensor::full([1 << 18], 4.0, &device)?;
        let (graph, y) = Graph::capture(&device, move || x.mul(&x)?.add(&kept))?;
        device.memory().empty_cache()?;
        let others: Vec<Tensor> =
            (0..20).map(|it| Tensor::full([1 << 18], it as f64, &device)).collect::<Result<_>>()?;
        graph.replay()?;
        drop(graph);
        drop(others);
        y
    };
    // Its memory is its own still.
    let others = Tensor::full([1 << 20], 7.0, &device)?;
    assert!(result.to_vec::<f32>()?.iter().all(|it| *it == 13.0));
    drop((others, result));
    device.memory().empty_cache()?;
    assert_eq!((device.memory().allocated(), device.memory().reserved()), (0, 0));
    Ok(())
}

#[test]
fn nobody_is_given_memory_of_a_graph() -> Result<()> {
    let device = Device::dry("1 GiB").unwrap();
    let x = Tensor::zeros([1 << 20], &device)?;
    let (graph, y) = Graph::capture(&device, || x.sin()?.cos()?.exp())?;
    let pools: Vec<_> =
        device.memory().snapshot().segments.iter().map(|it| it.pool.is_default()).collect();
    assert!(pools.contains(&false) && pools.contains(&true), "{pools:?}");
    let reserved = device.memory().reserved();
    drop(y);
    device.memory().empty_cache()?;
    assert_eq!(device.memory().reserved(), reserved, "free blocks of the pool stay");
    assert_eq!(graph.nodes(), 3);
    let before = device.work();
    graph.replay()?;
    assert_eq!(device.work().since(before).kernels, 3);
    drop(graph);
    device.memory().empty_cache()?;
    assert!(device.memory().reserved() < reserved);
    Ok(())
}

/// The error of a step that is captured, after which the device works as before.
fn refused<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<String> {
    let Err(error) = Graph::capture(device, step) else { return Ok("captured".to_owned()) };
    assert_eq!(Tensor::ones([3], device)?.add(1.0)?.numel(), 3);
    device.synchronize()?;
    Ok(error.to_string())
}

#[test]
fn what_cannot_be_captured_is_refused_with_what_to_do() -> Result<()> {
    for device in [Device::host("64 MiB").unwrap(), Device::dry("64 MiB").unwrap()] {
        let x = Tensor::ones([3], &device)?.requires_grad_(true)?;
        let mut adam = Adam::new(vec![x.clone()], Adam::options())?;
        let there = Device::host("64 MiB").unwrap();
        let (graph, _) = Graph::capture(&device, || x.detach().sin())?;
        let side = side(&device);
        let messages = [
            refused(&device, || x.to_vec::<f32>())?,
            refused(&device, || Tensor::from_slice(&[1.0f32], [1], &device))?,
            refused(&device, || device.synchronize())?,
            refused(&device, || x.detach().to_device(&there))?,
            refused(&device, || graph.replay())?,
            refused(&device, || Graph::capture(&device, || x.sin()))?,
            refused(&device, || {
                x.sum()?.backward()?;
                adam.step()
            })?,
            refused(&device, || {
                let y = x.detach().sin()?;
                with_stream(&side, || y.cos())
            })?,
        ];
        for (message, expected) in messages.iter().zip([
            "no numbers yet",
            "cannot be captured",
            "nothing to wait for",
            "between devices",
            "into another one",
            "captured already",
            "step once before",
            "outside of the capture",
        ]) {
            assert!(message.contains(expected), "{device:?}: {message} has no {expected}");
        }
    }
    Ok(())
}

/// Work on a stream of the host that takes its time.
fn wait_a_little(stream: &tonnage_memory::Stream) {
    stream.launch(|| std::thread::sleep(std::time::Duration::from_millis(50))).unwrap();
}

#[test]
fn a_replay_waits_for_who_reads_a_result_that_is_gone() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let x = Tensor::ones([1 << 16], &device)?;
    let (graph, y) = Graph::capture(&device, || {
        x.add_(1.0)?;
        x.mul(1.0)
    })?;
    graph.replay()?;
    let side = side(&device);
    wait_a_little(&side);
    let read = with_stream(&side, || y.add(0.0))?;
    drop(y);
    graph.replay()?;
    assert!(read.to_vec::<f32>()?.iter().all(|it| *it == 2.0), "the second replay writes 3");
    Ok(())
}

#[test]
fn memory_that_captured_work_had_before_is_written_too() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let x = Tensor::ones([1 << 16], &device)?;
    let (graph, empty) = Graph::capture(&device, || {
        drop(x.add(1.0)?);
        // No captured work uses it.
        Tensor::empty([1 << 16], &device)
    })?;
    empty.copy_(&x)?;
    let side = side(&device);
    wait_a_little(&side);
    let read = with_stream(&side, || empty.add(0.0))?;
    let before = empty.version();
    graph.replay()?;
    assert!(read.to_vec::<f32>()?.iter().all(|it| *it == 1.0), "behind the read");
    assert_eq!(empty.to_vec::<f32>()?, vec![2.0; 1 << 16]);
    assert!(empty.version() > before);
    Ok(())
}

#[test]
fn a_pool_gives_nothing_back_while_it_is_captured() -> Result<()> {
    let config = tonnage_memory::Config::parse("max_split_size_mb:20", Default::default()).unwrap();
    let options = tonnage_memory::DeviceOptions { config, ..Default::default() };
    let device = Device::dry_with("100 MiB", options).unwrap();
    let x = Tensor::zeros([16], &device)?;
    let large = |mib: usize| Tensor::zeros([mib << 18], &device);
    let step = || {
        drop(large(40)?);
        large(60)
    };
    let error = Graph::capture(&device, step).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Memory(_)), "{error}");
    // Without a graph there is room: the free segment goes back.
    step()?;
    drop(x);
    Ok(())
}

#[test]
fn groups_keep_their_own_options() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let train = |captures: bool| -> Result<Vec<f32>> {
        let [a, b] = [(); 2].map(|()| Tensor::ones([3], &device)?.requires_grad_(true));
        let (a, b) = (a?, b?);
        // Numbers of both are equal while nothing is learnt.
        let mut adam = AdamW::new(vec![a.clone()], AdamW::options().lr(0.0).weight_decay(0.5))?;
        adam.add_group(vec![b.clone()], AdamW::options().lr(0.0).weight_decay(0.0))?;
        let step = |adam: &mut AdamW| {
            a.add(&b)?.sum()?.backward()?;
            adam.step()?;
            adam.zero_grad(true)
        };
        step(&mut adam)?;
        let graph = match captures {
            true => Some(Graph::capture(&device, || step(&mut adam))?.0),
            false => None,
        };
        adam.set_lr(0.1);
        for _ in 0..2 {
            match &graph {
                Some(graph) => graph.replay()?,
                None => step(&mut adam)?,
            }
        }
        Ok([a.to_vec()?, b.to_vec()?].concat())
    };
    let (graph, steps) = (train(true)?, train(false)?);
    assert_eq!(graph, steps);
    assert_ne!(graph[0], graph[3], "one decays");
    Ok(())
}

#[test]
fn several_steps_in_one_graph_count_each() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let train = |captures: bool| -> Result<Vec<f32>> {
        let [a, b] = [(); 2].map(|()| Tensor::ones([3], &device)?.requires_grad_(true));
        let (a, b) = (a?, b?);
        let mut adam = Adam::new(vec![a.clone(), b.clone()], Adam::options().lr(0.1))?;
        let mut steps = || {
            a.sum()?.backward()?;
            adam.step()?;
            adam.zero_grad(true)?;
            a.mul(&b)?.sum()?.backward()?;
            adam.step()?;
            adam.zero_grad(true)
        };
        steps()?;
        let graph = if captures { Some(Graph::capture(&device, &mut steps)?.0) } else { None };
        for _ in 0..3 {
            match &graph {
                Some(graph) => graph.replay()?,
                None => steps()?,
            }
        }
        Ok([a.to_vec()?, b.to_vec()?].concat())
    };
    assert_eq!(train(true)?, train(false)?);
    Ok(())
}

#[test]
fn copies_of_weights_are_made_at_each_replay() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let weight = Tensor::ones([4, 4], &device)?.requires_grad_(true)?;
    let x = Tensor::ones([4, 4], &device)?;
    let results = crate::amp::autocast(DType::Bf16, || -> Result<_> {
        // Makes a copy that the step must not use.
        let before = x.linear(&weight, None)?;
        let (graph, y) = Graph::capture(&device, || x.linear(&weight, None))?;
        crate::autograd::no_grad(|| weight.mul_(3.0))?;
        graph.replay()?;
        let after = x.linear(&weight, None)?;
        [before, y, after]
            .iter()
            .map(|it| it.to(DType::F32)?.item_at(0))
            .collect::<Result<Vec<_>>>()
    })?;
    assert_eq!(results, [4.0, 12.0, 12.0]);
    Ok(())
}

#[test]
fn a_step_that_fails_or_panics_leaves_no_capture() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let x = Tensor::ones([3], &device)?;
    let before = device.memory().allocated();
    let failed = Graph::capture(&device, || {
        x.sin()?;
        x.matmul(&Tensor::ones([4, 4], &device)?)
    });
    assert!(matches!(failed.unwrap_err().kind(), ErrorKind::Shape));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Graph::capture(&device, || -> Result<()> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    assert_eq!(device.memory().allocated(), before);
    let (graph, y) = Graph::capture(&device, || x.add(1.0))?;
    graph.replay()?;
    assert_eq!(y.to_vec::<f32>()?, [2.0; 3]);
    Ok(())
}

#[test]
fn parameters_that_stepped_apart_are_noticed() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let [a, b] = [(); 2].map(|()| Tensor::ones([3], &device)?.requires_grad_(true));
    let (a, b) = (a?, b?);
    let mut adam = Adam::new(vec![a.clone(), b.clone()], Adam::options())?;
    let both = |adam: &mut Adam| {
        a.add(&b)?.sum()?.backward()?;
        adam.step()?;
        adam.zero_grad(true)
    };
    both(&mut adam)?;
    let (graph, ()) = Graph::capture(&device, || both(&mut adam))?;
    graph.replay()?;
    a.sum()?.backward()?;
    adam.step()?;
    adam.zero_grad(true)?;
    let error = graph.replay().unwrap_err().to_string();
    assert!(error.contains("stepped apart") && error.contains("capture the step again"), "{error}");
    Ok(())
}

#[test]
fn wrong_values_are_told_at_each_replay() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let rows = Tensor::ones([4, 2], &device)?;
    let which = Tensor::from_slice(&[0i64, 1], [2], &device)?;
    let line = line!() + 1;
    let (graph, _) = Graph::capture(&device, || rows.index_select(0, &which))?;
    graph.replay()?;
    device.synchronize()?;
    which.copy_(&Tensor::from_slice(&[0i64, 9], [2], &device)?)?;
    for _ in 0..2 {
        graph.replay()?;
        let error = device.synchronize().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Queued) && error.site().line() == line,
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn saved_values_that_a_replay_changes_are_not_walked() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let x = Tensor::ones([3], &device)?;
    let w = Tensor::ones([3], &device)?.requires_grad_(true)?;
    let (graph, ()) = Graph::capture(&device, || x.add_(1.0).map(drop))?;
    let loss = w.mul(&x)?.sum()?;
    graph.replay()?;
    let error = loss.backward().unwrap_err().to_string();
    assert!(error.contains("changed by: replay at"), "{error}");
    Ok(())
}

#[test]
fn types_of_sixteen_bits_are_captured() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let x = Tensor::ones([8, 8], (&device, DType::Bf16))?;
    let (graph, y) = Graph::capture(&device, || x.matmul(&x)?.to(DType::F32))?;
    graph.replay()?;
    assert_eq!(y.to_vec::<f32>()?, [8.0; 64]);
    Ok(())
}
