//! Document 001, example 2: without gradients, nothing is kept for a backward.

use tonnage::tensor::autograd::no_grad;
use tonnage::tensor::nn::{Linear, Module};
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("001-2")?;
    let model = Linear::new(1000, 10, device)?;
    let input = Tensor::randn([1, 1000], device)?;
    let _output = no_grad(|| model.forward(&input))?;
    notes.at("no_grad");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
