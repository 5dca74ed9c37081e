//! The `cuda` device on the fake driver: what it promises, and what only it can do.

use crate::support::*;
use tonnage_device::{Device, DeviceError, EventId, MemoryInfo, PageId};
use tonnage_events::{Address, StreamId};
use tonnage_fake_cuda::{Live, control};

tonnage_device::device_conformance!(cuda_on_fake, device());

#[test]
fn bytes_that_were_written_are_read_and_stay_inside_the_segment() {
    let mut device = device();
    let segment = device.acquire(2 * MIB).unwrap();
    device.write(segment.offset(MIB), b"tonnage").unwrap();
    let mut bytes = [0; 7];
    device.read(segment.offset(MIB), &mut bytes).unwrap();
    assert_eq!(&bytes, b"tonnage");
    device.write(segment.offset(2 * MIB - 7), &bytes).unwrap();
    let not_all = "not all memory of this device";
    assert_refused(device.write(segment.offset(2 * MIB - 6), &bytes), not_all);
    assert_refused(device.read(Address(segment.0 - 1), &mut bytes), not_all);
    device.read(segment.offset(2 * MIB), &mut []).unwrap();
    device.release(segment).unwrap();
    assert_refused(device.read(segment, &mut bytes), not_all);
}

#[test]
fn a_page_at_two_addresses_has_one_content() {
    let mut device = device();
    let range = device.reserve(64 * MIB).unwrap();
    let [page, other] = [0, 1].map(|_| device.create_page(4 * MIB).unwrap());
    device.map(page, range).unwrap();
    device.map(other, range.offset(4 * MIB)).unwrap();
    device.map(page, range.offset(20 * MIB)).unwrap();
    // Across the border of two pages, one of which is seen elsewhere.
    device.write(range.offset(4 * MIB - 3), b"abcdef").unwrap();
    let mut bytes = [0; 3];
    device.read(range.offset(24 * MIB - 3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
    assert_refused(device.read(range.offset(24 * MIB - 2), &mut bytes), "not all memory");
    // Contents go with the page, not with the address.
    device.unmap(range).unwrap();
    device.unmap(range.offset(20 * MIB)).unwrap();
    assert_refused(device.read(range, &mut bytes), "not all memory");
    device.map(page, range.offset(8 * MIB)).unwrap();
    device.read(range.offset(12 * MIB - 3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
}

#[test]
fn another_device_reaches_pages_once_they_are_shared_with_it() {
    let fake = fake();
    let mut device = open(&fake, 1).unwrap();
    let range = device.reserve(16 * MIB).unwrap();
    let page = device.create_page(4 * MIB).unwrap();
    let ends = [range, range.offset(8 * MIB)];
    let reached = || ends.map(|at| [0, 1].map(|it| fake.reaches(it, at.0)));
    device.map(page, ends[0]).unwrap();
    assert_eq!(reached(), [[false, true], [false, false]]);
    let absent = device.share_pages_with(2).unwrap_err();
    assert!(matches!(absent, DeviceError::Driver { .. }), "{absent}");
    for _ in 0..2 {
        device.share_pages_with(0).unwrap();
    }
    device.map(page, ends[1]).unwrap();
    assert_eq!(reached(), [[true; 2]; 2]);
    // Whoever gets these addresses next shares them by itself.
    device.unmap(ends[0]).unwrap();
    assert_eq!(reached(), [[false; 2], [true; 2]]);
    // One's own memory is within reach anyhow.
    device.share_pages_with(1).unwrap();
    device.map(page, ends[0]).unwrap();
    assert_eq!(reached(), [[true; 2]; 2]);
}

#[test]
fn queued_fills_and_copies_arrive() {
    let mut device = device();
    let stream = device.create_stream().unwrap();
    let segment = device.acquire(2 * MIB).unwrap();
    let pinned = device.pinned().acquire(16).unwrap();
    device.fill(segment, 7, 16, stream).unwrap();
    let bytes = std::ptr::slice_from_raw_parts_mut(pinned.as_ptr(), 16);
    // SAFETY: the pinned memory lives until it is released below, after the stream is done.
    unsafe { device.read_async(segment, bytes, stream) }.unwrap();
    device.synchronize(stream).unwrap();
    // SAFETY: as above, and what was queued is done.
    assert_eq!(unsafe { pinned.read() }, 7);
    // SAFETY: as for the first copy.
    unsafe { device.write_async(segment.offset(MIB), bytes, stream) }.unwrap();
    device.synchronize(stream).unwrap();
    let mut back = [0; 16];
    device.read(segment.offset(MIB), &mut back).unwrap();
    assert_eq!(back, [7; 16]);
    // SAFETY: what was queued is done.
    unsafe { device.pinned().release(pinned) }.unwrap();
    // SAFETY: nothing is queued.
    assert_refused(unsafe { device.pinned().release(pinned) }, "no pinned memory");
    assert_refused(device.fill(segment, 0, 2 * MIB + 1, stream), "not all memory");
}

#[test]
fn events_are_late_until_the_work_before_them_is_done() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let [one, two] = [0, 1].map(|_| device.create_stream().unwrap());
    fake.hold_events();
    let first = device.record_event(one).unwrap();
    let second = device.record_event(two).unwrap();
    assert_eq!((device.query_event(first), device.query_event(second)), (Ok(false), Ok(false)));
    assert_eq!(device.query_stream(two), Ok(false));
    fake.complete_events_of(two.0, 0);
    assert_eq!((device.query_event(first), device.query_event(second)), (Ok(false), Ok(true)));
    assert_eq!(device.query_stream(two), Ok(true));
    // What is queued behind a wait is as late as what it waits for.
    device.wait_on(two, first).unwrap();
    let third = device.record_event(two).unwrap();
    assert_eq!(device.query_event(third), Ok(false));
    device.wait_event(third).unwrap();
    assert_eq!((device.query_event(first), device.query_event(third)), (Ok(true), Ok(true)));
    let last = device.record_event(one).unwrap();
    assert_eq!(device.query_event(last), Ok(false));
    device.synchronize(one).unwrap();
    assert_eq!(device.query_event(last), Ok(true));
}

#[test]
fn releasing_a_segment_waits_for_work() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let stream = device.create_stream().unwrap();
    fake.hold_events();
    let segment = device.acquire(2 * MIB).unwrap();
    device.fill(segment, 1, MIB, stream).unwrap();
    let event = device.record_event(stream).unwrap();
    assert_eq!(device.query_event(event), Ok(false));
    device.release(segment).unwrap();
    assert_eq!(device.query_event(event), Ok(true));
}

#[test]
fn events_of_the_driver_are_used_again_under_new_numbers() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let [one, two] = [0, 1].map(|_| device.record_event(StreamId(0)).unwrap());
        assert!(seen.insert(one) && seen.insert(two));
        device.destroy_event(one).unwrap();
        device.destroy_event(two).unwrap();
        assert_refused(device.query_event(one), "no event");
    }
    assert_eq!(fake.live().events, 2);
    drop(device);
    assert_nothing_left(&fake, "dropped");
}

