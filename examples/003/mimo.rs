//! Document 003, massive MIMO: 64 antennas, 16 users, 1,000 subcarriers.
//!
//! A batch of channels is 1000 · 64 · 16 numbers of 8 bytes, 8.2 MB; 64 batches are half a gigabyte.

use tonnage::tensor::{DType, Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-mimo")?;
    for batch in [1, 64] {
        let channels = Tensor::randn([batch, 1000, 64, 16], (device, DType::Complex64))?;
        notes.at(format!("B={batch}"));
        let _gram = channels.conj()?.transpose(-1, -2)?.matmul(&channels)?;
        notes.at(format!("B={batch} gram"));
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
