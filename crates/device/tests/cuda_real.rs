//! The `cuda` device on a real GPU. Runs where `TONNAGE_TEST_CUDA=1` is set, on device 0; elsewhere
//! every test says that it is skipped. Needs 1 GiB that nobody else takes or gives back meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tonnage_device::cuda::{Cuda, devices};
use tonnage_device::{Device, DeviceError, EventId, MemoryInfo, PageId};
use tonnage_events::{Address, DeviceId, StreamId};

const MIB: u64 = 1 << 20;

/// A device that no other test of this file uses at the same time: they look at its free memory.
struct Alone {
    device: Cuda,
    _turn: MutexGuard<'static, ()>,
}

/// The device, or nothing where it is not asked for.
fn real() -> Option<Alone> {
    static TURN: Mutex<()> = Mutex::new(());
    if std::env::var_os("TONNAGE_TEST_CUDA").is_none_or(|value| value != "1") {
        println!("skipped: TONNAGE_TEST_CUDA=1 is not set");
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Cuda::open(0).expect("TONNAGE_TEST_CUDA=1 promises a device");
    Some(Alone { device, _turn: turn })
}

macro_rules! real_or_return {
    () => {
        match real() {
            Some(device) => device,
            None => return,
        }
    };
}

tonnage_device::device_conformance!(cuda, real_or_return!());

#[test]
fn the_device_is_listed_as_it_is_opened() {
    let alone = real_or_return!();
    let listed = devices().unwrap();
    println!("{listed:#?}");
    assert_eq!(&listed[0], alone.device.properties());
    assert_eq!(alone.device.total(), listed[0].total);
}

#[test]
fn a_page_at_two_addresses_has_one_content() {
    let Alone { mut device, _turn } = real_or_return!();
    let range = device.reserve(64 * MIB).unwrap();
    let [page, other] = [0, 1].map(|_| device.create_page(4 * MIB).unwrap());
    device.map(page, range).unwrap();
    device.map(other, range.offset(4 * MIB)).unwrap();
    device.map(page, range.offset(20 * MIB)).unwrap();
    device.write(range.offset(4 * MIB - 3), b"abcdef").unwrap();
    let mut bytes = [0; 3];
    device.read(range.offset(24 * MIB - 3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
    device.unmap(range).unwrap();
    device.read(range.offset(4 * MIB), &mut bytes).unwrap();
    assert_eq!(&bytes, b"def");
}

#[test]
fn an_event_is_late_while_work_before_it_runs() {
    let Alone { mut device, _turn } = real_or_return!();
    let [one, two] = [0, 1].map(|_| device.create_stream().unwrap());
    let segment = device.acquire(512 * MIB).unwrap();
    // Far longer than it takes to ask.
    for value in 0..200 {
        device.fill(segment, value, 512 * MIB, one).unwrap();
    }
    let event = device.record_event(one).unwrap();
    device.wait_on(two, event).unwrap();
    let behind = device.record_event(two).unwrap();
    assert_eq!(device.query_event(event), Ok(false));
    assert_eq!(device.query_event(behind), Ok(false));
    assert_eq!(device.query_stream(two), Ok(false));
    device.wait_event(behind).unwrap();
    assert_eq!(device.query_event(event), Ok(true));
    let mut bytes = [0; 4];
    device.read(segment.offset(512 * MIB - 4), &mut bytes).unwrap();
    assert_eq!(bytes, [199; 4]);
    device.destroy_stream(one).unwrap();
    device.release(segment).unwrap();
}

#[test]
fn memory_is_copied_and_events_are_waited_for_without_the_device() {
    let Alone { mut device, _turn } = real_or_return!();
    let segment = device.acquire(512 * MIB).unwrap();
    for value in 0..100 {
        device.fill(segment, value, 512 * MIB, StreamId(0)).unwrap();
    }
    let event = device.record_event(StreamId(0)).unwrap();
    let wait = device.event_wait(event).unwrap();
    let memory = device.held_memory("read", segment.offset(512 * MIB - 4), 4).unwrap();
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let mut bytes = [0; 4];
            // SAFETY: the segment is released below, after the copy.
            unsafe { memory.read(&mut bytes) }.map(|()| bytes)
        });
        // The copy comes behind the fills, and the device is used meanwhile.
        let other = device.acquire(2 * MIB).unwrap();
        assert_eq!(copier.join().unwrap(), Ok([99; 4]));
        device.release(other).unwrap();
    });
    assert_eq!(device.query_event(event), Ok(true));
    device.release(segment).unwrap();
    drop(device);
    wait.wait().unwrap();
}

