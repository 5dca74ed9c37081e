//! Document 002, example 1: `max_split_size_mb`, and why it changes nothing here.
//!
//! The setting is about blocks *larger* than it: they are not split, and not handed to smaller requests.
//! Nothing in this program reaches 512 MiB.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("002-1")?;
    let a = Tensor::randn([1000, 1000], device)?;
    let b = Tensor::randn([1000, 1000], device)?;
    let _c = a.matmul(&b)?;
    notes.at("matmul");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