#[test]
fn stale_and_foreign_numbers_are_refused() {
    let mut device = device();
    let stream = device.create_stream().unwrap();
    device.destroy_stream(stream).unwrap();
    let event = device.record_event(StreamId(0)).unwrap();
    for stream in [StreamId(3), StreamId(u64::MAX)] {
        assert_refused(device.record_event(stream), "no stream");
        assert_refused(device.synchronize(stream), "no stream");
    }
    // Memory used on a stream that has ended must still go back, so waiting for it is allowed.
    let late = device.record_event(stream).unwrap();
    device.wait_event(late).unwrap();
    device.destroy_event(late).unwrap();
    device.synchronize(stream).unwrap();
    for stream in [stream, StreamId(3), StreamId(u64::MAX)] {
        assert_refused(device.wait_on(stream, event), "no stream");
        assert_refused(device.destroy_stream(stream), "no stream");
        assert_refused(device.forget_stream(stream), "no stream");
    }
    for event in [EventId(7), EventId(1 << 32), EventId(u64::MAX)] {
        assert_refused(device.query_event(event), "no event");
        assert_refused(device.wait_on(StreamId(0), event), "no event");
    }
    assert_refused(device.destroy_page(PageId(1)), "no page");
    assert_refused(device.map(PageId(u64::MAX), Address(2 * MIB)), "no page");
    let range = device.reserve(4 * MIB).unwrap();
    let page = device.create_page(4 * MIB).unwrap();
    for address in [Address(0), Address(u64::MAX - 2 * MIB + 1), range.offset(2 * MIB)] {
        assert_refused(device.map(page, address), "no reserved range");
    }
    assert_refused(device.unmap(Address(u64::MAX)), "no mapping");
}

