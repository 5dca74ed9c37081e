//! Streams that come and go leave nothing behind.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use std::sync::mpsc;
use std::thread;

use tonnage_device::host::{Host, Streams};
use tonnage_memory::{AnyDevice, Device, DeviceOptions, StreamId};

/// The system's allocator, counting what each thread has of it: other tests run meanwhile.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending counts no more.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting neither allocates nor
// panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn twenty_thousand_streams_leave_next_to_nothing_behind() {
    for device in [Device::dry("4 GiB").unwrap(), Device::host("4 GiB").unwrap()] {
        let before = HELD.get();
        for number in 0..20_000 {
            let stream = device.create_stream().unwrap();
            drop(device.allocate_on(1_000, stream.id()).unwrap());
            if number % 500 == 499 {
                device.memory().empty_cache().unwrap();
            }
        }
        assert_eq!(device.memory().reserved(), 0);
        let left = HELD.get() - before;
        assert!(left < 64 << 10, "{left} bytes on {device:?}");
    }
}

/// A device, and its streams as it sees them itself.
fn host() -> (Device, Streams) {
    let host = Host::new(256 << 20);
    let streams = host.streams();
    (Device::of(AnyDevice::Host(Box::new(host)), DeviceOptions::default()), streams)
}

#[test]
fn a_block_that_outlives_its_stream_does_not_bring_it_back() {
    let (device, streams) = host();
    let [own, other] = [0, 1].map(|_| device.create_stream().unwrap());
    let block = device.allocate_on(1_000, own.id()).unwrap();
    block.record_stream(other.id());
    assert_eq!(streams.count(), 2);
    drop((own, other));
    assert_eq!(streams.count(), 0);
    block.read(0, &mut [0; 8]).unwrap();
    device.synchronize(block.stream()).unwrap();
    drop(block);
    device.memory().empty_cache().unwrap();
    assert_eq!((streams.count(), device.memory().reserved()), (0, 0));
}

#[test]
fn a_stream_whose_work_failed_ends_and_the_failure_is_told() {
    let (device, streams) = host();
    let stream = device.create_stream().unwrap();
    let id = stream.id();
    stream.launch(|| panic!("on purpose")).unwrap();
    drop(stream);
    assert_eq!(streams.count(), 0);
    let error = device.synchronize(id).unwrap_err().to_string();
    assert!(error.contains("on purpose"), "{error}");
    device.synchronize(id).unwrap();
}

#[test]
fn on_a_gpu_a_stream_ends_though_a_driver_call_fails_and_the_failure_is_told() {
    let mut told = 0;
    for calls in 0.. {
        let (fake, device) = crate::cuda(DeviceOptions::default());
        let stream = device.create_stream().unwrap();
        fake.fail_after(calls, 999);
        drop(stream);
        let failed = fake.failed();
        fake.clear_failures();
        assert_eq!(fake.live().streams, 0, "call {calls} failed");
        // A failure to leave the context is mended at once.
        told += u64::from(device.synchronize(StreamId::DEFAULT).is_err());
        device.synchronize(StreamId::DEFAULT).unwrap();
        if failed == 0 {
            assert!(told > 4, "{told} of {calls}");
            return;
        }
    }
}

#[test]
fn a_stream_that_work_drops_ends_when_its_work_is_done() {
    let (device, streams) = host();
    let [own, other, idle] = [0, 1, 2].map(|_| device.create_stream().unwrap());
    let (ids, (gives, given)) = ([own.id(), other.id(), idle.id()], mpsc::channel());
    // Work that drops its own stream, one with a thread that sleeps, and one without a thread.
    other.launch(|| ()).unwrap();
    other.synchronize().unwrap();
    own.launch(move || drop(given.recv().unwrap())).unwrap();
    gives.send([own, other, idle]).unwrap();
    for id in ids {
        device.synchronize(id).unwrap();
    }
    // Their threads take them out, each on its own.
    while streams.count() > 0 {
        thread::yield_now();
    }
}
