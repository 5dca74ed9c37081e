//! Document 000, example 1: what is dropped stays cached, and serves what is asked for next.

use tonnage::tensor::{Device, Result, Tensor};
use tonnage_examples::Notes;

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("000-1")?;
    let a = Tensor::randn([1000, 1000], device)?;
    notes.at("a");
    drop(a);
    notes.at("del a");
    // The same size again: the cached block serves, and nothing is reserved.
    let b = Tensor::randn([1000, 1000], device)?;
    notes.at("b");
    // Four times the size fits into what the segment has left, and the last bytes are too few to keep.
    let c = Tensor::randn([2000, 2000], device)?;
    notes.at("c");
    drop((b, c));
    notes.at("end");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
