//! Training as programs do it: what each technique saves, to the byte, with the same gradients.

use tonnage_memory::{DeviceId, DeviceOptions};
use tonnage_tensor::amp::autocast;
use tonnage_tensor::growth::GrowthWatch;
use tonnage_tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage_tensor::optim::{Adam, Optimizer, Sgd};
use tonnage_tensor::{DType, Device, Holder, Result, Role, Tensor};

use crate::{computing, computing_with};

const MIB: u64 = 1 << 20;

fn host() -> Device {
    computing("1 GiB")
}

/// Each program runs on both devices.
fn on_both(program: impl Fn(&Device) -> Result<()>) {
    for device in [Device::dry("80 GiB").unwrap(), Device::host("2 GiB").unwrap()] {
        program(&device).unwrap_or_else(|error| panic!("{device}: {error}"));
    }
}

fn gradients(module: &dyn Module) -> Result<Vec<Vec<f32>>> {
    module.parameters().iter().map(|it| it.take_grad().unwrap().to_vec()).collect()
}

#[test]
fn a_step_of_adam_has_pytorch_s_bytes_and_no_temporaries() {
    on_both(|device| {
        let model = Sequential::new()
            .then(Linear::new(1024, 2048, device)?)
            .then(Relu)
            .then(Linear::new(2048, 2048, device)?)
            .then(Relu)
            .then(Linear::new(2048, 10, device)?);
        // PyTorch 2.11 on an H200, without its matrix library's workspaces.
        let base = 33 * MIB;
        assert_eq!(device.memory().allocated(), 59_867_648 - base, "model");
        let x = Tensor::randn([256, 1024], device)?;
        let y = model.forward(&x)?;
        assert_eq!(device.memory().allocated(), 65_120_768 - base, "forward");
        let loss = y.sum()?;
        loss.backward()?;
        let base = 65 * MIB;
        assert_eq!(device.memory().allocated(), 119_746_048 - base, "backward");
        let mut adam = Adam::new(model.parameters(), Adam::options())?;
        device.memory().reset_peak_stats();
        adam.step()?;
        assert_eq!(device.memory().allocated(), 170_275_328 - base, "step");
        // PyTorch's default makes one more copy of the model on the way: 195,539,968.
        assert_eq!(device.memory().max_allocated(), 170_275_328 - base, "peak of the step");
        adam.zero_grad(true)?;
        assert_eq!(device.memory().allocated(), 145_010_688 - base, "zero_grad");
        drop(loss);
        Ok(())
    });
}

#[test]
fn a_model_learns() -> Result<()> {
    let device = host();
    device.manual_seed(1);
    let target = Linear::new(8, 1, &device)?;
    let model = Sequential::new()
        .then(Linear::new(8, 32, &device)?)
        .then(Relu)
        .then(Linear::new(32, 1, &device)?);
    let mut adam = Adam::new(model.parameters(), Adam::options().lr(1e-2))?;
    let mut losses = Vec::new();
    for _ in 0..200 {
        let x = Tensor::randn([64, 8], &device)?;
        let loss = model.forward(&x)?.sub(&target.forward(&x)?.detach())?.square()?.mean()?;
        adam.zero_grad(true)?;
        loss.backward()?;
        adam.step()?;
        losses.push(loss.item::<f32>()?);
    }
    assert!(losses[199] < 0.05 * losses[0], "{} to {}", losses[0], losses[199]);
    Ok(())
}

