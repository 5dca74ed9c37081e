//! Every driver call fails once, and twice in a row: nothing panics, the books name what the driver
//! has given, and everything can be given back.

use crate::support::*;
use tonnage_device::cuda::Cuda;
use tonnage_device::{Device, DeviceError};
use tonnage_events::StreamId;
use tonnage_fake_cuda::Fake;

/// Calls that no step reaches: the sweep must have ended before.
const TOO_MANY: u64 = 1000;

/// Runs steps, again and again until each succeeds, and looks at the books after each failure.
struct Persistent<'a> {
    fake: &'a Fake,
    device: Cuda,
    /// A failed call changes nothing: holds when the driver fails once, since then what a call
    /// takes back on its way out is taken back.
    strict: bool,
    context: String,
}

impl Persistent<'_> {
    fn run<T>(&mut self, step: impl Fn(&mut Cuda) -> Result<T, DeviceError>) -> T {
        for _ in 0..4 {
            let before = self.device.live();
            match step(&mut self.device) {
                Ok(value) => {
                    assert_books_agree(self.fake, &self.device, &self.context);
                    return value;
                }
                Err(error) => {
                    let context = format!("{} gave {error:?}", self.context);
                    assert_books_agree(self.fake, &self.device, &context);
                    if self.strict {
                        assert_eq!(self.device.live(), before, "{context}");
                    }
                }
            }
        }
        panic!("{}: a step fails again and again", self.context);
    }
}

/// Uses every function of the device, and gives everything back.
fn script(device: &mut Persistent<'_>) {
    let stream = device.run(Cuda::create_stream);
    device.run(Device::memory_info);
    let segment = device.run(|device| device.acquire(2 * MIB));
    let pooled = device.run(|device| device.acquire_from_pool(2 * MIB, stream));
    let pinned = device.run(|device| device.pinned().acquire(64));
    let bytes = std::ptr::slice_from_raw_parts_mut(pinned.as_ptr(), 64);
    device.run(|device| device.fill(pooled, 1, 64, stream));
    // SAFETY: the pinned memory lives until it is released below, after the stream is done.
    device.run(|device| unsafe { device.read_async(pooled, bytes, stream) });
    // SAFETY: as above.
    device.run(|device| unsafe { device.write_async(pooled, bytes, stream) });
    let range = device.run(|device| device.reserve(16 * MIB));
    let page = device.run(|device| device.create_page(2 * MIB));
    device.run(|device| device.map(page, range));
    device.run(|device| device.share_pages_with(0));
    device.run(|device| device.map(page, range.offset(4 * MIB)));
    for at in [range, range.offset(4 * MIB)] {
        assert!(device.fake.reaches(0, at.0), "{}", device.context);
    }
    device.run(|device| device.write(range, b"abc"));
    let text = device.run(|device| {
        let mut bytes = [0; 3];
        device.read(range.offset(4 * MIB), &mut bytes).map(|()| bytes)
    });
    assert_eq!(&text, b"abc", "{}", device.context);
    let event = device.run(|device| device.record_event(stream));
    device.run(|device| device.query_event(event));
    device.run(|device| device.query_stream(stream));
    device.run(|device| device.wait_on(StreamId(0), event));
    device.run(|device| device.wait_event(event));
    device.run(|device| device.destroy_event(event));
    let event = device.run(|device| device.record_event(StreamId(0)));
    device.run(|device| device.destroy_event(event));
    device.run(|device| device.synchronize(stream));
    device.run(|device| device.unmap(range));
    device.run(|device| device.unmap(range.offset(4 * MIB)));
    device.run(|device| device.destroy_page(page));
    device.run(|device| device.unreserve(range));
    // SAFETY: the stream is done.
    device.run(|device| unsafe { device.pinned().release(pinned) });
    device.run(|device| device.release_to_pool(pooled, stream));
    device.run(|device| device.release(segment));
    device.run(|device| device.destroy_stream(stream));
}

