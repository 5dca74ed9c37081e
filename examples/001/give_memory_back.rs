//! Document 001, example 1: dropping makes memory free, emptying the cache makes it the device's again.
//!
//! (The document calls `torch.empty_cache`, which does not exist; it is `torch.cuda.empty_cache`.)

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("001-1")?;
    let x = Tensor::randn([1024, 1024, 1024], device)?;
    let y = x.sin()?;
    notes.at("y");
    drop((x, y));
    notes.at("del");
    notes.empty_cache();
    notes.at("empty_cache");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run_dry(program)
}
