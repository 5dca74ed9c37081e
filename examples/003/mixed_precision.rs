//! Document 003, mixed precision: activations in sixteen bits, and copies of the weights beside them.

use tonnage::tensor::amp::autocast;
use tonnage::tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage::tensor::{DType, Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    for (word, mixed) in [("False", false), ("True", true)] {
        notes.begin(format!("003-amp {word}"))?;
        let layer = |_| -> Result<Sequential> {
            Ok(Sequential::new().then(Linear::new(2048, 2048, device)?).then(Relu))
        };
        let model = (0..12).map(layer).collect::<Result<Sequential>>()?;
        let x = Tensor::randn([8192, 2048], device)?;
        let y =
            if mixed { autocast(DType::Bf16, || model.forward(&x))? } else { model.forward(&x)? };
        notes.at("forward");
        y.to(DType::F32)?.sum()?.backward()?;
        notes.at("backward");
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run_dry(program)
}