/// Runs the script with call `n`, and `more` calls after it, failing with `code`. Whether they did.
fn sweep(fake: &Fake, n: u64, more: u64, code: u32) -> bool {
    fake.reset();
    for call in n..=n + more {
        fake.fail_after(call, code);
    }
    let context = format!("call {n} and {more} more, code {code}");
    let device = loop {
        match open(fake, 1) {
            Ok(device) => break device,
            Err(error) if code == 2 => {
                assert!(matches!(error, DeviceError::Driver { code: 2, .. }), "{context}: {error}");
            }
            Err(_) => {}
        }
        // A reference that could not be given back is the driver's to keep.
        if more == 0 {
            assert_eq!(fake.live().contexts, 0, "{context}");
        }
        assert!(fake.calls() < TOO_MANY, "{context}: the device does not open");
    };
    if fake.live().contexts > 1 {
        // The driver kept one: there is nothing more to see.
        return true;
    }
    let mut device = Persistent { fake, device, strict: more == 0, context: context.clone() };
    script(&mut device);
    let failed = fake.failed() > more;
    fake.clear_failures();
    assert_eq!(device.device.live(), tonnage_device::cuda::Live::default(), "{context}");
    drop(device);
    assert_nothing_left(fake, &context);
    failed
}

#[test]
fn any_driver_call_may_fail_once() {
    let fake = fake();
    for code in [2, 999] {
        let calls = (0..TOO_MANY).find(|&n| !sweep(&fake, n, 0, code));
        let calls = calls.expect("the script ends");
        assert!(calls > 100, "only {calls} calls were swept");
    }
}

#[test]
fn any_two_driver_calls_in_a_row_may_fail() {
    let fake = fake();
    let neighbour = Neighbour::new(&fake);
    for n in 0..TOO_MANY {
        let failed = sweep(&fake, n, 1, 999);
        // A context that could not be left, twice, is still there.
        neighbour.leave_all();
        if !failed {
            return;
        }
    }
    panic!("the script does not end");
}

#[test]
fn a_device_that_is_dropped_while_the_driver_fails_does_not_panic() {
    let fake = fake();
    for n in 0..40 {
        fake.reset();
        let mut device = open(&fake, 0).unwrap();
        let stream = device.create_stream().unwrap();
        device.acquire(2 * MIB).unwrap();
        device.pinned().acquire(1).unwrap();
        let range = device.reserve(4 * MIB).unwrap();
        let page = device.create_page(2 * MIB).unwrap();
        device.map(page, range).unwrap();
        device.record_event(stream).unwrap();
        fake.fail_after(n, 999);
        drop(device);
        let left = fake.live();
        let things = left.segments + left.ranges + left.pages + left.mappings + left.streams;
        assert!(things <= 2, "call {n}: one failure keeps one thing, and what needs it: {left:?}");
    }
}

#[test]
fn only_calls_that_obtain_memory_are_out_of_memory() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let range = device.reserve(4 * MIB).unwrap();
    let page = device.create_page(2 * MIB).unwrap();
    // Get and push come first.
    let struck = |device: &mut Cuda, step: &dyn Fn(&mut Cuda) -> DeviceError| {
        fake.fail_after(2, 2);
        step(device)
    };
    let none = DeviceError::OutOfMemory { requested: 2 * MIB };
    assert_eq!(struck(&mut device, &|device| device.acquire(2 * MIB).unwrap_err()), none);
    assert_eq!(struck(&mut device, &|device| device.create_page(2 * MIB).unwrap_err()), none);
    for error in [
        struck(&mut device, &|device| device.reserve(2 * MIB).unwrap_err()),
        struck(&mut device, &|device| device.map(page, range).unwrap_err()),
        struck(&mut device, &|device| device.memory_info().unwrap_err()),
        struck(&mut device, &|device| device.record_event(StreamId(0)).unwrap_err()),
    ] {
        assert!(matches!(error, DeviceError::Driver { code: 2, .. }), "{error:?}");
        assert!(error.to_string().contains("out of memory (CUDA_ERROR_OUT_OF_MEMORY)"), "{error}");
    }
}

#[test]
fn a_mapping_that_could_not_be_taken_back_is_taken_back_later() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let range = device.reserve(4 * MIB).unwrap();
    let page = device.create_page(2 * MIB).unwrap();
    // Get, push, map; then access and taking back fail.
    fake.fail_after(3, 999);
    fake.fail_after(4, 999);
    let error = device.map(page, range).unwrap_err();
    assert!(matches!(error, DeviceError::Driver { call: "cuMemSetAccess", .. }), "{error:?}");
    assert_eq!((fake.live().mappings, device.live().mappings), (1, 1));
    device.map(page, range).unwrap();
    assert_eq!((fake.live().mappings, device.live().mappings), (1, 1));
    device.unmap(range).unwrap();
    device.destroy_page(page).unwrap();
    device.unreserve(range).unwrap();
}
