//! Models that learn: their sizes, their requests, their loss curves, and what each technique saves in
//! them.

use std::path::PathBuf;

use tonnage_tensor::amp::autocast;
use tonnage_tensor::autograd::no_grad;
use tonnage_tensor::checkpoint::Placement;
use tonnage_tensor::models::{DeepNet, Gpt2, Gpt2Config, ResNet, ResNetConfig, mlp};
use tonnage_tensor::nn::Module;
use tonnage_tensor::offload::Offload;
use tonnage_tensor::optim::{AdamW, Optimizer, Sgd};
use tonnage_tensor::{DType, Device, Result, Tensor, conformance, safetensors};

use crate::computing;

/// The beginning of this project's description of its architecture, as it once was.
const TEXT: &[u8] = include_bytes!("../data/text.txt");

fn host() -> Device {
    computing("1 GiB")
}

fn tiny() -> Gpt2Config {
    Gpt2Config::bytes(2, 64, 4).context(64)
}

fn small_resnet() -> ResNetConfig {
    ResNetConfig::resnet18().blocks([1, 1, 1, 1]).width(8).classes(4).small_images()
}

#[test]
fn models_have_as_many_parameters_as_those_they_are_named_after() -> Result<()> {
    let device = Device::dry("80 GiB").unwrap();
    for (config, count) in [
        (Gpt2Config::small(), 124_439_808),
        (Gpt2Config::medium(), 354_823_168),
        (Gpt2Config::large(), 774_030_080),
        (Gpt2Config::xl(), 1_557_611_200),
    ] {
        assert_eq!(Gpt2::new(config, &device)?.num_parameters(), count, "{config:?}");
    }
    for (config, count) in [
        (ResNetConfig::resnet18(), 11_689_512),
        (ResNetConfig::resnet34(), 21_797_672),
        (ResNetConfig::resnet50(), 25_557_032),
        (ResNetConfig::resnet101(), 44_549_160),
        (ResNetConfig::resnet152(), 60_192_808),
    ] {
        assert_eq!(ResNet::new(config, &device)?.num_parameters(), count, "{config:?}");
    }
    assert_eq!(mlp(&[4, 3, 2], &device)?.num_parameters(), 23);
    assert!(mlp(&[4], &device).unwrap_err().to_string().contains("two sizes"));
    assert_eq!(DeepNet::new(8, 3, &device)?.num_parameters(), 3 * 2 * (8 * 8 + 8));
    Ok(())
}

#[test]
fn names_are_those_of_the_files_that_others_publish() -> Result<()> {
    let device = Device::dry("1 GiB").unwrap();
    let names = |model: &dyn Module| -> Vec<String> {
        model.state_dict().into_iter().map(|(name, _)| name).collect()
    };
    let gpt2 = names(&Gpt2::new(tiny(), &device)?);
    assert_eq!(gpt2[..4], ["wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias"]);
    for name in ["h.1.attn.c_attn.weight", "h.1.mlp.c_proj.bias", "ln_f.bias"] {
        assert!(gpt2.iter().any(|it| it == name), "{name} in {gpt2:?}");
    }
    let resnet = names(&ResNet::new(ResNetConfig::resnet50(), &device)?);
    assert_eq!(resnet.len(), 320);
    for name in ["bn1.running_var", "layer1.0.conv3.weight", "layer4.0.downsample.1.bias"] {
        assert!(resnet.iter().any(|it| it == name), "{name} in {resnet:?}");
    }
    assert_eq!(names(&DeepNet::new(8, 1, &device)?)[2], "blocks.0.net.2.weight");
    Ok(())
}

