//! The host device's memory: real, shared between mappings, and gone when given back.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tonnage_device::host::{FREED, FRESH, Host};
use tonnage_device::{Device, DeviceError, MemoryInfo};
use tonnage_events::{
    Address, BlockEvent, DeviceId, Event, PoolId, PoolKind, SegmentEvent, SplitChange, StreamId,
};

const MIB: u64 = 1 << 20;

fn misused<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Misuse { .. })), "{result:?}");
}

fn bytes(host: &Host, address: Address, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    host.read(address, &mut bytes).unwrap();
    bytes
}

fn block(address: Address, size: u64, stream: StreamId) -> BlockEvent {
    BlockEvent {
        address,
        size,
        requested: size,
        stream,
        pool: PoolId::DEFAULT,
        kind: PoolKind::Small,
        oversize: false,
        split: SplitChange::default(),
    }
}

#[test]
fn segments_start_as_zero_keep_their_bytes_and_are_aligned_like_a_gpus() {
    let mut host = Host::new(1 << 30);
    let segments: Vec<_> =
        [1, 4097, 2 * MIB, 20 * MIB].map(|size| (host.acquire(size).unwrap(), size)).into();
    for (index, &(address, size)) in segments.iter().enumerate() {
        assert_eq!(address.0 % (2 * MIB), 0, "{address}");
        assert_eq!(bytes(&host, address, size as usize), vec![0; size as usize]);
        host.fill(address, index as u8 + 1, size).unwrap();
    }
    for (index, &(address, size)) in segments.iter().enumerate() {
        assert_eq!(bytes(&host, address, size as usize), vec![index as u8 + 1; size as usize]);
    }
}

#[test]
fn a_page_shows_the_same_bytes_at_two_addresses_and_keeps_them_unmapped() {
    let mut host = Host::new(1 << 30);
    let range = host.reserve(64 * MIB).unwrap();
    let [one, two] = [2 * MIB, 40 * MIB].map(|at| range.offset(at));
    let page = host.create_page(4 * MIB).unwrap();
    host.map(page, one).unwrap();
    host.map(page, two).unwrap();
    host.write(one.offset(3 * MIB), b"written once").unwrap();
    assert_eq!(bytes(&host, two.offset(3 * MIB), 12), b"written once");
    host.write(two.offset(3 * MIB), b"W").unwrap();
    assert_eq!(bytes(&host, one.offset(3 * MIB), 12), b"Written once");
    host.unmap(one).unwrap();
    misused(host.read(one.offset(3 * MIB), &mut [0; 12]));
    assert_eq!(bytes(&host, two.offset(3 * MIB), 12), b"Written once");
    misused(host.destroy_page(page));
    host.unmap(two).unwrap();
    host.map(page, range).unwrap();
    assert_eq!(bytes(&host, range.offset(3 * MIB), 12), b"Written once");
    host.unmap(range).unwrap();
    host.destroy_page(page).unwrap();
    host.unreserve(range).unwrap();
    assert_eq!((host.used(), host.handles()), (0, 0));
}

#[test]
fn new_pages_are_zero_whatever_was_destroyed_before() {
    let mut host = Host::new(4 * MIB);
    let range = host.reserve(4 * MIB).unwrap();
    for _ in 0..4 {
        let page = host.create_page(4 * MIB).unwrap();
        host.map(page, range).unwrap();
        assert_eq!(bytes(&host, range, 4 << 20), vec![0; 4 << 20]);
        host.fill(range, 0xEE, 4 * MIB).unwrap();
        host.unmap(range).unwrap();
        host.destroy_page(page).unwrap();
    }
}

#[test]
fn neighbouring_pages_are_one_range_and_a_hole_is_not() {
    let mut host = Host::new(1 << 30);
    let range = host.reserve(16 * MIB).unwrap();
    let pages = [0; 3].map(|_| host.create_page(2 * MIB).unwrap());
    for (page, at) in pages.into_iter().zip([0, 2, 6]) {
        host.map(page, range.offset(at * MIB)).unwrap();
    }
    host.fill(range.offset(MIB), 7, 3 * MIB).unwrap();
    assert_eq!(bytes(&host, range.offset(MIB), 3 << 20), vec![7; 3 << 20]);
    misused(host.fill(range.offset(MIB), 7, 3 * MIB + 1));
    misused(host.fill(range.offset(3 * MIB), 7, 4 * MIB));
    misused(host.fill(range.offset(6 * MIB), 7, 3 * MIB));
    host.unmap(range.offset(2 * MIB)).unwrap();
    misused(host.write(range.offset(2 * MIB - 1), &[0; 2]));
    host.write(range.offset(2 * MIB - 1), &[0; 1]).unwrap();
}

