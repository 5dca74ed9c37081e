//! Pinned memory, on every device: `cuda` on a fake driver, and on a real one where
//! `TONNAGE_TEST_CUDA=1` is set.

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tonnage_device::host::{Host, Streams};
use tonnage_fake_cuda::Fake;
use tonnage_memory::{
    AnyDevice, Device, DeviceOptions, PinnedAllocator, PinnedBlock, PinnedError, PinnedStats,
    StreamId,
};

use crate::MIB;

fn host() -> Device {
    Device::host("64 MiB").unwrap()
}

fn cuda() -> (Fake, Device) {
    crate::cuda(DeviceOptions::default())
}

fn devices() -> Vec<Device> {
    let mut devices = vec![Device::dry("64 MiB").unwrap(), host(), cuda().1];
    if std::env::var_os("TONNAGE_TEST_CUDA").is_some_and(|value| value == "1") {
        devices.push(Device::cuda(0).expect("TONNAGE_TEST_CUDA=1 promises a device"));
    }
    devices
}

/// Where a block lies.
fn place(block: &PinnedBlock) -> usize {
    block.pointer().addr()
}

/// In use, pending, cached.
fn bytes(pinned: &PinnedAllocator) -> [u64; 3] {
    let stats = pinned.stats();
    assert!(stats.in_use.peak <= stats.reserved.peak && stats.hits <= stats.allocations);
    [stats.in_use.current, stats.pending, stats.cached()]
}

/// Work on a stream that ends when told.
fn block_stream(device: &Device) -> (tonnage_memory::Stream, mpsc::Sender<()>) {
    let stream = device.create_stream().unwrap();
    let (go, wait) = mpsc::channel::<()>();
    stream.launch(move || _ = wait.recv()).unwrap();
    (stream, go)
}

/// A block's bytes, for work that fills them.
struct Place(*mut [u8]);

// SAFETY: the block's memory belongs to no thread.
unsafe impl Send for Place {}

impl Place {
    fn fill(self, byte: u8) {
        // SAFETY: the block is recorded for the stream that runs this, and not used meanwhile.
        unsafe { self.0.cast::<u8>().write_bytes(byte, self.0.len()) }
    }
}

#[test]
fn memory_serves_its_class_again_and_no_other() {
    for device in devices() {
        let pinned = device.pinned();
        let first = pinned.allocate(5_000).unwrap();
        assert_eq!((first.len(), first.capacity()), (5_000, 8_192));
        let at = place(&first);
        assert_eq!(at % 4_096, 0, "{device:?}: a page's beginning");
        drop(first);
        for bytes in [4_096, 8_193, 1, 1_000_000] {
            assert_ne!(place(&pinned.allocate(bytes).unwrap()), at, "{device:?}: {bytes}");
        }
        for bytes in [8_192, 4_097] {
            let again = pinned.allocate(bytes).unwrap();
            assert_eq!((place(&again), again.len()), (at, bytes as usize), "{device:?}");
        }
        let last = pinned.allocate(5_000).unwrap();
        let other = pinned.allocate(5_000).unwrap();
        assert_ne!(place(&last), place(&other), "{device:?}: one at a time");
        let (at, then) = (place(&last), place(&other));
        drop(last);
        drop(other);
        assert_eq!(place(&pinned.allocate(5_000).unwrap()), then, "{device:?}: last in, first out");
        assert_ne!(at, then);
    }
}

#[test]
fn contents_go_to_the_device_and_back() {
    for device in devices().into_iter().filter(|device| device.kind() != "dry") {
        let pinned = device.pinned();
        let mut staging = pinned.allocate(MIB).unwrap();
        for (index, byte) in staging.iter_mut().enumerate() {
            *byte = index as u8;
        }
        let block = device.allocate(MIB).unwrap();
        block.write(0, &staging).unwrap();
        let mut result = pinned.allocate(MIB).unwrap();
        result.as_mut_slice().fill(0xff);
        block.read(0, &mut result).unwrap();
        assert!(result.as_slice() == staging.as_slice(), "{device:?}");
        assert_eq!((result[0], result[255], result[256]), (0, 255, 0));
    }
}

