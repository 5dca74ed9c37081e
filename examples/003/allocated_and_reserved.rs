//! Document 003, the caching allocator: allocated, reserved, and the cache between them.

use tonnage_examples::Notes;
use tonnage_tensor::{Device, Result, Tensor};

/// The program.
///
/// # Errors
///
/// If there is no memory.
pub fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-cache")?;
    let _kept = Tensor::zeros([1 << 20], device)?;
    drop(Tensor::zeros([6 << 20], device)?);
    let memory = device.memory();
    let cached = memory.reserved() - memory.allocated();
    assert_eq!(cached, (24 << 20) + (16 << 20), "what was dropped, and the rest of a segment");
    notes.at("cached");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
