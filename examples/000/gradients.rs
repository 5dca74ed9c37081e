//! Document 000, example 3: gradients are memory too, and stay with their leaves.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("000-3")?;
    let a = Tensor::randn([10, 10], device)?.requires_grad_(true)?;
    let b = Tensor::randn([10, 10], device)?.requires_grad_(true)?;
    let c = a.add(&b)?;
    let loss = c.sum()?;
    notes.at("forward");
    loss.backward()?;
    notes.at("backward");
    assert!(a.grad().is_some() && b.grad().is_some(), "each leaf has its gradient");
    drop((c, loss));
    notes.at("del");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
