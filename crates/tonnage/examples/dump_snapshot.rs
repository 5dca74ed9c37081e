//! Allocates on a device for a while and dumps what happened, for PyTorch's tools to look at.
//!
//! ```text
//! cargo run -p tonnage --example dump_snapshot -- dry snapshot.pickle
//! ```

use std::error::Error;
use std::process::ExitCode;

use tonnage::memory::{Device, RecordOptions};

const USAGE: &str = "usage: dump_snapshot dry|host|cuda:N FILE";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, path] = &*arguments else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(name, path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, path: &str) -> Result<(), Box<dyn Error>> {
    let device = match name.strip_prefix("cuda:") {
        Some(ordinal) => Device::cuda(ordinal.parse().map_err(|_| USAGE)?)?,
        None if name == "host" => Device::host("4 GiB")?,
        None if name == "dry" => Device::dry("4 GiB")?,
        None => return Err(USAGE.into()),
    };
    device.memory().record_history(Some(RecordOptions::default()));
    work(&device)?;
    device.memory().dump_snapshot(path)?;
    println!("{}", device.memory().summary());
    Ok(())
}

/// Steps like those of a training: weights that stay, activations that come and go, a stream beside,
/// and at the end a request that no device serves.
fn work(device: &Device) -> Result<(), Box<dyn Error>> {
    let weights = (0..24)
        .map(|layer| device.allocate((layer % 5 + 1) << 19))
        .collect::<Result<Vec<_>, _>>()?;
    let copies = device.create_stream()?;
    for step in 0..200_u64 {
        let mut activations = Vec::new();
        for layer in 0..24 {
            activations.push(device.allocate(1000 + layer * (40_000 + step * 700))?);
        }
        let batch = device.allocate_on(3 << 20, copies.id())?;
        batch.record_stream(copies.id());
        while activations.pop().is_some() {
            drop(device.allocate(100_000 + step)?);
        }
    }
    if device.allocate(1 << 40).is_ok() {
        return Err("a tebibyte was served".into());
    }
    drop(weights);
    // What is live when the snapshot is taken.
    std::mem::forget(device.allocate(5 << 20)?);
    std::mem::forget(device.allocate(700)?);
    Ok(())
}
