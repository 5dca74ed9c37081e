//! How much of this machine's own matrix-product rate training steps reach on `host`.
//!
//! `cargo run --release -p tonnage-tensor --example steps`, with `--quick` for a smoke test.
//!
//! The rate is that of the matrix library on large square products, the best of several around each
//! case, so that other programs slow both sides alike; a step is forward, backward and optimizer. Its arithmetic is counted as that of its products alone, three
//! times the forward's, so that everything else shows as what is missing to 100 %.

use std::time::{Duration, Instant};

use tonnage_tensor::autograd::no_grad;
use tonnage_tensor::models::{DeepNet, Gpt2, Gpt2Config, ResNet, ResNetConfig, mlp};
use tonnage_tensor::nn::Module;
use tonnage_tensor::optim::{AdamW, Optimizer};
use tonnage_tensor::{Device, Result, Tensor};

/// The best of several rounds: other programs only ever make it slower.
fn best(device: &Device, rounds: u32, mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        work()?;
        device.synchronize()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

/// Multiplications and additions of the products of one forward.
type Flops = f64;

/// A program, its parameters, and the arithmetic of its forward.
struct Case<'a> {
    name: String,
    parameters: Vec<Tensor>,
    flops: Flops,
    loss: Box<dyn Fn() -> Result<Tensor> + 'a>,
}

fn layers(batch: usize, sizes: &[usize]) -> Flops {
    sizes.windows(2).map(|pair| 2.0 * (batch * pair[0] * pair[1]) as f64).sum()
}

fn of_mlp(device: &Device, batch: usize) -> Result<Case<'_>> {
    let sizes = [1024, 2048, 2048, 10];
    let model = mlp(&sizes, device)?;
    let x = Tensor::randn([batch, sizes[0]], device)?;
    Ok(Case {
        name: format!("mlp, batch {batch}"),
        parameters: model.parameters(),
        flops: layers(batch, &sizes),
        loss: Box::new(move || model.forward(&x)?.square()?.mean()),
    })
}

fn of_deepnet(device: &Device, batch: usize) -> Result<Case<'_>> {
    let model = DeepNet::new(512, 20, device)?;
    let x = Tensor::randn([batch, 512], device)?;
    Ok(Case {
        name: format!("deepnet, batch {batch}"),
        parameters: model.parameters(),
        flops: layers(batch, &[512; 41]),
        loss: Box::new(move || model.forward(&x)?.square()?.mean()),
    })
}

fn of_gpt2(device: &Device, config: Gpt2Config, batch: usize) -> Result<Case<'_>> {
    let (rows, width, context) = (batch * config.context, config.width, config.context);
    let model = Gpt2::new(config, device)?;
    let tokens = Tensor::randint(0, config.vocabulary as i64, [batch, context], device)?;
    // Each block: queries, keys, values and what joins them; two layers of four times the width; half of
    // all scores, once for the scores and once for the values.
    let block = 24.0 * (rows * width * width) as f64 + 2.0 * (rows * context * width) as f64;
    let scores = 2.0 * (rows * width * config.vocabulary) as f64;
    Ok(Case {
        name: format!("gpt2 {} layers of {width}, batch {batch}", config.layers),
        parameters: model.parameters(),
        flops: config.layers as f64 * block + scores,
        loss: Box::new(move || model.loss(&tokens, &tokens)),
    })
}

fn of_resnet(device: &Device, batch: usize, size: usize) -> Result<Case<'_>> {
    let model = ResNet::new(ResNetConfig::resnet18(), device)?;
    let images = Tensor::randn([batch, 3, size, size], device)?;
    let kinds = Tensor::randint(0, 1000, [batch], device)?;
    Ok(Case {
        name: format!("resnet18, batch {batch} of {size}²"),
        parameters: model.parameters(),
        // Its convolutions on an image of 224², in proportion.
        flops: 3.628e9 * (batch * size * size) as f64 / (224.0 * 224.0),
        loss: Box::new(move || model.forward(&images)?.cross_entropy(&kinds)),
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quick = std::env::args().any(|it| it == "--quick");
    let (device, rounds) = (Device::host("8 GiB")?, if quick { 1 } else { 5 });
    let n = if quick { 128 } else { 2048 };
    let (a, b) = (Tensor::randn([n, n], &device)?, Tensor::randn([n, n], &device)?);
    let product = || -> Result<f64> {
        let time = best(&device, rounds, || no_grad(|| a.matmul(&b)).map(drop))?;
        Ok(2.0 * (n * n * n) as f64 / time.as_secs_f64() / 1e9)
    };
    let mut rate = product()?;
    let config =
        |layers, width, heads, context| Gpt2Config::bytes(layers, width, heads).context(context);
    type Make<'a> = Box<dyn Fn() -> Result<Case<'a>> + 'a>;
    let cases: [Make<'_>; 4] = match quick {
        true => [
            Box::new(|| of_mlp(&device, 4)),
            Box::new(|| of_deepnet(&device, 2)),
            Box::new(|| of_gpt2(&device, config(1, 32, 2, 16), 1)),
            Box::new(|| of_resnet(&device, 2, 32)),
        ],
        false => [
            Box::new(|| of_mlp(&device, 256)),
            Box::new(|| of_deepnet(&device, 512)),
            Box::new(|| of_gpt2(&device, config(4, 256, 8, 256), 8)),
            Box::new(|| of_resnet(&device, 8, 112)),
        ],
    };
    for case in cases {
        let case = case()?;
        let mut optimizer = AdamW::new(case.parameters, AdamW::options())?;
        let mut step = || {
            let loss = (case.loss)()?;
            optimizer.zero_grad(true)?;
            loss.backward()?;
            optimizer.step()
        };
        // The first allocates.
        step()?;
        let time = best(&device, rounds, step)?.as_secs_f64();
        let reached = 3.0 * case.flops / time / 1e9;
        let after = product()?;
        println!(
            "{:34} {reached:6.1} of {:6.1} GFLOP/s: {:3.0} %, {:7.1} ms a step",
            case.name,
            rate.max(after),
            100.0 * reached / rate.max(after),
            1e3 * time
        );
        rate = after;
    }
    Ok(())
}
