//! Document 003, the caching allocator: allocated, reserved, and the cache between them.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-cache")?;
    let _kept = Tensor::zeros([1 << 20], device)?;
    drop(Tensor::zeros([6 << 20], device)?);
    let memory = device.memory();
    let cached = memory.reserved() - memory.allocated();
    assert!(cached >= 24 << 20, "at least what was dropped");
    notes.say(&format!("{cached} bytes are cached"));
    notes.at("cached");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
