//! How fast the `host` kernels are on this machine: bytes or multiplications per second.
//!
//! `cargo run --release -p tonnage-tensor --example rates`

use std::time::{Duration, Instant};

use tonnage_tensor::autograd::no_grad;
use tonnage_tensor::{Device, Result, Tensor};

/// The best of several rounds: other programs only ever make it slower.
fn best(device: &Device, work: impl Fn() -> Result<Tensor>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..7 {
        let start = Instant::now();
        let result = work()?;
        device.synchronize()?;
        best = best.min(start.elapsed());
        drop(result);
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::host("4 GiB")?;
    let n = 4096;
    let x = Tensor::randn([n, n], &device)?;
    let y = Tensor::randn([n, n], &device)?;
    let row = Tensor::randn([n], &device)?;
    let bytes = (n * n * 4) as f64;
    let gigabytes = |name: &str, tensors: f64, work: &dyn Fn() -> Result<Tensor>| -> Result<()> {
        let time = best(&device, work)?;
        println!("{name:24} {:8.2} GB/s", tensors * bytes / time.as_secs_f64() / 1e9);
        Ok(())
    };
    gigabytes("copy", 2.0, &|| x.copy())?;
    gigabytes("add", 3.0, &|| x.add(&y))?;
    gigabytes("add, a row broadcast", 2.0, &|| x.add(&row))?;
    gigabytes("add of a transpose", 3.0, &|| x.add(&y.t()?))?;
    gigabytes("relu", 2.0, &|| x.relu())?;
    gigabytes("tanh", 2.0, &|| x.tanh())?;
    gigabytes("sum", 1.0, &|| x.sum())?;
    gigabytes("sum over rows", 1.0, &|| x.sum_dim(&[0], false))?;
    gigabytes("sum over columns", 1.0, &|| x.sum_dim(&[1], false))?;
    gigabytes("randn", 1.0, &|| Tensor::randn([n, n], &device))?;
    for n in [256usize, 1024, 2048] {
        let (a, b) = (Tensor::randn([n, n], &device)?, Tensor::randn([n, n], &device)?);
        let time = best(&device, || no_grad(|| a.matmul(&b)))?;
        let rate = 2.0 * (n * n * n) as f64 / time.as_secs_f64() / 1e9;
        println!("{:24} {rate:8.2} GFLOP/s", format!("matmul {n}³"));
    }
    let one = Tensor::zeros([1], &device)?;
    let count = 20_000;
    let start = Instant::now();
    let mut sum = one.copy()?;
    for _ in 0..count {
        sum = sum.add(&one)?;
    }
    device.synchronize()?;
    println!(
        "{:24} {:8.2} µs",
        "one operation",
        start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    );
    Ok(())
}
