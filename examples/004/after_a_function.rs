//! Document 004, example 1: what a function allocated is free when it returns, and reserved until asked for.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

fn multiply(device: &Device, notes: &mut Notes) -> Result<()> {
    let x = Tensor::randn([10_000, 10_000], device)?;
    let y = Tensor::randn([10_000, 10_000], device)?;
    let _z = x.matmul(&y)?;
    notes.at("matmul");
    Ok(())
}

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("004-1")?;
    multiply(device, notes)?;
    notes.at("returned");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run_dry(program)
}
