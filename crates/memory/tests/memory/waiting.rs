//! Nobody who waits for a stream keeps others from the allocator.
//!
//! Each test would never end if someone did; none depends on how fast anything is. A watch ends them
//! after minutes.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tonnage_memory::{Block, Device, DeviceOptions, Stream, StreamId};

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

/// Calls that wait for a stream.
const WAITS: [&str; 5] =
    ["Stream::synchronize", "Device::synchronize", "drop(stream)", "Block::read", "Block::write"];

fn wait(how: &str, stream: Stream, block: &Block) {
    match how {
        "Stream::synchronize" => stream.synchronize().unwrap(),
        "Device::synchronize" => stream.device().synchronize(stream.id()).unwrap(),
        "drop(stream)" => drop(stream),
        "Block::read" => block.read(0, &mut [0; 8]).unwrap(),
        "Block::write" => block.write(0, &[0; 8]).unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn on_the_host_threads_allocate_while_another_waits_for_a_stream() {
    watched(|| {
        for (how, poison) in WAITS.into_iter().flat_map(|how| [(how, false), (how, true)]) {
            let options = DeviceOptions { poison, ..DeviceOptions::default() };
            let device = Device::host_with("1 GiB", options).unwrap();
            let stream = device.create_stream().unwrap();
            let block = device.allocate_on(4096, stream.id()).unwrap();
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

#[test]
fn on_a_gpu_threads_allocate_while_another_waits_for_a_stream() {
    watched(|| {
        for how in WAITS {
            let (fake, device) = crate::cuda(DeviceOptions::default());
            let stream = device.create_stream().unwrap();
            let block = device.allocate_on(4096, stream.id()).unwrap();
            fake.hold_waits();
            // Something is queued there.
            let used = device.allocate(4096).unwrap();
            used.record_stream(stream.id());
            drop(used);
            let waiter = thread::spawn(move || wait(how, stream, &block));
            while fake.waiting() == 0 {
                thread::yield_now();
            }
            drop(device.allocate(1000).unwrap());
            assert_eq!(fake.waiting(), 1, "{how}");
            fake.complete_events();
            waiter.join().unwrap();
            assert_eq!(device.memory().allocated(), 0, "{how}");
        }
    });
}

#[test]
fn work_that_drops_a_block_and_who_reads_another_both_end() {
    watched(|| {
        for round in 0..20 {
            let device = Device::host("1 GiB").unwrap();
            let stream = device.create_stream().unwrap();
            let [mine, other] = [0, 1].map(|_| device.allocate_on(MIB, stream.id()).unwrap());
            let (begins, begun) = mpsc::channel();
            stream
                .launch(move || {
                    begun.recv().unwrap();
                    thread::sleep(Duration::from_millis(round));
                    drop(other);
                })
                .unwrap();
            begins.send(()).unwrap();
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
            let device = Device::host("1 GiB").unwrap();
            let stream = device.create_stream().unwrap();
            let blocks: Vec<_> =
                (0..8).map(|_| device.allocate_on(5 * MIB, stream.id()).unwrap()).collect();
            // Cached, so that there is a segment to give back, for which all work is waited for.
            drop(device.allocate(30 * MIB).unwrap());
            let (begins, begun) = mpsc::channel();
            stream
                .launch(move || {
                    begins.send(()).unwrap();
                    thread::sleep(Duration::from_millis(round));
                    drop(blocks);
                })
                .unwrap();
            begun.recv().unwrap();
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
fn threads_of_work_drop_blocks_while_memory_goes_back_to_the_device() {
    watched(|| {
        for round in 0..20 {
            let device = Device::host("1 GiB").unwrap();
            let stream = device.create_stream().unwrap();
            let block = device.allocate_on(5 * MIB, stream.id()).unwrap();
            drop(device.allocate(30 * MIB).unwrap());
            let (begins, begun) = mpsc::channel();
            stream
                .launch(move || {
                    begins.send(()).unwrap();
                    // The other may have the allocator by now, or not yet: both must do.
                    thread::sleep(Duration::from_millis(round));
                    thread::scope(|scope| scope.spawn(move || drop(block)).join().unwrap());
                })
                .unwrap();
            begun.recv().unwrap();
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
            let [one, two] = [0, 1].map(|_| Device::host("1 GiB").unwrap());
            let streams = [&one, &two].map(|device| device.create_stream().unwrap());
            let block = one.allocate(5 * MIB).unwrap();
            drop(one.allocate(30 * MIB).unwrap());
            // Work of the first waits for work of the second, which drops a block of the first.
            let (dropped, until_dropped) = mpsc::channel();
            let (begins, begun) = mpsc::channel();
            streams[0]
                .launch(move || {
                    begins.send(()).unwrap();
                    until_dropped.recv().unwrap();
                })
                .unwrap();
            begun.recv().unwrap();
            streams[1]
                .launch(move || {
                    thread::sleep(Duration::from_millis(round));
                    drop(block);
                    dropped.send(()).unwrap();
                })
                .unwrap();
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
            let device = Device::host("1 GiB").unwrap();
            let stream = device.create_stream().unwrap();
            drop(device.allocate(30 * MIB).unwrap());
            let (begins, begun) = mpsc::channel();
            let pinned = device.pinned();
            stream
                .launch(move || {
                    begins.send(()).unwrap();
                    thread::sleep(Duration::from_millis(round));
                    drop(pinned.allocate(1_000).unwrap());
                    pinned.empty_cache().unwrap();
                })
                .unwrap();
            begun.recv().unwrap();
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
        let (begins, begun) = mpsc::channel();
        stream
            .launch(move || {
                begins.send(()).unwrap();
                for block in blocks {
                    drop(block);
                    thread::yield_now();
                }
            })
            .unwrap();
        begun.recv().unwrap();
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
