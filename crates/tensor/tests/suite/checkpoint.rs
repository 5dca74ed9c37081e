//! Checkpointing: the same gradients, fewer bytes, PyTorch's bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tonnage_tensor::amp::autocast;
use tonnage_tensor::autograd::{BackwardOptions, no_grad, saved_tensors_hooks};
use tonnage_tensor::checkpoint::{
    CheckpointOptions, Placement, checkpoint, checkpoint_sequential, checkpoint_with,
};
use tonnage_tensor::models::DeepNet;
use tonnage_tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage_tensor::{DType, Device, ErrorKind, Result, Tensor, conformance};

use crate::autograd::{Walked, walking_hooks};

use crate::computing;

const MIB: u64 = 1 << 20;

/// By how much PyTorch's peaks on that device are above ours where the gradient of a bias is summed from
/// 16,384 rows of 512: the same in five programs of different depth. It is as much as a reduction
/// takes that keeps a partial sum for each of 256 blocks, 32 threads and 4 lanes, and a counter.
const STAGING: u64 = 4 * 512 * 256 * 32 * 4 + 512;

fn host() -> Device {
    computing("1 GiB")
}

/// The gradients of some leaves, after which they have none.
fn gradients(leaves: &[&Tensor]) -> Result<Vec<Vec<f32>>> {
    leaves.iter().map(|leaf| leaf.take_grad().unwrap().to_vec()).collect()
}

#[test]
fn gradients_are_the_same_for_several_inputs_and_captured_state() -> Result<()> {
    let device = host();
    let leaf = || Tensor::randn([5, 5], &device)?.requires_grad_(true);
    let (x, y, weight) = (leaf()?, leaf()?, leaf()?);
    let captured = weight.clone();
    let segment = move |inputs: &[Tensor]| {
        let both = inputs[0].sin()?.mul(&inputs[1].exp()?)?;
        Ok((both.matmul(&captured)?.tanh()?, both))
    };
    let loss = |(a, b): (Tensor, Tensor)| a.mul(&b)?.sum();
    loss(segment(&[x.clone(), y.clone()])?)?.backward()?;
    let expected = gradients(&[&x, &y, &weight])?;
    for early_stop in [true, false] {
        let options = CheckpointOptions::default().early_stop(early_stop);
        let (a, b) = checkpoint_with(options, &[&x, &y], segment.clone())?;
        loss((a, b))?.backward()?;
        assert_eq!(gradients(&[&x, &y, &weight])?, expected);
    }
    Ok(())
}

#[test]
fn recomputation_draws_the_same_random_numbers_and_leaves_no_trace() -> Result<()> {
    let device = host();
    let x = Tensor::ones([1000], &device)?.requires_grad_(true)?;
    let noisy = |x: &[Tensor]| x[0].mul(&Tensor::rand([1000], x[0].device())?)?.sin();
    device.manual_seed(5);
    let y = checkpoint(&[&x], noisy)?;
    let after = device.generator().state();
    y.sum()?.backward()?;
    assert_eq!(device.generator().state(), after);
    let checkpointed = gradients(&[&x])?;
    device.manual_seed(5);
    noisy(std::slice::from_ref(&x))?.sum()?.backward()?;
    assert_eq!(gradients(&[&x])?, checkpointed);
    Ok(())
}

/// Whether each element's gradient fits its result: x = 1, so kept elements are 2, y = sin 2, and the
/// gradient is 2 cos 2; of dropped ones both are 0.
#[track_caller]
fn assert_gradients_fit(y: &Tensor, x: &Tensor) -> Result<()> {
    let (y, gradient) = (y.to_vec::<f32>()?, x.take_grad().unwrap().to_vec::<f32>()?);
    assert!(y.contains(&0.0) && y.iter().any(|it| *it != 0.0), "{y:?}");
    let wrong = y.iter().zip(&gradient).filter(|(y, g)| (**y == 0.0) != (**g == 0.0)).count();
    assert_eq!(wrong, 0, "gradients that do not fit their results");
    Ok(())
}

