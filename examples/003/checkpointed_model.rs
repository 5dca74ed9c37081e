//! Document 003, gradient checkpointing: blocks whose activations are computed again in the backward.

use tonnage::tensor::checkpoint::checkpoint;
use tonnage::tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

/// Two blocks that are recomputed, and a head.
struct Model {
    first: Sequential,
    second: Sequential,
    head: Linear,
}

impl Model {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (first, second) = (self.first.clone(), self.second.clone());
        let x = checkpoint(&[x], move |x| first.forward(&x[0]))?;
        let x = checkpoint(&[&x], move |x| second.forward(&x[0]))?;
        self.head.forward(&x)
    }
}

fn block(device: &Device) -> Result<Sequential> {
    let layer = || Linear::new(256, 256, device);
    Ok(Sequential::new().then(layer()?).then(Relu).then(layer()?).then(Relu))
}

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-model")?;
    let model = Model {
        first: block(device)?,
        second: block(device)?,
        head: Linear::new(256, 10, device)?,
    };
    let x = Tensor::randn([4096, 256], device)?;
    let y = model.forward(&x)?;
    notes.at("forward");
    y.sum()?.backward()?;
    notes.at("backward");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
