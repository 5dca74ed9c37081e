//! Document 004, example 2: work is queued, and the caller goes on.
//!
//! Memory is free for reuse as soon as its tensor is dropped, not when the work is done: what is queued later on
//! the same stream runs later. `synchronize` waits for results; it frees nothing.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("004-2")?;
    let x = Tensor::randn([1000, 1000], device)?;
    let y = Tensor::randn([1000, 1000], device)?;
    let z = x.matmul(&y)?;
    notes.at("queued");
    drop((x, y));
    notes.at("dropped, not run yet");
    device.synchronize()?;
    notes.at("synchronized");
    drop(z);
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
