//! Bytes at every point of small programs, against what PyTorch 2.11 showed on an H200.
//!
//! PyTorch's figures contain workspaces of its matrix library, which belong to that device: 32 MiB from
//! the first product on, 1 MiB from the first product with a bias on, and 32 MiB more in a backward,
//! whose thread has a library handle of its own. Here they are taken off.

use tonnage_tensor::{Device, Result, Tensor};

const MIB: u64 = 1 << 20;

/// Each program runs on both devices.
fn on_both(program: impl Fn(&Device) -> Result<()>) {
    for device in [Device::dry("80 GiB").unwrap(), Device::host("2 GiB").unwrap()] {
        program(&device).unwrap_or_else(|error| panic!("{device}: {error}"));
    }
}

fn allocated_and_peak(device: &Device) -> (u64, u64) {
    (device.memory().allocated(), device.memory().max_allocated())
}

#[test]
fn a_sum_of_leaves_copies_the_gradient_for_each() {
    on_both(|device| {
        let a = Tensor::randn([10, 10], device)?.requires_grad_(true)?;
        let b = Tensor::randn([10, 10], device)?.requires_grad_(true)?;
        let c = a.add(&b)?;
        let loss = c.sum()?;
        let base = 32 * MIB;
        assert_eq!(allocated_and_peak(device), (33_556_480 - base, 33_556_480 - base));
        loss.backward()?;
        assert_eq!(allocated_and_peak(device), (33_557_504 - base, 33_558_016 - base));
        drop((c, loss));
        assert_eq!(device.memory().allocated(), 33_556_480 - base);
        Ok(())
    });
}

/// Weight and bias of a layer, as the module will make them.
fn layer(input: usize, output: usize, device: &Device) -> Result<[Tensor; 2]> {
    let weight = Tensor::randn([output, input], device)?.requires_grad_(true)?;
    Ok([weight, Tensor::zeros([output], device)?.requires_grad_(true)?])
}

#[test]
fn a_training_step_of_three_layers_has_pytorch_s_bytes_at_every_point() {
    on_both(|device| {
        let layers =
            [layer(1024, 2048, device)?, layer(2048, 2048, device)?, layer(2048, 10, device)?];
        let base = 33 * MIB;
        assert_eq!(device.memory().allocated(), 59_867_648 - base, "model");
        let x = Tensor::randn([256, 1024], device)?;
        assert_eq!(device.memory().allocated(), 60_916_224 - base, "input");
        let mut h = x.clone();
        for [weight, bias] in &layers[..2] {
            h = h.linear(weight, Some(bias))?.relu()?;
        }
        let y = h.linear(&layers[2][0], Some(&layers[2][1]))?;
        drop(h);
        assert_eq!(allocated_and_peak(device), (65_120_768 - base, 67_207_680 - base), "forward");
        let loss = y.sum()?;
        loss.backward()?;
        let base = 65 * MIB;
        assert_eq!(
            allocated_and_peak(device),
            (119_746_048 - base, 121_843_712 - base),
            "backward"
        );
        Ok(())
    });
}

#[test]
fn twenty_residual_blocks_have_pytorch_s_bytes() {
    on_both(|device| {
        let blocks = (0..20)
            .map(|_| Ok([layer(512, 512, device)?, layer(512, 512, device)?]))
            .collect::<Result<Vec<_>>>()?;
        let x = Tensor::randn([128, 512], device)?;
        let start = device.memory().allocated();
        assert_eq!(start % MIB, 110_444_544 % MIB, "model and input, up to workspaces");
        let mut y = x.clone();
        for [first, second] in &blocks {
            let h = y.linear(&first[0], Some(&first[1]))?.relu()?;
            let h = h.linear(&second[0], Some(&second[1]))?.relu()?;
            y = h.add(&y)?;
        }
        assert_eq!(device.memory().allocated() - start, 126_173_184 - 110_444_544, "forward");
        y.sum()?.backward()?;
        let grown = device.memory().allocated() - start;
        assert_eq!(grown, 152_731_648 - 110_444_544, "backward");
        let peak = device.memory().max_allocated() - start;
        assert_eq!(peak, 152_994_816 - 110_444_544, "peak");
        Ok(())
    });
}
