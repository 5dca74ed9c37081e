//! The graph as programs use it: what it keeps, what it frees, what it refuses.

use std::sync::{Arc, Barrier, Mutex};

use tonnage_tensor::autograd::{BackwardOptions, SavedTensorHooks, no_grad, saved_tensors_hooks};
use tonnage_tensor::{Device, ErrorKind, Pinned, Result, Role, Tensor};

use crate::computing;

fn device() -> Device {
    computing("1 GiB")
}

fn leaf(device: &Device) -> Result<Tensor> {
    Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], device)?.requires_grad_(true)
}

#[test]
fn gradients_accumulate_until_they_are_taken() -> Result<()> {
    let device = device();
    let x = leaf(&device)?;
    for round in 1..=3 {
        x.mul(&x)?.sum()?.backward()?;
        let expected = [2.0, 4.0, 6.0].map(|it| it * round as f32);
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, expected);
    }
    x.set_grad(None)?;
    assert!(x.grad().is_none());
    assert!(x.set_grad(Some(Tensor::zeros([4], &device)?)).is_err());
    Ok(())
}

#[test]
fn a_graph_can_be_walked_once_unless_it_is_retained() -> Result<()> {
    let device = device();
    let x = leaf(&device)?;
    let loss = x.sin()?.sum()?;
    loss.backward_with(None, BackwardOptions::default().retain_graph(true))?;
    loss.backward()?;
    let error = loss.backward().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Autograd);
    assert!(error.to_string().contains("retain_graph"), "{error}");
    Ok(())
}

#[test]
fn what_has_no_gradient_says_so() -> Result<()> {
    let device = device();
    let x = leaf(&device)?;
    assert!(x.sin()?.backward().unwrap_err().to_string().contains("float32[3]"));
    assert!(x.detach().sum()?.backward().unwrap_err().to_string().contains("requires_grad_"));
    assert!(no_grad(|| x.sum())?.backward().is_err());
    assert!(x.sin()?.requires_grad_(true).is_err());
    assert!(Tensor::arange(0, 3, 1, &device)?.requires_grad_(true).is_err());
    Ok(())
}

#[test]
fn backward_frees_as_it_goes() -> Result<()> {
    let device = Device::dry("10 GiB").unwrap();
    let x = Tensor::ones([1 << 20], &device)?.requires_grad_(true)?;
    let mut y = x.sin()?;
    for _ in 0..9 {
        y = y.sin()?;
    }
    let tensor = 4u64 << 20;
    assert_eq!(device.memory().allocated(), 11 * tensor, "each input is kept");
    let loss = y.sum()?;
    drop(y);
    assert_eq!(device.memory().allocated(), 10 * tensor + 512, "the last output is not");
    device.memory().reset_peak_stats();
    loss.backward()?;
    // Beside what was there: the gradient that comes in, the cosine, and the gradient that goes out.
    assert!(device.memory().max_allocated() <= 13 * tensor + 1024);
    assert_eq!(device.memory().allocated(), 2 * tensor + 512);
    assert!(loss.grad_fn().is_some());
    Ok(())
}

#[test]
fn a_graph_of_thirty_thousand_operations_is_walked_and_dropped() -> Result<()> {
    let device = Device::dry("10 GiB").unwrap();
    let x = Tensor::ones([1], &device)?.requires_grad_(true)?;
    for walk in [true, false] {
        let mut y = x.clone();
        for _ in 0..30_000 {
            y = y.add(1.0)?;
        }
        if walk {
            y.backward()?;
        }
        drop(y);
    }
    assert_eq!(device.memory().allocated(), 1024);
    Ok(())
}

#[test]
fn hooks_can_keep_saved_values_in_host_memory() -> Result<()> {
    let device = device();
    let x = Tensor::randn([100, 100], &device)?.requires_grad_(true)?;
    let program = || x.sin()?.exp()?.mul(&x)?.sum();
    program()?.backward()?;
    let expected = x.take_grad().unwrap().to_vec::<f32>()?;
    let hooks = SavedTensorHooks::new(
        |tensor| Ok(Box::new(tensor.to_pinned()?)),
        |packed| Tensor::from_pinned(packed.downcast_ref::<Pinned>().expect("what was packed")),
    );
    let before = device.memory().allocated();
    let loss = saved_tensors_hooks(&hooks, program)?;
    assert_eq!(device.memory().allocated(), before + 512, "only the loss is on the device");
    loss.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, expected);
    Ok(())
}

