//! Document 002, example 3: each device has memory and figures of its own; choose before you allocate.

use tonnage::DeviceId;
use tonnage::memory::DeviceOptions;
use tonnage::tensor::{Device, Result, Tensor, set_device};
use tonnage_examples::Notes;

/// Another device of the same kind.
fn beside(device: &Device) -> Device {
    let options = DeviceOptions { id: DeviceId(1), ..DeviceOptions::default() };
    let open = if device.computes() { Device::host_with } else { Device::dry_with };
    open(1_u64 << 30, options).expect("a number of bytes is a size")
}

pub(crate) fn program(device: &Device, notes: &mut Notes) -> Result<()> {
    notes.begin("002-3")?;
    let second = beside(device);
    let before = device.memory().allocated();
    set_device(&second);
    let preallocated = Tensor::empty([10 << 18], &second)?;
    let a = Tensor::randn([1000, 1000], &second)?;
    let b = Tensor::randn([1000, 1000], &second)?;
    let _c = a.matmul(&b)?;
    drop(preallocated);
    assert_eq!(device.memory().allocated(), before, "the first device knows nothing of the second");
    // A tensor moves between devices by a copy.
    let _moved = a.to_device(device)?;
    set_device(device);
    notes.at("a copy of a");
    Ok(())
}

fn main() -> std::process::ExitCode {
    tonnage_examples::run(program)
}
