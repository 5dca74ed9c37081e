//! The peaks of whole models, predicted on `dry`, against what PyTorch 2.11 measured on an H200.

use tonnage_tensor::amp::autocast;
use tonnage_tensor::checkpoint::Placement;
use tonnage_tensor::models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use tonnage_tensor::nn::Module;
use tonnage_tensor::optim::{AdamW, Optimizer, Sgd};
use tonnage_tensor::{DType, Device, Result, Tensor};

/// The most that steps allocate, in MiB, once the optimizer has its state.
fn peak(
    device: &Device,
    mut optimizer: impl Optimizer,
    loss: impl Fn() -> Result<Tensor>,
) -> Result<f64> {
    for _ in 0..2 {
        device.memory().reset_peak_stats();
        let loss = loss()?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad(true)?;
    }
    Ok(device.memory().max_allocated() as f64 / f64::from(1 << 20))
}

/// What PyTorch's matrix and convolution libraries take for themselves, which no model can know of, is
/// between 45 and 70 MiB in each of these programs.
#[track_caller]
fn assert_close(predicted: f64, measured: f64) {
    let libraries = measured - predicted;
    assert!((45.0..70.0).contains(&libraries), "{predicted} MiB, and PyTorch {measured}");
}

#[test]
fn gpt_2_s_peaks_are_pytorch_s_without_its_libraries() -> Result<()> {
    for (batch, placement, measured) in [
        (8, Placement::Keep, 8302.8),
        (8, Placement::Each, 5821.4),
        (32, Placement::Keep, 27994.0),
        (32, Placement::Each, 18582.7),
    ] {
        let device = Device::dry("80 GiB").unwrap();
        let config = Gpt2Config::small().vocabulary(50_304).dropout(0.0);
        let model = Gpt2::new(config, &device)?.checkpointed(placement);
        let tokens = Tensor::zeros([batch, 1024], (&device, DType::I64))?;
        let adam = AdamW::new(model.parameters(), AdamW::options())?;
        let step = || autocast(DType::Bf16, || model.loss(&tokens, &tokens));
        let peak = peak(&device, adam, step)?;
        assert_close(peak, measured);
    }
    Ok(())
}

#[test]
fn resnet_50_s_peaks_are_pytorch_s_without_its_libraries() -> Result<()> {
    for (dtype, measured) in [(DType::F32, 2932.4), (DType::Bf16, 1691.0)] {
        let device = Device::dry("80 GiB").unwrap();
        let model = ResNet::new(ResNetConfig::resnet50(), &device)?;
        let images = Tensor::zeros([32, 3, 224, 224], &device)?;
        let kinds = Tensor::zeros([32], (&device, DType::I64))?;
        let sgd = Sgd::new(model.parameters(), Sgd::options(0.1).momentum(0.9))?;
        let step = || autocast(dtype, || model.forward(&images)?.cross_entropy(&kinds));
        let peak = peak(&device, sgd, step)?;
        assert_close(peak, measured);
    }
    Ok(())
}
