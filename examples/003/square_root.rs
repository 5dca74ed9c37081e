//! Document 003, the square-root theorem: n layers in √n segments.

use tonnage::tensor::checkpoint::checkpoint_sequential;
use tonnage::tensor::nn::{Linear, Module, Relu, Sequential};
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    for layers in [16_u32, 64, 144] {
        for segments in [0, layers.isqrt() as usize] {
            notes.begin(format!("003-sqrt n={layers} segments={segments}"))?;
            let layer = |_| -> Result<Sequential> {
                Ok(Sequential::new().then(Linear::new(512, 512, device)?).then(Relu))
            };
            let model = (0..layers).map(layer).collect::<Result<Sequential>>()?;
            let x = Tensor::randn([16_384, 512], device)?.requires_grad_(true)?;
            let base = device.memory().allocated();
            let y = match segments {
                0 => model.forward(&x)?,
                _ => checkpoint_sequential(&model, segments, &x)?,
            };
            y.sum()?.backward()?;
            notes.at(format!("base {base}"));
        }
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run_dry(program)
}
