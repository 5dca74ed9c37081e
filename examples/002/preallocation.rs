//! Document 002, example 2: a large tensor, made and dropped early, leaves a cache that later ones use.

use tonnage::tensor::{DType, Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("002-2")?;
    let preallocated = Tensor::empty([10 * (1 << 30) / 4], device)?;
    notes.at("prealloc");
    let a = Tensor::randn([1000, 1000], device)?;
    let b = Tensor::randn([1000, 1000], device)?;
    let _c = a.matmul(&b)?;
    notes.at("ops");
    drop(preallocated);
    notes.at("del prealloc");
    // Nine of the ten GiB come from the cache: nothing more is reserved.
    let _large = Tensor::empty([9 << 30], (device, DType::U8))?;
    notes.at("9GiB from cache");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run_dry(program)
}
