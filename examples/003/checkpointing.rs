//! Document 003, checkpointing compared: twenty residual blocks, kept and recomputed.
//!
//! At batch 128 the weights and gradients set the peak, and checkpointing saves nothing. At batch 16,384
//! the activations do, and it more than halves the peak.

use tonnage::tensor::checkpoint::Placement;
use tonnage::tensor::models::DeepNet;
use tonnage::tensor::nn::Module;
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    for batch in [128, 16_384] {
        for (word, placement) in [("False", Placement::Keep), ("True", Placement::Each)] {
            notes.begin(format!("003-ckpt n=20 dim=512 B={batch} ckpt={word}"))?;
            let model = DeepNet::new(512, 20, device)?.checkpointed(placement);
            let x = Tensor::randn([batch, 512], device)?;
            notes.at("model+input");
            let y = model.forward(&x)?;
            notes.at("forward");
            y.sum()?.backward()?;
            notes.at("backward");
        }
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run_dry(program)
}
