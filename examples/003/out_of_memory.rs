//! Document 003, debugging an out-of-memory error: the baseline, the peak, and the message.
//!
//! The message says more than the document's steps would find out: what was asked for, who holds the
//! memory, and what would have helped.

use tonnage::tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-oom")?;
    // Step 1: is something there already?
    notes.at("baseline");
    let layer = |_| -> Result<Sequential> {
        Ok(Sequential::new().then(Linear::new(256, 256, device)?).then(Relu))
    };
    let model = (0..8).map(layer).collect::<Result<Sequential>>()?;
    // Step 2: the peak of a step that fits.
    let x = Tensor::randn([1024, 256], device)?;
    model.forward(&x)?.sum()?.backward()?;
    notes.at("a step");
    // Step 3: a limit that a larger batch does not keep.
    let memory = device.memory();
    memory.set_limit(Some(memory.reserved() + (48 << 20)));
    let x = Tensor::randn([16_384, 256], device)?;
    if let Err(error) = model.forward(&x) {
        notes.say(&error.to_string());
    }
    memory.set_limit(None);
    notes.at("after the error");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
