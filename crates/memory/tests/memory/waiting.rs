//! Nobody who waits for a stream keeps others from the allocator.
//!
//! Each test would never end if someone did; none depends on how fast anything is. A watch ends them
//! after minutes.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tonnage_engine::StreamFilter;
use tonnage_events::PoolId;
use tonnage_fake_cuda::Fake;
use tonnage_memory::{Block, Contents, Device, DeviceOptions, Policy, Stream, StreamId};

use crate::MIB;

/// Fails if `test` does not end.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let runs = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(300)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("they wait for each other"),
        // Done, or panicked.
        _ => runs.join().unwrap(),
    }
}

/// Queues work that does its part after so many milliseconds, and returns when the work runs: what the caller does next
/// comes before that part or behind it, and both must do.
fn launch_late(stream: &Stream, milliseconds: u64, part: impl FnOnce() + Send + 'static) {
    let (begins, begun) = mpsc::channel();
    let work = move || {
        begins.send(()).unwrap();
        thread::sleep(Duration::from_millis(milliseconds));
        part();
    };
    stream.launch(work).unwrap();
    begun.recv().unwrap();
}

fn host() -> (Device, Stream) {
    let device = Device::host("1 GiB").unwrap();
    let stream = device.create_stream().unwrap();
    (device, stream)
}

/// Caches a segment: to give it back, the device waits for all work.
fn cache_a_segment(device: &Device) {
    drop(device.allocate(30 * MIB).unwrap());
}

/// Calls that wait for work.
const WAITS: [&str; 6] = [
    "Stream::synchronize",
    "Device::synchronize",
    "drop(stream)",
    "Block::read",
    "Block::write",
    "Memory::empty_cache",
];

fn wait(how: &str, stream: Stream, block: &Block) {
    match how {
        "Stream::synchronize" => stream.synchronize().unwrap(),
        "Device::synchronize" => stream.device().synchronize(stream.id()).unwrap(),
        "drop(stream)" => drop(stream),
        "Block::read" => block.read(0, &mut [0; 8]).unwrap(),
        "Block::write" => block.write(0, &[0; 8]).unwrap(),
        "Memory::empty_cache" => stream.device().memory().empty_cache().unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn on_the_host_threads_allocate_while_another_waits_for_work() {
    watched(|| {
        for (how, poison) in WAITS.into_iter().flat_map(|how| [(how, false), (how, true)]) {
            let options = DeviceOptions { poison, ..DeviceOptions::default() };
            let device = Device::host_with("1 GiB", options).unwrap();
            let stream = device.create_stream().unwrap();
            let block = device.allocate_on(4096, stream.id()).unwrap();
            cache_a_segment(&device);
            // Ends when a block was handed out and given back.
            let (go, until_allocated) = mpsc::channel();
            stream.launch(move || until_allocated.recv().unwrap()).unwrap();
            let (begins, begun) = mpsc::channel();
            let waiter = thread::spawn(move || {
                begins.send(()).unwrap();
                wait(how, stream, &block);
            });
            begun.recv().unwrap();
            // It may wait by now, or not yet: both must do.
            thread::sleep(Duration::from_millis(20));
            drop(device.allocate(1000).unwrap());
            go.send(()).unwrap();
            waiter.join().unwrap();
            assert_eq!(device.memory().allocated(), 0, "{how}");
        }
    });
}

/// Another thread calls the driver, which does not answer: meanwhile this one allocates.
fn allocates_while_waiting(fake: &Fake, device: &Device, how: &str, call: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let waiter = scope.spawn(call);
        while fake.waiting() == 0 {
            assert!(!waiter.is_finished(), "{how} did not wait");
            thread::yield_now();
        }
        drop(device.allocate(1000).unwrap());
        assert_eq!(fake.waiting(), 1, "{how}");
        fake.complete_events();
        waiter.join().unwrap();
    });
}

#[test]
fn on_a_gpu_threads_allocate_while_another_waits_for_work() {
    watched(|| {
        for how in WAITS {
            let (fake, device) = crate::cuda(DeviceOptions::default());
            let stream = device.create_stream().unwrap();
            let block = device.allocate_on(4096, stream.id()).unwrap();
            cache_a_segment(&device);
            fake.hold_waits();
            // Something is queued there.
            let used = device.allocate(4096).unwrap();
            used.record_stream(stream.id());
            drop(used);
            allocates_while_waiting(&fake, &device, how, || wait(how, stream, &block));
            drop(block);
            assert_eq!(device.memory().allocated(), 0, "{how}");
        }
    });
}