#[test]
fn first_values_are_gpt_2_s() -> Result<()> {
    let model = Gpt2::new(tiny(), &host())?;
    for (name, parameter) in model.named_parameters() {
        let expected = match &*name {
            name if name.ends_with("bias") => 0.0,
            name if name.contains("ln_") => 0.0,
            name if name.ends_with("c_proj.weight") => 0.01,
            _ => 0.02,
        };
        let numbers = parameter.to_vec::<f32>()?;
        let mean = numbers.iter().map(|it| f64::from(*it)).sum::<f64>() / numbers.len() as f64;
        let square = numbers.iter().map(|it| (f64::from(*it) - mean).powi(2)).sum::<f64>();
        let measured = (square / numbers.len() as f64).sqrt();
        assert!((measured - expected).abs() < 0.1 * expected + 1e-9, "{name}: {measured}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result<()> {
    let device = Device::dry("1 GiB").unwrap();
    let error = Gpt2::new(Gpt2Config::bytes(1, 10, 3), &device).unwrap_err().to_string();
    assert!(error.contains("a width of 10 is not 3 equal heads"), "{error}");
    let model = Gpt2::new(tiny(), &device)?;
    let long = Tensor::zeros([1, 65], (&device, DType::I64))?;
    let error = model.forward(&long).unwrap_err().to_string();
    assert!(error.contains("at most 64 tokens") && error.contains("int64[1, 65]"), "{error}");
    Ok(())
}

/// Rows of text and, for each token, the one that follows. The places depend on the step alone.
fn text(device: &Device, batch: usize, rows: usize, step: usize) -> Result<[Tensor; 2]> {
    let at = |row: usize| (step * 7919 + row * 1_000_003) % (TEXT.len() - rows - 1);
    let tokens = |shift: usize| {
        let row = |row: usize| TEXT[at(row) + shift..][..rows].iter().map(|it| i64::from(*it));
        let tokens: Vec<i64> = (0..batch).flat_map(row).collect();
        Tensor::from_slice(&tokens, [batch, rows], device)
    };
    Ok([tokens(0)?, tokens(1)?])
}

/// Pictures of four kinds (stripes lying and standing, squares, a disc) with noise, and their kinds.
fn pictures(device: &Device, batch: usize) -> Result<[Tensor; 2]> {
    let pixel = |kind: usize, row: usize, column: usize| -> f32 {
        let on = match kind {
            0 => (row / 2).is_multiple_of(2),
            1 => (column / 2).is_multiple_of(2),
            2 => (row / 4 + column / 4).is_multiple_of(2),
            _ => row.abs_diff(8).pow(2) + column.abs_diff(8).pow(2) < 30,
        };
        if on { 1.0 } else { -1.0 }
    };
    let pixels: Vec<f32> =
        (0..batch * 3 * 256).map(|at| pixel(at / 768 % 4, at / 16 % 16, at % 16)).collect();
    let kinds: Vec<i64> = (0..batch).map(|image| (image % 4) as i64).collect();
    let clean = Tensor::from_slice(&pixels, [batch, 3, 16, 16], device)?;
    let noisy = clean.add(&Tensor::randn([batch, 3, 16, 16], device)?)?;
    Ok([noisy, Tensor::from_slice(&kinds, [batch], device)?])
}

/// The loss of who knows how frequent each byte of the text is, and nothing else.
fn by_frequencies() -> f32 {
    let mut counts = [0f32; 256];
    TEXT.iter().for_each(|byte| counts[usize::from(*byte)] += 1.0);
    let shares = counts.iter().filter(|it| **it > 0.0).map(|it| it / TEXT.len() as f32);
    shares.map(|it| -it * it.ln()).sum()
}

fn gpt2_curve() -> Result<Vec<f32>> {
    let device = host();
    device.manual_seed(1);
    let config = Gpt2Config::bytes(2, 128, 4).context(32).dropout(0.0);
    let model = Gpt2::new(config, &device)?;
    let mut optimizer = AdamW::new(model.parameters(), AdamW::options().lr(2e-3))?;
    let step = |step| {
        let [tokens, targets] = text(&device, 8, 32, step)?;
        let loss = model.loss(&tokens, &targets)?;
        optimizer.zero_grad(true)?;
        loss.backward()?;
        optimizer.step()?;
        loss.item()
    };
    (0..150).map(step).collect()
}

fn resnet_curve() -> Result<Vec<f32>> {
    let device = host();
    device.manual_seed(2);
    let model = ResNet::new(small_resnet(), &device)?;
    let mut optimizer = Sgd::new(model.parameters(), Sgd::options(0.05).momentum(0.9))?;
    let step = |_| {
        let [images, kinds] = pictures(&device, 16)?;
        let loss = model.forward(&images)?.cross_entropy(&kinds)?;
        optimizer.zero_grad(true)?;
        loss.backward()?;
        optimizer.step()?;
        loss.item()
    };
    let losses = (0..40).map(step).collect::<Result<Vec<f32>>>()?;
    model.eval();
    let [images, kinds] = pictures(&device, 64)?;
    let guesses = no_grad(|| model.forward(&images))?.argmax(1, false)?.to_vec::<i64>()?;
    let kinds = kinds.to_vec::<i64>()?;
    let right = guesses.iter().zip(&kinds).filter(|(a, b)| a == b).count();
    assert!(right >= 60, "{right} of 64 pictures it has not seen");
    Ok(losses)
}

fn curves() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/curves.json")
}

/// The curve as it was kept; sums in another order, as on a machine with other vectors, move it a
/// little, and more as it goes on.
#[track_caller]
fn assert_kept(name: &str, losses: &[f32]) {
    let text = std::fs::read_to_string(curves()).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let kept: Vec<f32> =
        file[name].as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect();
    assert_eq!(kept.len(), losses.len(), "{name}");
    for (step, (kept, now)) in kept.iter().zip(losses).enumerate() {
        let tolerance = if step < 5 { 1e-3 } else { 0.1 } * kept.abs().max(0.3);
        assert!((kept - now).abs() < tolerance, "{name}, step {step}: {now}, kept: {kept}");
    }
}

#[test]
fn gpt_2_learns_to_write_like_this_project() -> Result<()> {
    let losses = gpt2_curve()?;
    assert!((losses[0] - 256f32.ln()).abs() < 0.1, "as good as guessing at first: {}", losses[0]);
    let last = losses[140..].iter().sum::<f32>() / 10.0;
    let frequencies = by_frequencies();
    assert!(last < frequencies - 0.3, "{last}, by frequencies {frequencies}: {losses:?}");
    assert_kept("gpt2", &losses);
    Ok(())
}

#[test]
fn a_small_resnet_learns_to_tell_pictures_apart() -> Result<()> {
    let losses = resnet_curve()?;
    let last = losses[30..].iter().sum::<f32>() / 10.0;
    assert!(last < 0.1 * losses[0], "{losses:?}");
    assert_kept("resnet", &losses);
    Ok(())
}

#[test]
#[ignore = "writes tests/data/curves.json anew"]
fn curves_are_kept() -> Result<()> {
    let curves_now = serde_json::json!({ "gpt2": gpt2_curve()?, "resnet": resnet_curve()? });
    std::fs::write(curves(), format!("{curves_now:#}\n")).unwrap();
    Ok(())
}

/// The gradients of all parameters, after which they have none.
fn gradients(model: &dyn Module) -> Result<Vec<f32>> {
    let parameters = model.parameters();
    let each = parameters.iter().map(|it| it.take_grad().unwrap().to_vec::<f32>());
    Ok(each.collect::<Result<Vec<_>>>()?.concat())
}

/// How far apart two lists of gradients are, relative to their size.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let square = |it: f32| it * it;
    let apart: f32 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (apart / a.iter().copied().map(square).sum::<f32>()).sqrt()
}

