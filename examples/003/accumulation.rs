//! Document 003, gradient accumulation: a large batch's gradient from small batches' memory.

use tonnage::tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage::tensor::optim::{Adam, Optimizer};
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    for parts in [1_u32, 8] {
        notes.begin(format!("003-accumulate {parts}"))?;
        let layer = |_| -> Result<Sequential> {
            Ok(Sequential::new().then(Linear::new(256, 256, device)?).then(Relu))
        };
        let model = (0..8).map(layer).collect::<Result<Sequential>>()?;
        let mut adam = Adam::new(model.parameters(), Adam::options())?;
        for part in 0..parts {
            let x = Tensor::randn([8192 / parts as usize, 256], device)?;
            model.forward(&x)?.sum()?.div(f64::from(parts))?.backward()?;
            if part + 1 == parts {
                adam.step()?;
                adam.zero_grad(true)?;
            }
        }
        notes.at("step");
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