#[test]
fn a_segment_without_inputs_draws_the_same_random_numbers() -> Result<()> {
    let [device, elsewhere] = [host(), host()];
    let x = Tensor::ones([100], &device)?.requires_grad_(true)?;
    let far = Tensor::ones([100], &elsewhere)?.requires_grad_(true)?;
    // Nothing but what is captured; and an input, but random numbers on another device.
    let (captured, also) = (x.clone(), far.clone());
    let y = checkpoint(&[], move |_| captured.dropout(0.5, true)?.sin())?;
    let z = checkpoint(&[&x], move |_| also.dropout(0.5, true)?.sin())?;
    Tensor::rand([8], &device)?;
    Tensor::rand([8], &elsewhere)?;
    for (result, leaf) in [(&y, &x), (&z, &far)] {
        result.sum()?.backward()?;
        assert_gradients_fit(result, leaf)?;
    }
    Ok(())
}

/// What other threads draw meanwhile neither changes what a segment draws again nor is drawn twice.
#[test]
fn recomputation_does_not_disturb_other_threads_random_numbers() -> Result<()> {
    let device = host();
    let x = Tensor::ones([100], &device)?.requires_grad_(true)?;
    let (before_second, drawn) = (Arc::new(AtomicUsize::new(0)), device.clone());
    let runs = Arc::clone(&before_second);
    let y = checkpoint(&[&x], move |x| {
        let first = x[0].dropout(0.5, true)?;
        // Another thread draws between two draws of the segment, in both runs.
        let other = std::thread::scope(|scope| {
            scope.spawn(|| Tensor::rand([4], &drawn)?.to_vec::<f32>()).join().unwrap()
        })?;
        runs.fetch_add(1, Ordering::Relaxed);
        assert!(other.iter().all(|it| *it < 1.0));
        first.dropout(0.5, true)?.sin()
    })?;
    let state = device.generator().state();
    y.sum()?.backward()?;
    assert_eq!(before_second.load(Ordering::Relaxed), 2);
    let draws = device.generator().state().offset - state.offset;
    assert_eq!(draws, 1, "only the other thread's");
    assert_gradients_fit(&y, &x)
}

#[test]
fn segments_nest_and_each_stops_early() -> Result<()> {
    let device = host();
    let x = Tensor::randn([100], &device)?.requires_grad_(true)?;
    let runs = Arc::new(AtomicUsize::new(0));
    let ends = Arc::new(AtomicUsize::new(0));
    let (inner_runs, inner_ends) = (Arc::clone(&runs), Arc::clone(&ends));
    let inner = move |x: &[Tensor]| {
        inner_runs.fetch_add(1, Ordering::Relaxed);
        let y = x[0].sin()?.exp()?;
        inner_ends.fetch_add(1, Ordering::Relaxed);
        Ok(y)
    };
    let outer = move |x: &[Tensor]| {
        let y = checkpoint(&[&x[0].cos()?], inner.clone())?;
        checkpoint(&[&y], inner.clone())?.mul(&x[0])
    };
    outer(std::slice::from_ref(&x))?.sum()?.backward()?;
    let expected = gradients(&[&x])?;
    runs.store(0, Ordering::Relaxed);
    ends.store(0, Ordering::Relaxed);
    checkpoint(&[&x], outer)?.sum()?.backward()?;
    assert_eq!(gradients(&[&x])?, expected);
    // Two in the forward, two when the outer is recomputed, one when each of the inner is.
    assert_eq!(runs.load(Ordering::Relaxed), 6);
    // Those of the inner are stopped at their last saved value, before their end.
    assert_eq!(ends.load(Ordering::Relaxed), 4);
    Ok(())
}

#[test]
fn a_retained_graph_is_walked_again() -> Result<()> {
    let device = host();
    let x = Tensor::randn([10], &device)?.requires_grad_(true)?;
    let loss = checkpoint(&[&x], |x| x[0].sin()?.mul(&x[0]))?.sum()?;
    loss.backward_with(None, BackwardOptions::default().retain_graph(true))?;
    let once = x.grad().unwrap().to_vec::<f32>()?;
    loss.backward()?;
    let twice: Vec<f32> = once.iter().map(|it| it * 2.0).collect();
    assert_eq!(gradients(&[&x])?, [twice]);
    Ok(())
}