#[test]
fn ranges_outside_of_memory_are_refused_and_nothing_is_touched() {
    let mut host = Host::new(1 << 30);
    let size = 2 * MIB + 100;
    let segment = host.acquire(size).unwrap();
    let reserved = host.reserve(2 * MIB).unwrap();
    host.fill(segment, 1, size).unwrap();
    for (address, length) in [
        (segment, size + 1),
        (segment.offset(size), 1),
        (Address(segment.0 - 1), 2),
        (segment, u64::MAX),
        (segment.offset(1), u64::MAX),
        (reserved, 1),
        (Address(0), 1),
        (Address(u64::MAX), 1),
        (Address(u64::MAX), u64::MAX),
    ] {
        misused(host.fill(address, 2, length));
        misused(host.pointer(address, length));
    }
    misused(host.write(segment.offset(size - 1), &[2, 2]));
    misused(host.read(segment.offset(size - 1), &mut [0; 2]));
    assert_eq!(bytes(&host, segment, size as usize), vec![1; size as usize]);
    host.write(Address(0), &[]).unwrap();
    host.release(segment).unwrap();
    misused(host.read(segment, &mut [0]));
}

#[test]
fn segments_and_pages_share_the_capacity() {
    let mut host = Host::new(10 * MIB).with_id(DeviceId(3));
    assert_eq!((host.id(), host.total()), (DeviceId(3), 10 * MIB));
    let segment = host.acquire(6 * MIB).unwrap();
    let page = host.create_page(2 * MIB).unwrap();
    assert_eq!(host.memory_info(), Ok(MemoryInfo { free: 2 * MIB, total: 10 * MIB }));
    assert_eq!(host.acquire(3 * MIB), Err(DeviceError::OutOfMemory { requested: 3 * MIB }));
    assert_eq!(host.create_page(4 * MIB), Err(DeviceError::OutOfMemory { requested: 4 * MIB }));
    assert_eq!(host.used(), 8 * MIB);
    host.release(segment).unwrap();
    host.acquire(8 * MIB).unwrap();
    host.destroy_page(page).unwrap();
    host.acquire(2 * MIB).unwrap();
    assert_eq!(host.memory_info(), Ok(MemoryInfo { free: 0, total: 10 * MIB }));
}

#[test]
fn a_capacity_beyond_the_machine_costs_nothing_until_the_system_itself_refuses() {
    let mut host = Host::new(u64::MAX);
    let large = host.acquire(1 << 40).unwrap();
    host.write(large.offset((1 << 40) - 1), &[9]).unwrap();
    assert_eq!(bytes(&host, large.offset((1 << 40) - 2), 2), [0, 9]);
    for size in [1 << 60, u64::MAX - (1 << 41)] {
        assert_eq!(host.acquire(size), Err(DeviceError::OutOfMemory { requested: size }));
    }
    // Addresses are not memory: to lack them is not to be out of memory.
    assert!(matches!(
        host.reserve(1 << 60),
        Err(DeviceError::Driver { call: "mmap", code: libc::ENOMEM, .. })
    ));
    assert_eq!(host.used(), 1 << 40);
}