#[test]
fn streams_of_others_can_be_adopted_and_are_not_ended() {
    let fake = fake();
    let mut owner = open(&fake, 0).unwrap();
    let mut guest = open(&fake, 0).unwrap();
    let stream = owner.create_stream().unwrap();
    assert_refused(guest.record_event(stream), "no stream");
    // SAFETY: `owner` keeps the stream alive to the end of the test.
    unsafe { guest.adopt_stream(stream) };
    let event = guest.record_event(stream).unwrap();
    assert_eq!(guest.query_event(event), Ok(true));
    assert_refused(guest.destroy_stream(stream), "no stream");
    guest.forget_stream(stream).unwrap();
    assert_refused(guest.forget_stream(stream), "no stream");
    assert_refused(guest.wait_on(stream, event), "no stream");
    // Memory that was used on it goes back nevertheless.
    let late = guest.record_event(stream).unwrap();
    guest.wait_event(late).unwrap();
    guest.synchronize(stream).unwrap();
    drop(guest);
    assert_eq!((fake.live().streams, fake.live().contexts), (1, 1));
}

#[test]
fn a_stream_that_was_left_may_go_and_its_work_is_still_waited_for() {
    let fake = fake();
    let mut owner = open(&fake, 0).unwrap();
    let mut guest = open(&fake, 0).unwrap();
    let stream = owner.create_stream().unwrap();
    assert_refused(guest.leave_stream(stream), "no stream");
    // SAFETY: `owner` keeps the stream alive until `guest` has left it.
    unsafe { guest.adopt_stream(stream) };
    fake.control(tonnage_fake_cuda::control::HOLD, stream.0, 0);
    guest.leave_stream(stream).unwrap();
    assert_refused(guest.leave_stream(stream), "no stream");
    let mark = guest.record_event(stream).unwrap();
    assert_eq!(guest.query_event(mark), Ok(false));
    fake.complete_events_of(stream.0, 0);
    assert_eq!(guest.query_event(mark), Ok(true));
    owner.destroy_stream(stream).unwrap();
    // The driver would follow the handle; what is asked now is a stream of the guest's own.
    let late = guest.record_event(stream).unwrap();
    assert_eq!(guest.query_event(late), Ok(true));
    guest.synchronize(stream).unwrap();
    assert_eq!(fake.live().streams, 1);
    drop(guest);
    assert_eq!(fake.live().streams, 0);
}

#[test]
fn memory_of_the_drivers_own_pool_is_a_segment_too() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let stream = device.create_stream().unwrap();
    let [one, two] = [0, 1].map(|_| device.acquire_from_pool(2 * MIB, stream).unwrap());
    device.write(one, b"pool").unwrap();
    device.release_to_pool(one, stream).unwrap();
    assert_refused(device.release_to_pool(one, stream), "no segment");
    device.release(two).unwrap();
    let plain = device.acquire(2 * MIB).unwrap();
    assert_refused(device.release_to_pool(plain, stream), "not from the driver's pool");
    device.release(plain).unwrap();
    assert_eq!(fake.used(0), 0);
}

#[test]
fn what_the_driver_cannot_give_is_out_of_memory() {
    let fake = fake();
    fake.set_capacity(0, 64 * MIB);
    let mut device = open(&fake, 0).unwrap();
    let segment = device.acquire(40 * MIB).unwrap();
    let calls = fake.calls();
    assert_eq!(device.acquire(40 * MIB), Err(DeviceError::OutOfMemory { requested: 40 * MIB }));
    assert!(fake.calls() > calls, "the driver was asked");
    assert_eq!(device.create_page(40 * MIB), Err(DeviceError::OutOfMemory { requested: 40 * MIB }));
    let free = MemoryInfo { free: 24 * MIB, total: 64 * MIB };
    assert_eq!(device.memory_info(), Ok(free));
    device.release(segment).unwrap();
    device.create_page(40 * MIB).unwrap();
}