#[test]
fn autocast_is_that_of_the_first_run() -> Result<()> {
    let device = host();
    let weight = Tensor::randn([16, 16], &device)?.requires_grad_(true)?;
    let x = Tensor::randn([4, 16], &device)?;
    let again = weight.clone();
    let segment = move |x: &[Tensor]| x[0].linear(&again, None)?.tanh();
    let loss = |y: Tensor| y.to(DType::F32)?.sum();
    loss(autocast(DType::Bf16, || segment(std::slice::from_ref(&x)))?)?.backward()?;
    let expected = gradients(&[&weight])?;
    loss(autocast(DType::Bf16, || checkpoint(&[&x], segment))?)?.backward()?;
    assert_eq!(gradients(&[&weight])?, expected);
    Ok(())
}

#[test]
fn a_second_run_that_differs_is_found() -> Result<()> {
    let device = host();
    let x = Tensor::randn([10], &device)?.requires_grad_(true)?;
    let runs = AtomicUsize::new(0);
    let fickle = move |x: &[Tensor]| match runs.fetch_add(1, Ordering::Relaxed) {
        0 => x[0].sin()?.exp(),
        1 => x[0].sin(),
        _ => x[0].view([5, 2])?.sin()?.view([10])?.exp(),
    };
    let line = line!() + 1;
    let loss = checkpoint(&[&x], fickle)?.sum()?;
    let error = loss.backward_with(None, BackwardOptions::default().retain_graph(true));
    let error = error.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (&ErrorKind::Autograd, "checkpoint"));
    assert_eq!(error.site().line(), line);
    assert!(error.to_string().contains("fewer values"), "{error}");
    Ok(())
}

#[test]
fn an_input_that_was_overwritten_is_named() -> Result<()> {
    let device = host();
    let x = Tensor::randn([10], &device)?.requires_grad_(true)?;
    let y = x.mul(2.0)?;
    let z = checkpoint(&[&y], |y| y[0].sin())?;
    y.mul_(3.0)?;
    let error = z.sum()?.backward().unwrap_err().to_string();
    assert!(error.contains("saved by:   checkpoint at crates"), "{error}");
    assert!(error.contains("changed by: mul_ at crates"), "{error}");
    Ok(())
}

#[test]
fn errors_of_the_segment_come_through_and_nothing_is_recorded_without_gradients() -> Result<()> {
    let device = host();
    let x = Tensor::randn([10], &device)?.requires_grad_(true)?;
    let wrong = |x: &[Tensor]| x[0].matmul(&Tensor::zeros([3, 3], x[0].device())?);
    assert_eq!(checkpoint(&[&x], wrong).unwrap_err().kind(), &ErrorKind::Shape);
    let before = device.memory().allocated();
    let y = no_grad(|| checkpoint(&[&x], |x| x[0].sin()?.exp()))?;
    assert!(!y.requires_grad());
    drop(y);
    assert_eq!(device.memory().allocated(), before);
    Ok(())
}