#[test]
fn autocast_saves_what_pytorch_saves() -> Result<()> {
    // After forward and after backward, with and without: PyTorch 2.11 on an H200. The difference
    // to ours is the same workspaces each time.
    let run = |amp: bool| -> Result<[u64; 2]> {
        let device = Device::dry("80 GiB").unwrap();
        let layer = || Ok(Sequential::new().then(Linear::new(2048, 2048, &device)?).then(Relu));
        let model: Sequential = (0..12).map(|_| layer()).collect::<Result<_>>()?;
        let x = Tensor::zeros([8192, 2048], &device)?;
        let dtype = if amp { DType::Bf16 } else { DType::F32 };
        let y = autocast(dtype, || model.forward(&x))?;
        let forward = device.memory().allocated();
        y.to(DType::F32)?.sum()?.backward()?;
        Ok([forward, device.memory().allocated()])
    };
    let workspaces = 66 * MIB;
    assert_eq!(run(false)?.map(|it| it + workspaces), [1_143_046_144, 606_273_536]);
    assert_eq!(run(true)?.map(|it| it + workspaces), [866_222_080, 572_719_104]);
    Ok(())
}

#[test]
fn accumulated_micro_batches_have_the_gradients_of_the_whole_and_less_memory() -> Result<()> {
    let device = host();
    let model = Sequential::new()
        .then(Linear::new(256, 256, &device)?)
        .then(Relu)
        .then(Linear::new(256, 1, &device)?);
    let x = Tensor::randn([4096, 256], &device)?;
    let peak = |batches: usize| -> Result<(u64, Vec<Vec<f32>>)> {
        let before = device.memory().allocated();
        device.memory().reset_peak_stats();
        let rows = 4096 / batches;
        for batch in 0..batches {
            let x = x.narrow(0, batch * rows, rows)?;
            model.forward(&x)?.square()?.mean()?.div(batches as f64)?.backward()?;
        }
        let peak = device.memory().max_allocated() - before;
        Ok((peak, gradients(&model)?))
    };
    let ((whole, expected), (parts, sums)) = (peak(1)?, peak(8)?);
    assert!(parts * 6 < whole, "{parts} of {whole}");
    for (expected, sums) in expected.iter().flatten().zip(sums.iter().flatten()) {
        assert!((expected - sums).abs() < 1e-5, "{expected} {sums}");
    }
    Ok(())
}

#[test]
fn an_activation_in_place_saves_its_copy_and_has_the_same_gradients() -> Result<()> {
    // Bytes of tensors alone.
    let device = Device::host("1 GiB").unwrap();
    let layer = Linear::new(512, 512, &device)?;
    let x = Tensor::randn([512, 512], &device)?;
    let run = |in_place: bool| -> Result<(u64, Vec<Vec<f32>>)> {
        let before = device.memory().allocated();
        device.memory().reset_peak_stats();
        let y = layer.forward(&x)?;
        let y = if in_place {
            y.relu_()?;
            y
        } else {
            y.relu()?
        };
        let peak = device.memory().max_allocated() - before;
        y.sum()?.backward()?;
        Ok((peak, gradients(&layer)?))
    };
    let ((copy, expected), (in_place, same)) = (run(false)?, run(true)?);
    assert_eq!((copy, in_place), (2 * MIB, MIB));
    assert_eq!(same, expected);
    Ok(())
}

#[test]
fn layers_on_two_devices_train_as_on_one() -> Result<()> {
    let device = |id| {
        let options = DeviceOptions { id: DeviceId(id), ..DeviceOptions::default() };
        computing_with("256 MiB", options)
    };
    let train = |one: &Device, two: &Device| -> Result<Vec<f32>> {
        one.manual_seed(3);
        // Made on one device, so that both runs begin alike.
        let (first, model) = (Linear::new(64, 128, one)?, Linear::new(128, 1, one)?);
        let place = |it: &Tensor| it.detach().to_device(two)?.copy()?.requires_grad_(true);
        let bias = model.bias.as_ref().map(place).transpose()?;
        let second = Linear { weight: place(&model.weight)?, bias };
        let parameters = [first.parameters(), second.parameters()].concat();
        let mut sgd = Sgd::new(parameters, Sgd::options(0.1).momentum(0.9))?;
        let x = Tensor::randn([32, 64], one)?;
        let mut losses = Vec::new();
        for _ in 0..5 {
            let hidden = first.forward(&x)?.relu()?.to_device(two)?;
            let loss = second.forward(&hidden)?.square()?.mean()?;
            sgd.zero_grad(true)?;
            loss.backward()?;
            sgd.step()?;
            losses.push(loss.item::<f32>()?);
        }
        let held = |device: &Device| device.memory().allocated() > 0;
        assert!(held(one) && held(two));
        Ok(losses)
    };
    let (one, two) = (device(0), device(1));
    let apart = train(&one, &two)?;
    assert_eq!(apart, train(&one, &one)?);
    assert!(apart[4] < apart[0]);
    Ok(())
}

