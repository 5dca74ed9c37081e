//! A training that runs out of memory says why: the same on tensors as on plain blocks.

use tonnage::engine::{RecordOptions, StackDepth};
use tonnage::memory::{AllocError, OutOfMemory};
use tonnage::tensor::nn::{Linear, Module};
use tonnage::tensor::{Device, ErrorKind, Result, Tensor};

fn failure(device: &Device, work: impl FnOnce(&Device) -> Result<()>) -> OutOfMemory {
    let options = RecordOptions { stacks: StackDepth::Backtrace, ..RecordOptions::default() };
    device.memory().record_history(Some(options));
    match work(device) {
        Err(error) => match error.kind() {
            ErrorKind::Memory(AllocError::OutOfMemory(error)) => (**error).clone(),
            _ => panic!("{error}"),
        },
        Ok(()) => panic!("no request failed"),
    }
}

#[test]
fn losses_that_are_summed_with_their_graphs_are_a_leak() {
    let device = Device::dry("256 MiB").unwrap();
    let mut steps = 0;
    let error = failure(&device, |device| {
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
    let told = error.diagnosis.as_ref().unwrap();
    assert_eq!(told.cause, "leak", "{text}");
    assert!(text.contains("crates/tonnage/tests/oom.rs:"), "{text}");
    println!("{steps} steps\n{text}");
}