#[test]
fn a_device_that_cannot_map_pages_says_so_and_still_has_segments() {
    let fake = fake();
    fake.control(control::VIRTUAL_MEMORY, 1, 0);
    let mut device = open(&fake, 1).unwrap();
    assert!(!device.properties().virtual_memory);
    let error = device.reserve(2 * MIB).unwrap_err().to_string();
    assert_eq!(error, "reserve failed with code 801: Fake CUDA device 1 cannot map pages");
    device.create_page(2 * MIB).unwrap_err();
    let segment = device.acquire(2 * MIB).unwrap();
    device.release(segment).unwrap();
}

#[test]
fn what_was_not_given_back_goes_back_with_the_device() {
    let fake = fake();
    let mut device = open(&fake, 1).unwrap();
    let stream = device.create_stream().unwrap();
    device.acquire(20 * MIB).unwrap();
    device.acquire_from_pool(2 * MIB, stream).unwrap();
    device.pinned().acquire(100).unwrap();
    let range = device.reserve(64 * MIB).unwrap();
    let page = device.create_page(20 * MIB).unwrap();
    device.map(page, range).unwrap();
    device.map(page, range.offset(40 * MIB)).unwrap();
    device.record_event(stream).unwrap();
    assert_books_agree(&fake, &device, "in use");
    drop(device);
    assert_nothing_left(&fake, "dropped");
}

#[test]
fn a_device_can_go_to_another_thread() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let segment = device.acquire(2 * MIB).unwrap();
    let mut device = std::thread::spawn(move || {
        device.write(segment, b"there").unwrap();
        device
    })
    .join()
    .unwrap();
    let mut bytes = [0; 5];
    device.read(segment, &mut bytes).unwrap();
    assert_eq!(&bytes, b"there");
    std::thread::spawn(move || drop(device)).join().unwrap();
    assert_nothing_left(&fake, "dropped elsewhere");
}

#[test]
fn who_waits_for_an_event_outlives_the_device() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let event = device.record_event(StreamId(0)).unwrap();
    let [wait, another] = [0, 1].map(|_| device.event_wait(event).unwrap());
    drop(device);
    let left = Live { events: 1, contexts: 1, ..Live::default() };
    assert_eq!(fake.live(), left, "the event and its context stay");
    wait.wait().unwrap();
    // The last of them ends the event in its context, which is current nowhere else.
    drop(wait);
    std::thread::spawn(move || another.wait().unwrap()).join().unwrap();
    assert_nothing_left(&fake, "nobody waits");
}

#[test]
fn a_device_is_dropped_while_another_thread_waits_for_its_event() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let stream = device.create_stream().unwrap();
    fake.hold_waits();
    let event = device.record_event(stream).unwrap();
    let wait = device.event_wait(event).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || wait.wait());
        let closer = scope.spawn(move || drop(device));
        // Both are in the driver: one waits for the event, the other for all work.
        while fake.waiting() < 2 {
            assert!(!waiter.is_finished() && !closer.is_finished());
            std::thread::yield_now();
        }
        fake.complete_events();
        waiter.join().unwrap().unwrap();
    });
    assert_nothing_left(&fake, "both are done");
}

#[test]
fn memory_is_copied_without_the_device_while_others_use_it() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let segment = device.acquire(2 * MIB).unwrap();
    assert_refused(device.held_memory("write", segment, 2 * MIB + 1), "not all memory");
    let memory = device.held_memory("write", segment.offset(10), 7).unwrap();
    fake.hold_copies();
    std::thread::scope(|scope| {
        // SAFETY: the segment is released below, after the copy.
        let copier = scope.spawn(|| unsafe { memory.write(b"tonnage") });
        while fake.waiting() == 0 {
            assert!(!copier.is_finished());
            std::thread::yield_now();
        }
        device.acquire(2 * MIB).unwrap();
        fake.complete_events();
        copier.join().unwrap().unwrap();
    });
    let mut bytes = [0; 7];
    // SAFETY: as above.
    unsafe { memory.read(&mut bytes) }.unwrap();
    assert_eq!(&bytes, b"tonnage");
    // SAFETY: as above.
    assert_refused(unsafe { memory.read(&mut bytes[..6]) }, "do not fit the 7 bytes");
    // SAFETY: as above.
    assert_refused(unsafe { memory.write(&[0; 8]) }, "do not fit the 7 bytes");
    device.release(segment).unwrap();
}
