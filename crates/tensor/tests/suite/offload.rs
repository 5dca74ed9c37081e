//! Offload: the same gradients, with the saved values in host memory.

use tonnage_tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage_tensor::offload::Offload;
use tonnage_tensor::{Complex64, DType, Device, Result, Tensor};

use crate::computing;

const TENSOR: u64 = 512 * 512 * 4;

fn chain(device: &Device) -> Result<Sequential> {
    let layer = || Ok(Sequential::new().then(Linear::new(512, 512, device)?).then(Relu));
    (0..8).map(|_| layer()).collect()
}

fn gradients(model: &Sequential) -> Result<Vec<Vec<f32>>> {
    model.parameters().iter().map(|it| it.take_grad().unwrap().to_vec()).collect()
}

#[test]
fn gradients_are_the_same_and_the_forward_keeps_nothing_on_the_device() -> Result<()> {
    for device in [Device::host("1 GiB").unwrap(), Device::dry("1 GiB").unwrap()] {
        let model = chain(&device)?;
        let x = Tensor::randn([512, 512], &device)?;
        let before = device.memory().allocated();
        let loss = model.forward(&x)?.sum()?;
        let kept = device.memory().allocated() - before;
        assert_eq!(kept, 8 * TENSOR + 512, "each relu's result");
        loss.backward()?;
        drop(loss);
        let expected = gradients(&model)?;

        let offload = Offload::new(&device)?;
        let loss = offload.run(|| model.forward(&x)?.sum())?;
        assert_eq!(device.memory().allocated() - before, 512, "only the loss");
        let pinned = device.pinned().stats();
        assert!(pinned.in_use.current >= 8 * TENSOR, "each value once, and x: {pinned:?}");
        loss.backward()?;
        drop(loss);
        assert_eq!(gradients(&model)?, expected, "on {device}");
        assert_eq!(device.memory().allocated(), before);
    }
    Ok(())
}

#[test]
fn values_come_back_a_few_at_a_time() -> Result<()> {
    let device = Device::dry("1 GiB").unwrap();
    let model = chain(&device)?;
    // Large beside the gradients, so that the peak is where values come back.
    let x = Tensor::zeros([16 * 512, 512], &device)?;
    let peak = |ahead: usize| -> Result<u64> {
        let before = device.memory().allocated();
        let offload = Offload::new(&device)?.ahead(ahead);
        let loss = offload.run(|| model.forward(&x)?.sum())?;
        device.memory().reset_peak_stats();
        loss.backward()?;
        model.zero_grad();
        Ok(device.memory().max_allocated() - before)
    };
    let (none, two, all) = (peak(0)?, peak(2)?, peak(100)?);
    assert!(none < two && two < all, "{none} {two} {all}");
    assert!(all - two >= 3 * 16 * TENSOR, "{two} {all}");
    Ok(())
}

#[test]
fn small_values_and_parameters_stay() -> Result<()> {
    let device = computing("64 MiB");
    let x = Tensor::randn([10], &device)?.requires_grad_(true)?;
    let loss = Offload::new(&device)?.run(|| x.sin()?.exp()?.sum())?;
    assert_eq!(device.pinned().stats().in_use.current, 0);
    loss.backward()?;
    let all = Offload::new(&device)?.min_bytes(0);
    all.run(|| x.sin()?.exp()?.sum())?.backward()?;
    Ok(())
}

/// A value and another view of its memory are two values, though they have storage and version in common.
#[test]
fn views_of_one_storage_come_back_as_what_each_shows() -> Result<()> {
    let device = computing("64 MiB");
    type Program = fn(&Tensor) -> Result<Tensor>;
    let programs: [(&str, Program); 4] = [
        ("conjugates", |z| z.mul(&z.conj()?)),
        ("conjugates first", |z| z.conj()?.mul(z)),
        ("transposed", |z| z.mul(&z.t()?)),
        ("another offset", |z| z.narrow(0, 0, 2)?.mul(&z.narrow(0, 2, 2)?)),
    ];
    for (what, program) in programs {
        let gradient = |offload: Option<Offload>| -> Result<Vec<Complex64>> {
            device.manual_seed(3);
            let x = Tensor::randn([4, 4], (&device, DType::Complex64))?.requires_grad_(true)?;
            // A result, since leaves stay.
            let forward = || program(&x.mul(2.0)?);
            let y = match &offload {
                Some(offload) => offload.run(forward)?,
                None => forward()?,
            };
            let ones = Tensor::ones(y.shape(), (&device, DType::Complex64))?;
            y.backward_with(Some(&ones), Default::default())?;
            x.grad().unwrap().to_vec()
        };
        let expected = gradient(None)?;
        for offload in [Offload::in_order(&device), Offload::new(&device)?] {
            assert_eq!(gradient(Some(offload.min_bytes(0)))?, expected, "{what}");
        }
    }
    Ok(())
}
