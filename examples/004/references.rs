//! Document 004, example 3: memory lives as long as its last reference, and no longer.
//!
//! The result does not keep the holder's tensor alive, as the document says it does: nothing recorded the
//! multiplication, and the product is memory of its own.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

struct Holder {
    tensor: Tensor,
}

impl Holder {
    fn compute(&self) -> Result<Tensor> {
        self.tensor.mul(2.0)
    }
}

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.go_on_with("004-3");
    let holder = Holder { tensor: Tensor::randn([10_000, 10_000], device)? };
    let result = holder.compute()?;
    notes.at("computed");
    drop(holder);
    notes.at("holder None");
    drop(result);
    notes.at("result None");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run_dry(program)
}
