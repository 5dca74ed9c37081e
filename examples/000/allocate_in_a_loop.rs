//! Document 000, example 2: a loop reuses the same blocks; how often it runs does not matter.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("000-2")?;
    for _ in 0..10 {
        let x = Tensor::randn([100, 100], device)?;
        let y = Tensor::randn([100, 100], device)?;
        let z = x.matmul(&y)?;
        drop((x, y, z));
    }
    notes.at("loop done");
    let _a = Tensor::randn([100, 100], device)?;
    notes.at("after loop");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