#[test]
fn each_technique_saves_bytes_and_keeps_the_gradients_of_gpt_2() -> Result<()> {
    // Bytes of tensors alone.
    let device = Device::host("1 GiB").unwrap();
    let model = Gpt2::new(Gpt2Config::bytes(6, 64, 4).context(64).dropout(0.0), &device)?;
    let [tokens, targets] = text(&device, 8, 64, 0)?;
    let start = device.memory().allocated();
    // Gradients, what the forward leaves, and the peak of both ways.
    type Step<'a> = &'a dyn Fn() -> Result<Tensor>;
    let measured = |forward: Step<'_>| -> Result<(Vec<f32>, u64, u64)> {
        device.memory().reset_peak_stats();
        let loss = forward()?;
        let kept = device.memory().allocated() - start;
        loss.backward()?;
        let peak = device.memory().max_allocated() - start;
        drop(loss);
        Ok((gradients(&model)?, kept, peak))
    };
    let (plain, kept, peak) = measured(&|| model.loss(&tokens, &targets))?;

    for placement in [Placement::Each, Placement::Every(2), Placement::SquareRoot] {
        let model = model.clone().checkpointed(placement);
        let (same, less, lower) = measured(&|| model.loss(&tokens, &targets))?;
        assert_eq!(same, plain, "{placement:?}");
        assert!(less * 3 < kept * 2 && lower < peak, "{placement:?}: {less} of {kept}");
    }

    let offload = Offload::new(&device)?.min_bytes(4096);
    let (same, less, _) = measured(&|| offload.run(|| model.loss(&tokens, &targets)))?;
    assert_eq!(same, plain, "offload");
    assert!(less * 10 < kept, "offload: {less} of {kept}");

    let (close, less, lower) =
        measured(&|| autocast(DType::Bf16, || model.loss(&tokens, &targets)))?;
    let apart = difference(&plain, &close);
    assert!(apart < 0.05, "autocast: {apart}");
    assert!(less < kept && lower < peak, "autocast: {less} of {kept}, {lower} of {peak}");

    let (same, _, lower) = measured(&|| {
        let part = |it: &Tensor, place: usize| it.narrow(0, place * 2, 2)?.contiguous();
        let loss = |place| model.loss(&part(&tokens, place)?, &part(&targets, place)?)?.div(4.0);
        (0..3).try_for_each(|place| loss(place)?.backward())?;
        loss(3)
    })?;
    let apart = difference(&plain, &same);
    assert!(apart < 1e-5, "accumulation: {apart}");
    assert!(lower * 2 < peak, "accumulation: {lower} of {peak}");
    Ok(())
}

