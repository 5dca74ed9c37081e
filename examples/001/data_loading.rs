//! Document 001, example 3: batches from a loader, each dropped after its step.
//!
//! Emptying the cache after each batch, as the document does, saves nothing: the next batch asks for the
//! same bytes again, now from the device.

use tonnage::tensor::data::{Array, DataLoader, TensorDataset};
use tonnage::tensor::{Device, Result};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("001-3")?;
    let data = Array::from_slice(&vec![0.0_f32; 10_000 * 100], [10_000, 100])?;
    let labels: Vec<i64> = (0..10_000).map(|sample| sample % 10).collect();
    let dataset = TensorDataset::new(vec![data, Array::from_slice(&labels, [10_000])?])?;
    let loader = DataLoader::new(dataset, device).batch_size(32).shuffle(0);
    for batch in loader.epoch(0)? {
        drop(batch?);
        notes.empty_cache();
    }
    notes.at("epoch");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
