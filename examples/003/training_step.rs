//! Document 003, tracking a training step: who allocates what, point by point.

use tonnage::tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage::tensor::optim::{Adam, Optimizer};
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-track")?;
    let model = Sequential::new()
        .then(Linear::new(1024, 2048, device)?)
        .then(Relu)
        .then(Linear::new(2048, 2048, device)?)
        .then(Relu)
        .then(Linear::new(2048, 10, device)?);
    notes.at("model");
    let x = Tensor::randn([256, 1024], device)?;
    notes.at("input");
    let y = model.forward(&x)?;
    notes.at("forward");
    let loss = y.sum()?;
    loss.backward()?;
    notes.at("backward");
    let mut adam = Adam::new(model.parameters(), Adam::options())?;
    adam.step()?;
    notes.at("adam step");
    adam.zero_grad(true)?;
    notes.at("zero_grad");
    notes.say(&device.memory().summary());
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