#[test]
fn a_hook_can_end_a_computation() -> Result<()> {
    let device = device();
    let x = leaf(&device)?;
    let hooks = SavedTensorHooks::new(
        |_| Err(tonnage_tensor::Error::interrupt()),
        |_| Err(tonnage_tensor::Error::interrupt()),
    );
    let error = saved_tensors_hooks(&hooks, || x.sin()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Interrupted);
    x.sin()?.sum()?.backward()
}

#[test]
fn what_is_alive_has_a_line_and_a_role() -> Result<()> {
    let device = device();
    let weight = Tensor::ones([100], &device)?.requires_grad_(true)?;
    let line = line!() + 1;
    let y = weight.exp()?;
    let live = device.memory().live();
    assert_eq!(live.len(), 2);
    assert_eq!((live[0].role, live[0].bytes, live[0].operation), (Role::Parameters, 400, "ones"));
    assert_eq!((live[1].role, live[1].saved, live[1].site.line()), (Role::Activations, 1, line));
    let loss = y.sum()?;
    drop(y);
    loss.backward()?;
    drop(loss);
    let roles: Vec<Role> = device.memory().live().iter().map(|it| it.role).collect();
    assert_eq!(roles, [Role::Parameters, Role::Gradients]);
    Ok(())
}

#[test]
fn the_engine_s_history_has_the_caller_s_lines() -> Result<()> {
    let device = Device::dry("1 GiB").unwrap();
    device.memory().record_history(Some(tonnage_engine::RecordOptions::default()));
    let line = line!();
    let x = Tensor::ones([10, 10], &device)?;
    let y = x.matmul(&x)?;
    let z = y.sin()?.add(&y)?.sum()?;
    drop((x, y, z));
    let snapshot = device.memory().snapshot();
    let allocs = snapshot.entries.iter().filter(|it| it.action.name() == "alloc");
    let frames = allocs.filter_map(|it| it.stack).map(|it| &snapshot.stacks.frames(it)[0]);
    let lines: Vec<u32> =
        frames.inspect(|it| assert_eq!(&*it.filename, file!())).map(|it| it.line - line).collect();
    assert_eq!(lines, [1, 2, 3, 3, 3]);
    Ok(())
}

#[test]
fn a_loss_that_is_summed_keeps_its_graphs_alive() -> Result<()> {
    let device = Device::dry("10 GiB").unwrap();
    let weight = Tensor::ones([1 << 18], &device)?.requires_grad_(true)?;
    let mut total = Tensor::zeros((), &device)?;
    for round in 1..=3 {
        let x = Tensor::ones([1 << 18], &device)?;
        total = total.add(&x.mul(&weight)?.sum()?)?;
        drop(x);
        let saved = device.memory().live().iter().filter(|it| it.role == Role::Activations).count();
        assert_eq!(saved, round);
    }
    Ok(())
}

/// Gradients that are views of one tensor: each leaf has memory of its own.
#[test]
fn leaves_whose_gradients_share_memory_do_not_share_a_buffer() -> Result<()> {
    let device = device();
    let leaf = || Tensor::ones([2, 3], &device)?.requires_grad_(true);
    type Join = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let joins: [(&str, Join); 3] = [
        ("reshaped", |a, b| a.reshape([6])?.add(&b.reshape([6])?)),
        ("transposed twice", |a, b| a.t()?.t()?.add(&b.unsqueeze(0)?.squeeze(0)?)),
        ("one of them reshaped", |a, b| a.add(&b.reshape([6])?.reshape([2, 3])?)),
    ];
    for (what, join) in joins {
        let (a, b) = (leaf()?, leaf()?);
        for (factor, expected) in [(1.0, 1.0), (10.0, 11.0)] {
            join(&a, &b)?.mul(factor)?.sum()?.backward()?;
            for gradient in [&a, &b].map(|it| it.grad().unwrap()) {
                assert_eq!(gradient.to_vec::<f32>()?, [expected; 6], "{what}");
            }
        }
        assert!(!a.grad().unwrap().shares_storage_with(&b.grad().unwrap()), "{what}");
    }
    Ok(())
}

#[test]
fn a_gradient_that_was_passed_in_stays_the_caller_s() -> Result<()> {
    let device = device();
    let x = Tensor::ones([2, 3], &device)?.requires_grad_(true)?;
    let gradient = Tensor::full([6], 5.0, &device)?;
    for round in 1..=2 {
        x.reshape([6])?.backward_with(Some(&gradient), BackwardOptions::default())?;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [5.0 * round as f32; 6]);
        assert_eq!(gradient.to_vec::<f32>()?, [5.0; 6], "after {round}");
    }
    Ok(())
}

