//! Devices, blocks, streams and pinned memory, as programs use them.

// Who waits for what.
mod waiting;

mod blocks;

mod pause;

mod pinned;

// What streams that come and go leave behind.
mod streams;

use tonnage_device::cuda::{Cuda, Driver};
use tonnage_fake_cuda::Fake;
use tonnage_memory::{AnyDevice, Device, DeviceOptions};

const MIB: u64 = 1 << 20;

/// A device whose driver nobody else sees.
fn cuda(options: DeviceOptions) -> (Fake, Device) {
    let fake = Fake::start().expect("cargo builds the fake driver with this test");
    // SAFETY: the fake keeps to the driver's interface: that is what it is for.
    let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
    let cuda = Cuda::open_with(driver, 0).unwrap();
    (fake, Device::of(AnyDevice::Cuda(Box::new(cuda)), options))
}