#[test]
fn a_loss_that_is_summed_has_pytorch_s_bytes_and_is_found() -> Result<()> {
    for item in [false, true] {
        let device = Device::dry("80 GiB").unwrap();
        let layer = Linear::new(1024, 1024, &device)?;
        let mut watch = GrowthWatch::new(&device);
        let mut total: Option<Tensor> = None;
        let mut last = None;
        for _ in 0..20 {
            let x = Tensor::zeros([512, 1024], &device)?;
            let loss = layer.forward(&x)?.square()?.sum()?;
            drop(x);
            if item {
                loss.item::<f64>()?;
            } else {
                total = Some(match total {
                    Some(total) => total.add(&loss)?,
                    None => loss.add(0)?,
                });
            }
            last = Some(loss);
            watch.iteration();
        }
        // PyTorch 2.11 on an H200, with 66 MiB of workspaces.
        let expected = if item { 77_599_232 } else { 157_291_520 };
        assert_eq!(device.memory().allocated() + 66 * MIB, expected, "item: {item}");
        assert_eq!(watch.report().is_empty(), item);
        drop((last, total));
    }
    Ok(())
}

#[test]
fn what_is_alive_says_who_holds_it() -> Result<()> {
    let device = host();
    let layer = Linear::new(64, 64, &device)?;
    let mut adam = Adam::new(vec![layer.weight.clone()], Adam::options())?;
    let x = Tensor::randn([8, 64], &device)?;
    layer.forward(&x)?.sum()?.backward()?;
    adam.step()?;
    let y = layer.forward(&x)?;
    let holders: Vec<Holder> = device.memory().live().iter().map(|it| it.holder()).collect();
    let count = |holder| holders.iter().filter(|it| **it == holder).count();
    assert_eq!(count(Holder::Leaf), 2);
    assert_eq!(count(Holder::Gradient), 2);
    assert_eq!(count(Holder::Optimizer), 2);
    assert_eq!((count(Holder::Graph), count(Holder::Caller)), (1, 1), "x and y");
    let saved: Vec<_> = device.memory().live().into_iter().filter(|it| it.saved > 0).collect();
    assert!(saved.iter().all(|it| it.saved_by.is_some_and(|(name, _)| name == "linear")));
    assert_eq!(y.role(), Role::Temporary);
    Ok(())
}

#[test]
fn a_thread_that_looks_on_changes_no_figure() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    let train = |device: &Device, between: &dyn Fn()| -> Result<_> {
        let model = Sequential::new()
            .then(Linear::new(256, 512, device)?)
            .then(Relu)
            .then(Linear::new(512, 10, device)?);
        for _ in 0..50 {
            let x = Tensor::ones([64, 256], device)?;
            let loss = model.forward(&x)?.square()?.sum()?;
            between();
            loss.backward()?;
            model.parameters().iter().for_each(|it| drop(it.take_grad()));
        }
        drop(model);
        Ok(device.memory().stats())
    };
    let alone = train(&Device::dry("8 GiB").unwrap(), &|| ()).unwrap();
    let device = Device::dry("8 GiB").unwrap();
    let (looks, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let watched = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                drop(device.memory().live());
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Each step is seen while its values are there, and the looking goes on.
        let stats = train(&device, &|| {
            let before = looks.load(Ordering::Relaxed);
            while looks.load(Ordering::Relaxed) < before + 2 {
                std::thread::yield_now();
            }
        });
        over.store(true, Ordering::Relaxed);
        stats
    });
    assert_eq!(watched.unwrap(), alone);
}