/// Some elements of each parameter, moved a little: the loss moves by the gradient times that.
fn assert_gradients(model: &dyn Module, loss: impl Fn() -> Result<Tensor>) -> Result<()> {
    loss()?.backward()?;
    for (name, parameter) in model.named_parameters() {
        let gradient = parameter.take_grad().unwrap().reshape([parameter.numel()])?;
        let flat = parameter.detach().view([parameter.numel()])?;
        for index in [0, parameter.numel() / 2, parameter.numel() - 1] {
            // So small that hardly any of the thousands of numbers before a `relu` changes its sign.
            let (computed, step) = (gradient.select(0, index)?.item::<f64>()?, 1e-7);
            let moved = |by: f64| -> Result<f64> {
                flat.select(0, index)?.add_(by)?;
                let loss = no_grad(&loss)?.item::<f64>();
                flat.select(0, index)?.sub_(by)?;
                loss
            };
            let difference = (moved(step)? - moved(-step)?) / (2.0 * step);
            let close = (computed - difference).abs() < 1e-5 * computed.abs().max(1.0);
            assert!(close, "{name}, element {index}: {computed}, difference {difference}");
        }
    }
    Ok(())
}

#[test]
fn gradients_of_whole_models_are_the_finite_differences() -> Result<()> {
    let device = host();
    let double = (&device, DType::F64);
    let gpt2 = Gpt2::new(Gpt2Config::bytes(2, 12, 3).context(8).dropout(0.0), double)?;
    let [tokens, targets] = text(&device, 3, 8, 0)?;
    assert_gradients(&gpt2, || gpt2.loss(&tokens, &targets))?;
    for bottleneck in [false, true] {
        let mut config = small_resnet().width(4);
        config.bottleneck = bottleneck;
        let resnet = ResNet::new(config, double)?;
        let [images, kinds] = pictures(&device, 4)?;
        let images = images.to(DType::F64)?;
        assert_gradients(&resnet, || resnet.forward(&images)?.cross_entropy(&kinds))?;
    }
    Ok(())
}

#[test]
fn a_model_comes_back_from_its_file() -> Result<()> {
    let (device, folder) = (host(), tempfile::tempdir().unwrap());
    let path = folder.path().join("resnet.safetensors");
    let [model, other] = [(); 2].map(|()| ResNet::new(small_resnet(), &device));
    let (model, other) = (model?, other?);
    let [images, _] = pictures(&device, 4)?;
    model.forward(&images)?;
    safetensors::save(&path, &model.state_dict())?;
    safetensors::File::open(&path)?.load_into(&other)?;
    model.eval();
    other.eval();
    let scores = |model: &ResNet| no_grad(|| model.forward(&images))?.to_vec::<f32>();
    assert_eq!(scores(&model)?, scores(&other)?);
    Ok(())
}

conformance!(steps_of_gpt_2, |device| {
    let model = Gpt2::new(tiny(), device)?.checkpointed(Placement::Every(1));
    // Without a large eps, the sign of a gradient that is only rounding would be a step.
    let mut optimizer = AdamW::new(model.parameters(), AdamW::options().eps(1e-3))?;
    let tokens = Tensor::zeros([2, 64], (device, DType::I64))?;
    for dtype in [DType::F32, DType::Bf16] {
        autocast(dtype, || model.loss(&tokens, &tokens))?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad(true)?;
    }
    Ok(model.parameters())
});

conformance!(steps_of_resnets, |device| {
    for bottleneck in [false, true] {
        let mut config = small_resnet();
        config.bottleneck = bottleneck;
        let model = ResNet::new(config, device)?;
        let mut optimizer = Sgd::new(model.parameters(), Sgd::options(0.1).momentum(0.9))?;
        let (images, kinds) =
            (Tensor::zeros([2, 3, 16, 16], device)?, Tensor::zeros([2], (device, DType::I64))?);
        for dtype in [DType::F32, DType::Bf16] {
            let loss = autocast(dtype, || model.forward(&images)?.cross_entropy(&kinds))?;
            loss.backward()?;
            optimizer.step()?;
            optimizer.zero_grad(true)?;
        }
    }
    let model = ResNet::new(ResNetConfig::resnet18().width(4).classes(3), device)?;
    Ok(vec![model.forward(&Tensor::zeros([2, 3, 64, 64], device)?)?])
});
