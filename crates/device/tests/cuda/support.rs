//! The `cuda` device on a fake driver of the test's own.

use tonnage_device::DeviceError;
use tonnage_device::cuda::{Cuda, Driver};
use tonnage_fake_cuda::{Fake, Live};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn fake() -> Fake {
    Fake::start().expect("cargo builds the fake driver with this test")
}

pub(crate) fn load(fake: &Fake) -> Result<Driver, DeviceError> {
    // SAFETY: the fake keeps to the driver's interface: that is what it is for.
    unsafe { Driver::load_from(fake.path()) }
}

pub(crate) fn open(fake: &Fake, ordinal: u32) -> Result<Cuda, DeviceError> {
    Cuda::open_with(load(fake)?, ordinal)
}

/// A device whose driver nobody else sees.
pub(crate) fn device() -> Cuda {
    open(&fake(), 0).expect("the fake driver has a device")
}

/// The device's books name what the driver has given.
pub(crate) fn assert_books_agree(fake: &Fake, device: &Cuda, context: &str) {
    let (ours, driver) = (device.live(), fake.live());
    // The driver's events are kept for reuse.
    assert!(ours.events <= driver.events, "{context}: {ours:?} {driver:?}");
    let expected = Live {
        segments: ours.segments,
        ranges: ours.ranges,
        pages: ours.pages,
        mappings: ours.mappings,
        streams: ours.streams,
        pinned: ours.pinned,
        events: driver.events,
        contexts: 1,
        modules: driver.modules,
        graphs: driver.graphs,
    };
    assert_eq!(driver, expected, "{context}");
}

pub(crate) fn assert_nothing_left(fake: &Fake, context: &str) {
    assert_eq!(fake.live(), Live::default(), "{context}");
    assert_eq!((fake.used(0), fake.used(1)), (0, 0), "{context}");
}

pub(crate) fn assert_refused<T: std::fmt::Debug>(result: Result<T, DeviceError>, part: &str) {
    match result {
        Err(DeviceError::Misuse { reason, .. }) => assert!(reason.contains(part), "{reason}"),
        other => panic!("not refused: {other:?}"),
    }
}

/// Another user of the same driver in this process, who calls it without us.
pub(crate) struct Neighbour {
    library: libloading::Library,
}

impl Neighbour {
    pub(crate) fn new(fake: &Fake) -> Self {
        // SAFETY: the fake's initialisers are the Rust runtime's.
        let library = unsafe { libloading::Library::new(fake.path()) };
        Self { library: library.expect("the fake is loaded already") }
    }

    /// Calls a function that takes one number.
    fn call(&self, name: &str, number: u64) -> i32 {
        // SAFETY: the functions that are named below take one number or pointer.
        let function = unsafe { self.library.get::<unsafe extern "C" fn(u64) -> i32>(name) };
        let function = function.expect("the fake has it");
        // SAFETY: `number` is a number, or a pointer to a place that outlives the call.
        unsafe { function(number) }
    }

    /// Makes the primary context of `device` current and keeps a reference to it.
    pub(crate) fn use_device(&self, device: i32) -> u64 {
        let mut context = 0u64;
        // SAFETY: the type is that of the driver's function.
        let retain = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*mut u64, i32) -> i32>("cuDevicePrimaryCtxRetain")
        };
        let retain = retain.expect("the fake has it");
        // SAFETY: `context` is a place for one handle.
        assert_eq!(unsafe { retain(&mut context, device) }, 0);
        assert_eq!(self.set_current(context), 0);
        context
    }

    pub(crate) fn set_current(&self, context: u64) -> i32 {
        self.call("cuCtxSetCurrent", context)
    }

    pub(crate) fn release(&self, device: u64) -> i32 {
        self.call("cuDevicePrimaryCtxRelease_v2", device)
    }

    pub(crate) fn current(&self) -> u64 {
        let mut context = 0u64;
        let place = (&raw mut context).expose_provenance() as u64;
        assert_eq!(self.call("cuCtxGetCurrent", place), 0);
        context
    }

    /// Takes away whatever is current on this thread.
    pub(crate) fn leave_all(&self) {
        while self.call("cuCtxPopCurrent_v2", 0) == 0 {}
    }

    /// Frees memory in whatever context is current.
    pub(crate) fn memory_free(&self, address: u64) -> i32 {
        self.call("cuMemFree_v2", address)
    }
}