/// Runs `work` on so many threads, which begin together.
fn on_threads(threads: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let (start, work) = (Barrier::new(threads), &work);
    std::thread::scope(|scope| {
        let begin = |thread| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                work(thread)
            })
        };
        let threads: Vec<_> = (0..threads).map(begin).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

#[test]
fn no_gradient_is_lost_when_threads_go_back_to_one_leaf() -> Result<()> {
    let device = device();
    for round in 0..500 {
        let x = Tensor::zeros([64], &device)?.requires_grad_(true)?;
        let losses = (0..4).map(|_| x.sum()).collect::<Result<Vec<_>>>()?;
        on_threads(4, |thread| losses[thread].backward())?;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [4.0; 64], "round {round}");
    }
    Ok(())
}

#[test]
fn threads_walk_a_retained_graph_at_the_same_time() -> Result<()> {
    let device = device();
    let x = Tensor::full([64], 3.0, &device)?.requires_grad_(true)?;
    let y = x.mul(&x)?;
    let loss = y.mul(&y)?.sum()?;
    let retained = BackwardOptions::default().retain_graph(true);
    for round in 1..=100 {
        on_threads(4, |_| loss.backward_with(None, retained))?;
        let expected = (round * 4) as f32 * 4.0 * 27.0;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [expected; 64], "round {round}");
    }
    Ok(())
}

#[test]
fn a_retained_graph_that_fails_half_way_can_be_walked_again() -> Result<()> {
    let device = Device::dry("128 MiB").unwrap();
    let x = Tensor::zeros([4 << 20], &device)?.requires_grad_(true)?;
    let loss = x.sin()?.exp()?.sum()?;
    // What the sine had, and nearly all that is left.
    let rest = (Tensor::empty([4 << 20], &device)?, Tensor::empty([16 << 20], &device)?);
    let retained = BackwardOptions::default().retain_graph(true);
    let error = loss.backward_with(None, retained).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Memory(_)), "{error}");
    drop(rest);
    loss.backward_with(None, retained)?;
    loss.backward()
}

/// What a hook is to walk back from when it is asked for a value the first time.
pub(crate) type Walked = Arc<Mutex<Option<Tensor>>>;

/// Hooks that keep values as they are, and walk a graph before they give the first back.
pub(crate) fn walking_hooks(walked: &Walked) -> SavedTensorHooks {
    let walked = Arc::clone(walked);
    SavedTensorHooks::new(
        |tensor| Ok(Box::new(tensor)),
        move |packed| {
            let result = walked.lock().unwrap().take();
            if let Some(result) = result {
                result.backward_with(None, BackwardOptions::default().retain_graph(true))?;
            }
            Ok(packed.downcast_ref::<Tensor>().unwrap().clone())
        },
    )
}

#[test]
fn a_hook_that_walks_the_graph_that_needs_its_value_is_refused() -> Result<()> {
    let device = device();
    for (retain, words) in [(true, "in a graph of its own"), (false, "freed before")] {
        let (x, walked) = (leaf(&device)?, Walked::default());
        let loss = saved_tensors_hooks(&walking_hooks(&walked), || x.sin())?.sum()?;
        *walked.lock().unwrap() = Some(loss.clone());
        let options = BackwardOptions::default().retain_graph(retain);
        let error = loss.backward_with(None, options).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Autograd);
        assert!(error.to_string().contains(words), "{error}");
        if retain {
            // The graph is as it was.
            loss.backward()?;
            let cosines = x.cos()?.to_vec::<f32>()?;
            assert_eq!(x.grad().unwrap().to_vec::<f32>()?, cosines);
        }
    }
    Ok(())
}

#[test]
fn a_hook_may_walk_another_graph_with_the_same_leaf() -> Result<()> {
    let device = device();
    let (x, walked) = (leaf(&device)?, Walked::default());
    let loss = saved_tensors_hooks(&walking_hooks(&walked), || x.mul(&x))?.sum()?;
    *walked.lock().unwrap() = Some(x.mul(3.0)?.sum()?);
    loss.backward_with(None, BackwardOptions::default().retain_graph(true))?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [5.0, 7.0, 9.0]);
    Ok(())
}