#[test]
fn many_segments_are_walked_and_dropped_on_a_small_stack() -> Result<()> {
    let program = || {
        let device = Device::dry("10 GiB").unwrap();
        let x = Tensor::ones([1], &device)?.requires_grad_(true)?;
        for walk in [true, false] {
            let mut y = x.clone();
            for _ in 0..500 {
                y = checkpoint(&[&y], |y| y[0].sin()?.exp())?;
            }
            if walk {
                y.backward()?;
            }
            drop(y);
        }
        assert_eq!(device.memory().allocated(), 1024);
        Ok(())
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(program);
    thread.unwrap().join().unwrap()
}

/// After the model; then what the forward adds and its peak, and the same after the backward.
fn residual(device: &Device, batch: usize, placement: Placement) -> Result<[u64; 4]> {
    let model = DeepNet::new(512, 20, device)?.checkpointed(placement);
    let x = Tensor::zeros([batch, 512], device)?;
    let memory = device.memory();
    let start = memory.allocated();
    let y = model.forward(&x)?;
    let forward = [memory.allocated() - start, memory.max_allocated() - start];
    y.sum()?.backward()?;
    Ok([forward[0], forward[1], memory.allocated() - start, memory.max_allocated() - start])
}

#[test]
fn residual_blocks_have_pytorch_s_bytes_with_and_without_checkpoints() -> Result<()> {
    use Placement::{Each, Keep};
    // Batch, and what PyTorch 2.11 showed on an H200: after the model, forward and its peak, backward
    // and its peak. The first backward with checkpoints has 1 MiB of a library's workspace that the
    // others, which run later, find there.
    for (batch, placement, [start, expected @ ..]) in [
        (128, Keep, [110_444_544, 126_173_184, 126_173_184, 152_731_648, 152_994_816]),
        (128, Each, [110_444_544, 115_687_424, 115_949_568, 153_780_224 - MIB, 154_043_392 - MIB]),
        (
            16_384,
            Keep,
            [144_785_408, 2_158_051_328, 2_158_051_328, 220_364_800, 2_259_766_784 - STAGING],
        ),
        (16_384, Each, [144_785_408, 815_874_048, 849_428_480, 220_364_800, 986_799_616 - STAGING]),
    ] {
        let device = Device::dry("80 GiB").unwrap();
        let figures = residual(&device, batch, placement)?;
        assert_eq!(figures, expected.map(|it| it - start), "batch {batch}, {placement:?}");
    }
    Ok(())
}

fn chain(layers: usize, device: &Device) -> Result<Sequential> {
    let layer = || Ok(Sequential::new().then(Linear::new(512, 512, device)?).then(Relu));
    (0..layers).map(|_| layer()).collect()
}

#[test]
fn the_square_root_placement_has_pytorch_s_peak_on_16_64_and_144_layers() -> Result<()> {
    // Layers, base, peak with everything kept, peak with √n segments: PyTorch 2.11 on an H200.
    for (layers, base, kept, root) in [
        (16, 119_570_432, 791_711_232, 489_721_344),
        (64, 170_000_384, 2_452_753_920, 808_586_752),
        (144, 254_050_304, 5_221_158_400, 1_161_072_128),
    ] {
        for (placement, expected) in [(Placement::Keep, kept), (Placement::SquareRoot, root)] {
            let device = Device::dry("80 GiB").unwrap();
            let model = chain(layers, &device)?;
            let x = Tensor::zeros([16_384, 512], &device)?.requires_grad_(true)?;
            let before = device.memory().allocated();
            let y = model.checkpointed(placement).forward(&x)?;
            y.sum()?.backward()?;
            let peak = device.memory().max_allocated() - before;
            // PyTorch's peak is where a bias's gradient is summed, ours may be where values are
            // recomputed: between the two lies what that sum takes there.
            let most = expected - base;
            assert!(
                (most - STAGING..most).contains(&peak),
                "{layers} layers, {placement:?}: {peak}"
            );
            if placement == Placement::Keep {
                assert_eq!(peak, most - STAGING, "{layers} layers");
            }
        }
    }
    Ok(())
}

#[test]
fn every_placement_gives_the_same_gradients() -> Result<()> {
    let device = host();
    let model = chain(9, &device)?;
    let x = Tensor::randn([8, 512], &device)?;
    let run = |model: &Sequential| -> Result<Vec<Vec<f32>>> {
        model.forward(&x)?.sum()?.backward()?;
        let parameters = model.parameters();
        gradients(&parameters.iter().collect::<Vec<_>>())
    };
    let expected = run(&model)?;
    for placement in [Placement::SquareRoot, Placement::Every(2), Placement::Segments(4)] {
        assert_eq!(run(&model.clone().checkpointed(placement))?, expected, "{placement:?}");
    }
    checkpoint_sequential(&model, 3, &x)?.sum()?.backward()?;
    assert_eq!(gradients(&model.parameters().iter().collect::<Vec<_>>())?, expected);
    Ok(())
}

conformance!(checkpoints, |device| {
    let model = chain(9, device)?;
    let x = Tensor::zeros([64, 512], device)?.requires_grad_(true)?;
    let y = model.checkpointed(Placement::SquareRoot).forward(&x)?;
    y.sum()?.backward()?;
    Ok(vec![y, x.grad().unwrap()])
});

#[test]
fn a_hook_on_an_input_that_needs_what_is_computed_from_it_is_refused() -> Result<()> {
    let device = host();
    let x = Tensor::ones([3], &device)?.requires_grad_(true)?;
    let walked = Walked::default();
    let (sine, power) = saved_tensors_hooks(&walking_hooks(&walked), || {
        checkpoint(&[&x], |x| Ok((x[0].sin()?, x[0].exp()?)))
    })?;
    // Neither was computed again yet; both are, from the one input.
    *walked.lock().unwrap() = Some(power.sum()?);
    let error = sine.sum()?.backward().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Autograd);
    assert!(error.to_string().contains("in a graph of its own"), "{error}");
    power.sum()?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0_f32.exp(); 3]);
    Ok(())
}