#[test]
fn the_figures_tell_what_happened() {
    for device in devices() {
        let pinned = device.pinned();
        assert_eq!(pinned.stats(), PinnedStats::default());
        let [one, two] = [3_000, 5_000].map(|bytes| pinned.allocate(bytes).unwrap());
        assert_eq!(bytes(&pinned), [4_096 + 8_192, 0, 0]);
        drop(one);
        assert_eq!(bytes(&pinned), [8_192, 0, 4_096]);
        // Every handle leads to the same allocator.
        let three = PinnedAllocator::new(&device.clone()).allocate(4_096).unwrap();
        drop((two, three));
        let stats = pinned.stats();
        assert_eq!((stats.allocations, stats.hits), (3, 1), "{device:?}");
        assert_eq!((stats.in_use.current, stats.in_use.peak), (0, 12_288));
        assert_eq!((stats.reserved.current, stats.reserved.peak), (12_288, 12_288));
        assert_eq!(device.memory().reserved(), 0, "it is none of the device's memory");
    }
}

#[test]
fn an_emptied_cache_keeps_nothing_but_what_is_in_use() {
    for device in devices() {
        let pinned = device.pinned();
        let mut held = pinned.allocate(100).unwrap();
        held.fill(3);
        drop([100, 200, 300].map(|bytes| pinned.allocate(bytes).unwrap()));
        assert_eq!(bytes(&pinned), [128, 0, 128 + 256 + 512]);
        pinned.empty_cache().unwrap();
        assert_eq!(bytes(&pinned), [128, 0, 0]);
        assert_eq!(pinned.stats().reserved.peak, 1_024);
        assert!(held.iter().all(|byte| *byte == 3), "{device:?}");
        drop(held);
        pinned.empty_cache().unwrap();
        assert_eq!(pinned.stats().reserved.current, 0, "{device:?}");
        pinned.allocate(100).unwrap();
        assert_eq!(pinned.stats().hits, 0, "{device:?}");
    }
}

#[test]
fn on_dry_it_is_counted_and_takes_no_memory() {
    let device = Device::dry("80 GiB").unwrap();
    let pinned = device.pinned();
    // More than any machine has, let alone three times.
    let blocks = [0; 3].map(|_| pinned.allocate((1 << 60) - 1).unwrap());
    blocks[0].record_stream(StreamId::DEFAULT);
    assert_eq!((bytes(&pinned), blocks[1].capacity()), ([3 << 60, 0, 0], 1 << 60));
    assert_eq!((blocks[1].len(), blocks[1].is_empty()), ((1 << 60) - 1, false));
    let counted = PinnedError::Counted { bytes: 1 << 60 };
    assert_eq!(blocks[1].try_as_slice().unwrap_err(), counted);
    drop(blocks);
    let again = pinned.allocate(1 << 60).unwrap();
    assert_eq!((pinned.stats().hits, again.device()), (1, &device));
    drop(again);
    pinned.empty_cache().unwrap();
    assert_eq!(bytes(&pinned), [0, 0, 0]);
    // A program that looks at bytes finds some, as it left them.
    let mut small = pinned.allocate(100).unwrap();
    assert!(small.iter().all(|byte| *byte == 0));
    small.fill(5);
    assert_eq!(&*small, [5; 100]);
}

#[test]
fn on_dry_sums_that_cannot_be_counted_are_refused() {
    let device = Device::dry("80 GiB").unwrap();
    let pinned = device.pinned();
    let blocks = [0; 3].map(|_| pinned.allocate(1 << 62).unwrap());
    let before = pinned.stats();
    let refused = PinnedError::OutOfMemory {
        requested: 1 << 62,
        rounded: 1 << 62,
        in_use: 3 << 62,
        pending: 0,
    };
    assert_eq!(pinned.allocate(1 << 62).unwrap_err(), refused);
    assert_eq!(pinned.stats(), before);
    drop(blocks);
    // What is cached makes room for another class.
    let other = [0; 4].map(|_| pinned.allocate(1 << 61).unwrap());
    assert_eq!(pinned.stats().in_use.current, 1 << 63);
    drop(other);
    pinned.empty_cache().unwrap();
    assert_eq!(bytes(&pinned), [0, 0, 0]);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for device in devices() {
        let pinned = device.pinned();
        assert_eq!(pinned.allocate(0).unwrap_err(), PinnedError::Empty);
        for requested in [u64::MAX, (1 << 62) + 1] {
            let error = pinned.allocate(requested).unwrap_err();
            assert_eq!(error, PinnedError::TooLarge { requested }, "{device:?}");
        }
        assert_eq!(pinned.stats(), PinnedStats::default(), "{device:?}");
    }
}