#[test]
fn a_resume_returns_when_contents_are_on_the_gpu_and_keeps_nobody_from_the_allocator() {
    watched(|| {
        for of_pool in [false, true] {
            let policy = Some(Policy::from_conf("policy:pages").unwrap());
            let (fake, device) = crate::cuda(DeviceOptions { policy, ..DeviceOptions::default() });
            let outside = device.allocate(1000).unwrap();
            let pool = PoolId(0, 5);
            device
                .with_engine(|engine| engine.begin_allocate_to_pool(pool, StreamFilter::Any))
                .unwrap();
            let inside = device.allocate(1000).unwrap();
            device.with_engine(|engine| engine.end_allocate_to_pool(pool)).unwrap();
            let (kept, memory) = (if of_pool { &inside } else { &outside }, device.memory());
            kept.write(0, &[7; 1000]).unwrap();
            let paused =
                || if of_pool { !memory.paused_pools().is_empty() } else { memory.is_paused() };
            match of_pool {
                true => memory.pause_pool(pool, Contents::Kept),
                false => memory.pause(Contents::Kept),
            }
            .unwrap();
            // A copy comes back when its bytes were read; who waits for what is queued there waits until told.
            fake.hold_waits();
            thread::scope(|scope| {
                let resumed = scope
                    .spawn(|| if of_pool { memory.resume_pool(pool) } else { memory.resume() });
                while fake.waiting() == 0 {
                    assert!(!resumed.is_finished(), "it did not wait for its copies");
                    thread::yield_now();
                }
                assert!(paused());
                assert_eq!(device.allocate(500).is_ok(), of_pool);
                assert_eq!(fake.waiting(), 1);
                fake.complete_events();
                resumed.join().unwrap().unwrap();
            });
            assert!(!paused());
            let mut bytes = [0; 1000];
            kept.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 1000]);
        }
    });
}

#[test]
fn on_a_gpu_threads_allocate_while_another_copies() {
    watched(|| {
        let (fake, device) = crate::cuda(DeviceOptions::default());
        let block = device.allocate(1000).unwrap();
        fake.hold_copies();
        allocates_while_waiting(&fake, &device, "write", || block.write(10, &[7; 20]).unwrap());
        fake.hold_copies();
        let mut bytes = [0; 22];
        allocates_while_waiting(&fake, &device, "read", || block.read(9, &mut bytes).unwrap());
        assert_eq!((bytes[0], &bytes[1..21], bytes[21]), (0, &[7; 20][..], 0));
    });
}

#[test]
fn on_a_gpu_threads_allocate_while_pinned_memory_goes_back() {
    watched(|| {
        let (fake, device) = crate::cuda(DeviceOptions::default());
        let side = device.create_stream().unwrap();
        drop(device.pinned().allocate(1000).unwrap());
        fake.hold_waits();
        let used = device.allocate(1000).unwrap();
        used.record_stream(side.id());
        drop(used);
        let empty = || device.pinned().empty_cache().unwrap();
        allocates_while_waiting(&fake, &device, "PinnedAllocator::empty_cache", empty);
        assert_eq!(fake.live().pinned, 0);
    });
}

#[test]
fn on_a_gpu_threads_allocate_while_a_copy_waits_for_the_default_stream() {
    watched(|| {
        let (fake, device) = crate::cuda(DeviceOptions::default());
        let side = device.create_stream().unwrap();
        let [block, used] = [0, 1].map(|_| device.allocate_on(1000, side.id()).unwrap());
        fake.hold_waits();
        used.record_stream(StreamId::DEFAULT);
        drop(used);
        // The block's own stream is not late.
        fake.complete_events_of(side.id().0, 0);
        let read = || block.read(0, &mut [0; 8]).unwrap();
        allocates_while_waiting(&fake, &device, "read", read);
    });
}

#[test]
fn emptying_a_cache_from_which_nothing_can_go_back_waits_for_nobody() {
    watched(|| {
        let (device, stream) = host();
        let kept = device.allocate(1000).unwrap();
        // Part of a segment in use.
        drop(device.allocate(1000).unwrap());
        let (go, until_emptied) = mpsc::channel();
        stream.launch(move || until_emptied.recv().unwrap()).unwrap();
        device.memory().empty_cache().unwrap();
        go.send(()).unwrap();
        assert_eq!((kept.requested(), device.memory().reserved()), (1000, 2 * MIB));
    });
}

