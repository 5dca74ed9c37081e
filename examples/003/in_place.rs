//! Document 003, operations in place: no new memory, and an error where a backward needs what is gone.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-in-place")?;
    let x = Tensor::randn([1000, 1000], device)?;
    notes.at("x");
    x.add_(1.0)?;
    x.relu_()?;
    x.mul_(0.99)?;
    notes.at("in place");
    assert_eq!(
        device.memory().max_allocated(),
        device.memory().allocated(),
        "nothing was allocated"
    );
    let weight = Tensor::randn([1000, 1000], device)?.requires_grad_(true)?;
    let y = weight.sigmoid()?;
    let loss = y.sum()?;
    y.mul_(2.0)?;
    // The gradient of a sigmoid needs its result, which is overwritten.
    if let Err(error) = loss.backward() {
        notes.say(&error.to_string());
    }
    notes.at("refused");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
