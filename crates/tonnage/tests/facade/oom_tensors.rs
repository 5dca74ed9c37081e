//! A training that runs out of memory says why: the same on tensors as on plain blocks.

use tonnage::engine::{RecordOptions, StackDepth};
use tonnage::memory::{AllocError, Diagnosis, OutOfMemory};
use tonnage::tensor::nn::{Linear, Module};
use tonnage::tensor::{Device, ErrorKind, Result, Tensor};

fn failure(stacks: StackDepth, work: impl FnOnce(&Device) -> Result<()>) -> OutOfMemory {
    let device = Device::dry("256 MiB").unwrap();
    device.memory().record_history(Some(RecordOptions { stacks, ..RecordOptions::default() }));
    let error = work(&device).unwrap_err();
    match error.kind() {
        ErrorKind::Memory(AllocError::OutOfMemory(error)) => (**error).clone(),
        _ => panic!("{error}"),
    }
}

#[test]
fn losses_that_are_summed_with_their_graphs_are_a_leak() {
    for stacks in [StackDepth::CallSite, StackDepth::Backtrace] {
        let mut steps = 0;
        let error = failure(stacks, |device| {
            let model = Linear::new(1024, 1024, device)?;
            let mut total = Tensor::zeros([], device)?;
            loop {
                let input = Tensor::randn([1024, 1024], device)?;
                let loss = model.forward(&input)?.square()?.mean()?;
                total = total.add(&loss)?;
                steps += 1;
            }
        });
        let text = error.to_string();
        assert!(text.lines().count() <= 12, "{text}");
        let told = error.notes.get::<Diagnosis>().unwrap();
        assert_eq!(told.cause, "leak", "{text}");
        // Each step keeps its input and what the square has saved.
        let kept: u64 = steps * (8 << 20);
        assert!(told.bytes.abs_diff(kept) <= 12 << 20, "{} for {kept}\n{text}", told.bytes);
        let line = told.line.as_deref().unwrap();
        assert!(line.contains("crates/tonnage/tests/facade/oom_tensors.rs:"), "{text}");
    }
}