#[test]
fn work_that_drops_a_block_and_who_reads_another_both_end() {
    watched(|| {
        for round in 0..20 {
            let (device, stream) = host();
            let [mine, other] = [0, 1].map(|_| device.allocate_on(MIB, stream.id()).unwrap());
            launch_late(&stream, round, || drop(other));
            mine.read(0, &mut [0; 4]).unwrap();
            drop(mine);
            stream.synchronize().unwrap();
            assert_eq!(device.memory().allocated(), 0);
        }
    });
}

#[test]
fn work_drops_blocks_while_memory_goes_back_to_the_device() {
    watched(|| {
        for round in 0..20 {
            let (device, stream) = host();
            let blocks: Vec<_> =
                (0..8).map(|_| device.allocate_on(5 * MIB, stream.id()).unwrap()).collect();
            cache_a_segment(&device);
            launch_late(&stream, round, || drop(blocks));
            device.memory().empty_cache().unwrap();
            assert_eq!(device.allocate_on(1, StreamId::DEFAULT).unwrap().requested(), 1);
            stream.synchronize().unwrap();
            assert_eq!(device.memory().allocated(), 0);
            device.memory().check_invariants().unwrap();
            device.memory().empty_cache().unwrap();
            assert_eq!(device.memory().reserved(), 0);
        }
    });
}

#[test]
fn work_drops_blocks_while_a_request_gives_memory_back_to_the_device() {
    watched(|| {
        for round in 0..20 {
            let (device, stream) = host();
            let block = device.allocate_on(5 * MIB, stream.id()).unwrap();
            cache_a_segment(&device);
            launch_late(&stream, round, || drop(block));
            // There is room once the segment went back, for which all work is waited for, with the lock.
            let most = device.allocate(990 * MIB).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(device.memory().allocated(), most.size());
            device.memory().check_invariants().unwrap();
        }
    });
}

#[test]
fn threads_of_work_drop_blocks_while_memory_goes_back_to_the_device() {
    watched(|| {
        for round in 0..20 {
            let (device, stream) = host();
            let block = device.allocate_on(5 * MIB, stream.id()).unwrap();
            cache_a_segment(&device);
            launch_late(&stream, round, || {
                thread::scope(|scope| scope.spawn(move || drop(block)).join().unwrap());
            });
            device.memory().empty_cache().unwrap();
            stream.synchronize().unwrap();
            assert_eq!(device.memory().allocated(), 0);
            device.memory().check_invariants().unwrap();
        }
    });
}

#[test]
fn work_of_one_device_drops_blocks_of_another_that_gives_memory_back() {
    watched(|| {
        for round in 0..20 {
            let [(one, first), (_, second)] = [host(), host()];
            let block = one.allocate(5 * MIB).unwrap();
            cache_a_segment(&one);
            // Work of the first waits for work of the second, which drops a block of the first.
            let (dropped, until_dropped) = mpsc::channel();
            launch_late(&first, 0, move || until_dropped.recv().unwrap());
            launch_late(&second, round, move || {
                drop(block);
                dropped.send(()).unwrap();
            });
            one.memory().empty_cache().unwrap();
            assert_eq!(one.memory().allocated(), 0);
            one.memory().check_invariants().unwrap();
        }
    });
}

#[test]
fn work_obtains_pinned_memory_while_memory_goes_back_to_the_device() {
    watched(|| {
        for round in 0..20 {
            let (device, stream) = host();
            cache_a_segment(&device);
            let pinned = device.pinned();
            launch_late(&stream, round, move || {
                drop(pinned.allocate(1_000).unwrap());
                pinned.empty_cache().unwrap();
            });
            device.memory().empty_cache().unwrap();
            stream.synchronize().unwrap();
            assert_eq!(device.pinned().stats().allocations, 1);
        }
    });
}

#[test]
fn a_thousand_blocks_that_work_drops_are_back_when_it_is_done() {
    watched(|| {
        let device = Device::host("4 GiB").unwrap();
        let stream = device.create_stream().unwrap();
        let blocks: Vec<_> =
            (0..1_000).map(|_| device.allocate_on(MIB / 2, stream.id()).unwrap()).collect();
        // Each is a segment of its own, and for each all work is waited for.
        let segments: Vec<_> = (0..50).map(|_| device.allocate(20 * MIB).unwrap()).collect();
        drop(segments);
        launch_late(&stream, 0, || {
            for block in blocks {
                drop(block);
                thread::yield_now();
            }
        });
        device.memory().empty_cache().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(device.memory().allocated(), 0);
        let stats = device.memory().stats().allocation.all;
        assert_eq!((stats.allocated, stats.freed), (1_050, 1_050));
        // Room for a request that takes the whole device, at once.
        drop(device.allocate(4 << 30).unwrap());
        device.memory().check_invariants().unwrap();
    });
}