#[test]
fn memory_is_not_reused_while_a_recorded_stream_may_use_it() {
    let device = host();
    let pinned = device.pinned();
    let [(one, one_goes), (two, two_goes)] = [0, 1].map(|_| block_stream(&device));
    let block = pinned.allocate(MIB).unwrap();
    let at = place(&block);
    for stream in [one.id(), two.id(), one.id(), StreamId::DEFAULT] {
        block.record_stream(stream);
    }
    drop(block);
    assert_eq!(bytes(&pinned), [0, MIB, 0]);
    assert_ne!(place(&pinned.allocate(MIB).unwrap()), at, "neither stream is done");
    one_goes.send(()).unwrap();
    one.synchronize().unwrap();
    let held = pinned.allocate(MIB).unwrap();
    assert_ne!(place(&held), at);
    assert_ne!(place(&pinned.allocate(MIB).unwrap()), at, "one stream is not done");
    pinned.empty_cache().unwrap();
    assert_eq!(bytes(&pinned), [MIB, MIB, 0], "what is pending stays");
    two_goes.send(()).unwrap();
    two.synchronize().unwrap();
    assert_eq!(place(&pinned.allocate(MIB).unwrap()), at, "both are done");
    assert_eq!(bytes(&pinned), [MIB, 0, MIB]);
}

#[test]
fn what_is_queued_after_the_drop_is_not_waited_for() {
    let device = host();
    let pinned = device.pinned();
    let stream = device.create_stream().unwrap();
    let block = pinned.allocate(MIB).unwrap();
    let at = place(&block);
    block.record_stream(stream.id());
    drop(block);
    let (go, wait) = mpsc::channel::<()>();
    stream.launch(move || _ = wait.recv()).unwrap();
    assert_eq!(place(&pinned.allocate(MIB).unwrap()), at);
    drop(go);
}

#[test]
fn work_writes_into_pinned_memory_and_the_next_owner_sees_it_done() {
    let device = host();
    let pinned = device.pinned();
    let stream = device.create_stream().unwrap();
    for round in 1..100_u8 {
        let block = pinned.allocate(10_000).unwrap();
        let place = Place(block.pointer());
        block.record_stream(stream.id());
        stream.launch(move || place.fill(round)).unwrap();
        drop(block);
        let mut next = pinned.allocate(10_000).unwrap();
        next.fill(0);
        thread::yield_now();
        assert!(next.iter().all(|byte| *byte == 0), "round {round}: written to behind our back");
    }
    stream.synchronize().unwrap();
    pinned.empty_cache().unwrap();
    assert_eq!(pinned.stats().reserved.current, 0);
}

#[test]
fn failed_work_is_reported_once_and_its_memory_comes_back() {
    let device = host();
    let pinned = device.pinned();
    let stream = device.create_stream().unwrap();
    let block = pinned.allocate(MIB).unwrap();
    let at = place(&block);
    let (go, wait) = mpsc::channel::<()>();
    stream
        .launch(move || {
            _ = wait.recv();
            panic!("on purpose")
        })
        .unwrap();
    block.record_stream(stream.id());
    drop(block);
    drop(go);
    // Until the failure is parked by an allocation that asked for the event.
    let error = loop {
        assert_ne!(place(&pinned.allocate(2 * MIB).unwrap()), at);
        pinned.allocate(MIB).unwrap();
        if let Err(error) = pinned.empty_cache() {
            break error;
        }
        thread::yield_now();
    };
    assert!(error.to_string().contains("on purpose"), "{error}");
    pinned.empty_cache().unwrap();
    assert_eq!(pinned.stats().reserved.current, 0);
    assert_eq!(device.synchronize(stream.id()), Ok(()));
}