/// Runs the named test again in another process, which ends by touching memory that is not there.
fn faults_in_another_process(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("TONNAGE_TOUCH", test)
        // AddressSanitizer would turn the signal into an exit code.
        .env("ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(words.contains("about to touch"), "{words}");
    assert!(!words.contains("survived"), "{words}");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{:?} {words}", output.status);
}

fn touch(pointer: *mut u8) {
    println!("about to touch");
    // SAFETY: none. In a process of its own, this access shall end the process.
    let byte = unsafe { pointer.read_volatile() };
    println!("survived: {byte}");
}

#[test]
fn touching_an_unmapped_page_faults() {
    const NAME: &str = "memory::touching_an_unmapped_page_faults";
    if std::env::var("TONNAGE_TOUCH").as_deref() != Ok(NAME) {
        return faults_in_another_process(NAME);
    }
    let mut host = Host::new(1 << 30);
    let range = host.reserve(8 * MIB).unwrap();
    let page = host.create_page(2 * MIB).unwrap();
    host.map(page, range).unwrap();
    let pointer = host.pointer(range, 1).unwrap();
    host.write(range, &[1]).unwrap();
    host.unmap(range).unwrap();
    touch(pointer);
}

#[test]
fn touching_a_released_segment_faults() {
    const NAME: &str = "memory::touching_a_released_segment_faults";
    if std::env::var("TONNAGE_TOUCH").as_deref() != Ok(NAME) {
        return faults_in_another_process(NAME);
    }
    let mut host = Host::new(1 << 30);
    let segment = host.acquire(64 * MIB).unwrap();
    let pointer = host.pointer(segment, 1).unwrap();
    host.write(segment, &[1]).unwrap();
    host.release(segment).unwrap();
    touch(pointer);
}

#[test]
fn touching_memory_of_a_dropped_device_faults() {
    const NAME: &str = "memory::touching_memory_of_a_dropped_device_faults";
    if std::env::var("TONNAGE_TOUCH").as_deref() != Ok(NAME) {
        return faults_in_another_process(NAME);
    }
    let mut host = Host::new(1 << 30);
    let segment = host.acquire(64 * MIB).unwrap();
    let pointer = host.pointer(segment, 1).unwrap();
    drop(host);
    touch(pointer);
}

#[test]
fn blocks_are_filled_when_handed_out_and_when_back_in_their_pool() {
    let mut host = Host::new(1 << 30).poison(true);
    let segment = host.acquire(2 * MIB).unwrap();
    let inside = block(segment.offset(512), 1024, StreamId(0));
    host.observe(&Event::Alloc(inside));
    assert_eq!(bytes(&host, inside.address, 1024), [FRESH; 1024]);
    host.write(inside.address, &[1; 1024]).unwrap();
    // Freed, but perhaps in use by another stream: not yet.
    host.observe(&Event::FreeRequested(inside));
    assert_eq!(bytes(&host, inside.address, 1024), [1; 1024]);
    host.observe(&Event::FreeCompleted(inside));
    assert_eq!(bytes(&host, inside.address, 1024), [FREED; 1024]);
    assert_eq!(bytes(&host, segment, 512), [0; 512]);
    assert_eq!(bytes(&host, segment.offset(1536), 512), [0; 512]);
}

#[test]
fn without_poisoning_nothing_is_filled_and_elsewhere_never() {
    let mut host = Host::new(1 << 30);
    let segment = host.acquire(2 * MIB).unwrap();
    host.observe(&Event::FreeCompleted(block(segment, 512, StreamId(0))));
    assert_eq!(bytes(&host, segment, 512), [0; 512]);
    let mut host = host.poison(true);
    for (address, size) in [(segment, 4 * MIB), (Address(512), 512), (Address(u64::MAX), 512)] {
        host.observe(&Event::FreeCompleted(block(address, size, StreamId(0))));
    }
    host.observe(&Event::SegmentFree(SegmentEvent {
        address: segment,
        size: 2 * MIB,
        stream: StreamId(0),
        pool: PoolId::DEFAULT,
        kind: PoolKind::Small,
        oversize: false,
    }));
    assert_eq!(bytes(&host, segment, 512), [0; 512]);
}

#[test]
fn poisoning_waits_for_work_on_the_blocks_own_stream() {
    let mut host = Host::new(1 << 30).poison(true);
    let streams = host.streams();
    let stream = streams.create();
    let segment = host.acquire(2 * MIB).unwrap();
    host.write(segment, &[1; 512]).unwrap();
    let pointer = host.pointer(segment, 512).unwrap() as usize;
    let (go, blocked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    streams
        .launch(stream, move || {
            blocked.recv().unwrap();
            // SAFETY: mapped until the device is dropped, which waits for this; the fill of the
            // block comes behind this in the stream.
            tell.send(unsafe { (pointer as *const u8).read() }).unwrap();
        })
        .unwrap();
    // The owner lets go of it while its last work is still queued.
    host.observe(&Event::FreeCompleted(block(segment, 512, stream)));
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        go.send(()).unwrap();
    });
    assert_eq!(bytes(&host, segment, 512), [FREED; 512], "reading waits for the fill");
    assert_eq!(told.recv(), Ok(1), "the work saw what it was launched with");
    later.join().unwrap();
}

#[test]
fn poisoning_under_way_is_waited_for_before_pages_are_unmapped() {
    let mut host = Host::new(1 << 30).poison(true);
    let streams = host.streams();
    let range = host.reserve(2 * MIB).unwrap();
    let page = host.create_page(2 * MIB).unwrap();
    for round in 0..10 {
        host.map(page, range).unwrap();
        let stream = StreamId(round % 3);
        streams.launch(stream, || thread::sleep(Duration::from_millis(2))).unwrap();
        host.observe(&Event::FreeCompleted(block(range, 2 * MIB, stream)));
        host.unmap(range).unwrap();
    }
    host.map(page, range).unwrap();
    assert_eq!(bytes(&host, range, 2 << 20), vec![FREED; 2 << 20]);
}

#[test]
fn releasing_a_segment_waits_for_work_and_leaves_failures_to_those_who_ask() {
    let mut host = Host::new(1 << 30);
    let streams = host.streams();
    let stream = streams.create();
    let segment = host.acquire(2 * MIB).unwrap();
    let pointer = host.pointer(segment, 2 * MIB).unwrap() as usize;
    let (go, blocked) = mpsc::channel::<()>();
    streams
        .launch(stream, move || {
            blocked.recv().unwrap();
            // SAFETY: mapped: `release` waits for this work. Nothing else uses the segment.
            unsafe { (pointer as *mut u8).write_bytes(3, 2 << 20) };
            panic!("made to fail");
        })
        .unwrap();
    let event = host.record_event(stream).unwrap();
    assert_eq!(host.query_event(event), Ok(false));
    go.send(()).unwrap();
    host.release(segment).unwrap();
    assert!(matches!(host.query_event(event), Err(DeviceError::Driver { .. })));
    assert_eq!(host.query_event(event), Ok(true));
}