#[test]
fn queued_copies_and_the_drivers_pool_work() {
    let Alone { mut device, _turn } = real_or_return!();
    let stream = device.create_stream().unwrap();
    let segment = device.acquire_from_pool(2 * MIB, stream).unwrap();
    let pinned = device.pinned().acquire(4096).unwrap();
    let bytes = std::ptr::slice_from_raw_parts_mut(pinned.as_ptr(), 4096);
    device.fill(segment, 7, 4096, stream).unwrap();
    // SAFETY: the pinned memory lives until it is released below, after the stream is done.
    unsafe { device.read_async(segment, bytes, stream) }.unwrap();
    device.synchronize(stream).unwrap();
    // SAFETY: as above, and what was queued is done: all 4096 bytes were written.
    assert_eq!(unsafe { &*bytes }, [7; 4096]);
    // SAFETY: as for the first copy.
    unsafe { device.write_async(segment.offset(MIB), bytes, stream) }.unwrap();
    device.release_to_pool(segment, stream).unwrap();
    device.synchronize(stream).unwrap();
    // SAFETY: what was queued is done.
    unsafe { device.pinned().release(pinned) }.unwrap();
}

#[test]
fn what_was_not_given_back_goes_back_with_the_device() {
    let Alone { mut device, _turn } = real_or_return!();
    let before = device.memory_info().unwrap().free;
    let mut guest = Cuda::open(0).unwrap();
    let stream = guest.create_stream().unwrap();
    let range = guest.reserve(256 * MIB).unwrap();
    let page = guest.create_page(64 * MIB).unwrap();
    guest.map(page, range).unwrap();
    guest.map(page, range.offset(128 * MIB)).unwrap();
    guest.fill(range, 1, 64 * MIB, stream).unwrap();
    guest.acquire(64 * MIB).unwrap();
    guest.record_event(stream).unwrap();
    assert!(device.memory_info().unwrap().free <= before - 128 * MIB);
    drop(guest);
    let after = device.memory_info().unwrap().free;
    assert!(after + 16 * MIB > before, "{after} of {before} bytes are free again");
}

#[test]
fn memory_runs_out_as_out_of_memory_and_comes_back() {
    let Alone { mut device, _turn } = real_or_return!();
    let before = device.memory_info().unwrap().free;
    let chunk = 1 << 30;
    let mut held = Vec::new();
    let error = loop {
        match device.acquire(chunk) {
            Ok(segment) => held.push(segment),
            Err(error) => break error,
        }
    };
    assert_eq!(error, DeviceError::OutOfMemory { requested: chunk });
    assert_eq!(device.create_page(chunk), Err(DeviceError::OutOfMemory { requested: chunk }));
    for segment in held {
        device.release(segment).unwrap();
    }
    assert_eq!(device.memory_info().unwrap().free, before);
}

impl Device for Alone {
    fn id(&self) -> DeviceId {
        self.device.id()
    }

    fn total(&self) -> u64 {
        self.device.total()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.device.memory_info()
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.device.acquire(size)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.device.release(address)
    }

    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.device.reserve(size)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.device.unreserve(address)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.device.create_page(size)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.device.destroy_page(page)
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.device.map(page, address)
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        self.device.unmap(address)
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        self.device.record_event(stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.device.query_event(event)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.device.wait_event(event)
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.device.destroy_event(event)
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.device.synchronize(stream)
    }
}
