//! Document 003, the common mistake: a sum of losses keeps the graph of every iteration alive.

use tonnage::tensor::nn::{Linear, Module};
use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

fn loss(model: &Linear, device: &Device) -> Result<Tensor> {
    model.forward(&Tensor::randn([512, 1024], device)?)?.square()?.sum()
}

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("003-loss item=False")?;
    let model = Linear::new(1024, 1024, device)?;
    let mut total: Option<Tensor> = None;
    let mut last = None;
    for _ in 0..20 {
        let loss = loss(&model, device)?;
        total = Some(match total {
            Some(total) => total.add(&loss)?,
            None => loss.add(0.0)?,
        });
        last = Some(loss);
    }
    notes.at("20 iterations");
    drop((model, total, last));

    notes.begin("003-loss item=True")?;
    let model = Linear::new(1024, 1024, device)?;
    let mut total = 0.0;
    let mut last = None;
    for _ in 0..20 {
        let loss = loss(&model, device)?;
        total += loss.item::<f32>()?;
        last = Some(loss);
    }
    notes.at("20 iterations");
    drop((model, total, last));
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