#[test]
fn blocks_outlive_every_handle() {
    for device in devices() {
        let pinned = device.pinned();
        let mut block = pinned.allocate(1_000).unwrap();
        let at = place(&block);
        drop(pinned);
        block.fill(9);
        let later = block.device().pinned();
        drop(device);
        assert!(block.iter().all(|byte| *byte == 9));
        drop(block);
        assert_eq!(place(&later.allocate(1_000).unwrap()), at, "the cache is the device's");
        let mut block = later.allocate(2_000).unwrap();
        drop(later);
        block.fill(8);
        block.record_stream(StreamId::DEFAULT);
    }
}

/// A host device whose streams can be used without a handle to it.
fn host_and_streams() -> (Device, Streams) {
    let host = Host::new(64 * MIB);
    let streams = host.streams();
    (Device::of(AnyDevice::Host(Box::new(host)), DeviceOptions::default()), streams)
}

#[test]
fn a_device_ends_after_the_work_that_its_pinned_memory_waits_for() {
    let (device, streams) = host_and_streams();
    let stream = streams.create();
    let block = device.pinned().allocate(MIB).unwrap();
    let place = Place(block.pointer());
    let (done, ended) = mpsc::channel();
    streams
        .launch(stream, move || {
            thread::sleep(Duration::from_millis(20));
            place.fill(1);
            done.send(()).unwrap();
        })
        .unwrap();
    block.record_stream(stream);
    drop(block);
    drop(device);
    ended.try_recv().expect("the end waits for the work");
}

#[test]
fn work_that_ends_its_device_still_finds_its_pinned_memory() {
    /// Memory that work cannot wait for is left to the process: here a leak checker finds it.
    static LEFT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

    let (device, streams) = host_and_streams();
    let stream = streams.create();
    let block = device.pinned().allocate(MIB).unwrap();
    black_box(&LEFT).store(block.pointer().cast(), Ordering::Relaxed);
    let place = Place(block.pointer());
    block.record_stream(stream);
    let (go, wait) = mpsc::channel::<()>();
    let last = device.clone();
    streams
        .launch(stream, move || {
            _ = wait.recv();
            drop(last);
            place.fill(1);
        })
        .unwrap();
    drop(block);
    drop(device);
    drop(go);
    streams.synchronize(stream).unwrap();
}

#[test]
fn eight_threads_share_the_cache_and_never_a_block() {
    for device in devices() {
        let pinned = device.pinned();
        thread::scope(|scope| {
            for number in 0..8_u8 {
                let pinned = pinned.clone();
                scope.spawn(move || {
                    for round in 0..200_u64 {
                        let size = 1 << (round % 5 + u64::from(number % 3));
                        let mut blocks = [size, 2 * size, size].map(|bytes| {
                            let mut block = pinned.allocate(bytes).unwrap();
                            block.fill(number);
                            block
                        });
                        if round % 3 == 0 {
                            blocks[0].record_stream(StreamId::DEFAULT);
                        }
                        if round % 50 == 49 {
                            pinned.empty_cache().unwrap();
                        }
                        for block in &mut blocks {
                            assert!(block.iter().all(|byte| *byte == number), "{block:?}");
                            block.fill(!number);
                        }
                    }
                });
            }
        });
        let stats = pinned.stats();
        assert_eq!((stats.allocations, stats.in_use.current), (8 * 200 * 3, 0), "{device:?}");
        assert!(stats.hits > 0);
        pinned.empty_cache().unwrap();
        assert_eq!(pinned.stats().reserved.current, 0, "{device:?}");
    }
}

#[test]
fn the_driver_gets_back_what_it_gave() {
    let (fake, device) = cuda();
    let pinned = device.pinned();
    let blocks = [100, 5_000, MIB].map(|bytes| pinned.allocate(bytes).unwrap());
    assert_eq!(fake.live().pinned, 3);
    let [small, middle, large] = blocks;
    drop((small, middle));
    let calls = fake.calls();
    let again = pinned.allocate(120).unwrap();
    assert_eq!(fake.calls(), calls, "a hit needs no driver");
    drop(again);
    pinned.empty_cache().unwrap();
    assert_eq!(fake.live().pinned, 1);

    fake.hold_events();
    large.record_stream(StreamId::DEFAULT);
    drop(large);
    pinned.empty_cache().unwrap();
    assert_eq!((bytes(&pinned), fake.live().pinned), ([0, MIB, 0], 1));
    fake.complete_events();
    pinned.empty_cache().unwrap();
    assert_eq!((bytes(&pinned), fake.live().pinned), ([0, 0, 0], 0));

    drop(pinned.allocate(1).unwrap());
    let last = pinned.allocate(1).unwrap();
    last.record_stream(StreamId::DEFAULT);
    fake.hold_events();
    drop((last, pinned, device));
    assert_eq!(fake.live(), tonnage_fake_cuda::Live::default(), "it goes with the device");
}

#[test]
fn cached_memory_makes_room_for_another_class() {
    /// The driver's code for no memory.
    const NONE: u32 = 2;
    let (fake, device) = cuda();
    let pinned = device.pinned();
    drop(pinned.allocate(MIB).unwrap());
    // Get the context, push it, allocate.
    fake.fail_after(2, NONE);
    let held = pinned.allocate(2 * MIB).unwrap();
    assert_eq!((fake.failed(), fake.live().pinned, bytes(&pinned)), (1, 1, [2 * MIB, 0, 0]));
    let error = pinned.allocate(1 << 60).unwrap_err();
    let refused = PinnedError::OutOfMemory {
        requested: 1 << 60,
        rounded: 1 << 60,
        in_use: 2 * MIB,
        pending: 0,
    };
    assert_eq!(error, refused, "{error}");
    assert_eq!(held.len() as u64, 2 * MIB);
}

#[test]
fn a_stream_that_has_ended_does_not_keep_the_memory() {
    let (fake, device) = cuda();
    let pinned = device.pinned();
    let stream = device.create_stream().unwrap();
    let block = pinned.allocate(100).unwrap();
    let at = place(&block);
    block.record_stream(stream.id());
    drop(stream);
    drop(block);
    device.synchronize(StreamId::DEFAULT).unwrap();
    assert_eq!(place(&pinned.allocate(100).unwrap()), at, "nothing is queued there any more");
    drop((pinned, device));
    assert_eq!(fake.live().pinned, 0);
}

/// The n-th driver call fails, for each n: nothing is lost, and all goes on.
#[test]
fn a_failed_call_loses_nothing() {
    let mut failing = 0;
    loop {
        let (fake, device) = cuda();
        let pinned = device.pinned();
        let stream = device.create_stream().unwrap();
        fake.fail_after(failing, 999);
        let work = || -> Result<(), PinnedError> {
            let blocks = [pinned.allocate(100)?, pinned.allocate(1_000)?, pinned.allocate(100)?];
            blocks[0].record_stream(stream.id());
            blocks[0].record_stream(StreamId::DEFAULT);
            blocks[1].record_stream(stream.id());
            drop(blocks);
            drop((pinned.allocate(100)?, pinned.allocate(100)?, pinned.allocate(1_000)?));
            pinned.empty_cache()?;
            Ok(())
        };
        let result = work();
        let failed = fake.failed() > 0;
        fake.clear_failures();
        assert_eq!(bytes(&pinned)[0], 0, "call {failing}: {result:?}");
        // What was parked may come first.
        while pinned.empty_cache().is_err() {}
        assert_eq!(bytes(&pinned), [0, 0, 0], "call {failing}: {result:?}");
        assert_eq!(fake.live().pinned, 0, "call {failing}: {result:?}");
        let used = pinned.allocate(100).unwrap();
        drop((used, stream, pinned, device));
        assert_eq!(fake.live(), tonnage_fake_cuda::Live::default(), "call {failing}");
        if !failed {
            break;
        }
        failing += 1;
    }
    assert!(failing > 20, "only {failing} calls");
}
