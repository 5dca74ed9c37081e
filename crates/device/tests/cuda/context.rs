//! The primary context is shared with whatever else lives in the process.

use crate::support::*;
use tonnage_device::{Device, DeviceError};
use tonnage_events::StreamId;

#[test]
fn the_context_that_was_current_before_is_current_after() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let neighbour = Neighbour::new(&fake);
    assert_eq!(neighbour.current(), 0, "opening leaves nothing current");
    let context = neighbour.use_device(1);
    let segment = device.acquire(2 * MIB).unwrap();
    device.write(segment, b"x").unwrap();
    let event = device.record_event(StreamId(0)).unwrap();
    device.wait_event(event).unwrap();
    assert_eq!(neighbour.current(), context);
    device.acquire(1 << 40).unwrap_err();
    device.release(segment).unwrap();
    assert_eq!(neighbour.current(), context);
    assert_eq!((fake.used(0), fake.used(1)), (0, 0), "each device is asked in its own context");
    drop(device);
    assert_eq!(neighbour.current(), context);
    assert_eq!(fake.live().contexts, 1, "the neighbour's reference alone");
    assert_eq!(neighbour.release(1), 0);
    assert_nothing_left(&fake, "all gone");
}

#[test]
fn a_context_that_is_current_already_is_neither_pushed_nor_popped() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let neighbour = Neighbour::new(&fake);
    let calls = |device: &mut tonnage_device::cuda::Cuda| {
        let before = fake.calls();
        device.memory_info().unwrap();
        fake.calls() - before
    };
    assert_eq!(calls(&mut device), 4, "get, push, ask, pop");
    let context = neighbour.use_device(0);
    assert_eq!(calls(&mut device), 2, "get, ask");
    drop(device);
    assert_eq!(neighbour.current(), context, "a neighbour's reference keeps the context");
    assert_eq!(fake.live().contexts, 1);
}

#[test]
fn two_devices_and_two_owners_of_one_device_do_not_disturb_each_other() {
    let fake = fake();
    let driver = load(&fake).unwrap();
    let mut devices = [0, 1, 1]
        .map(|ordinal| tonnage_device::cuda::Cuda::open_with(driver.clone(), ordinal).unwrap());
    let segments = devices.each_mut().map(|device| device.acquire(20 * MIB).unwrap());
    assert_eq!((fake.used(0), fake.used(1)), (20 * MIB, 40 * MIB));
    assert_refused(devices[1].release(segments[2]), "no segment begins");
    assert_refused(devices[0].read(segments[1], &mut [0]), "not all memory of this device");
    let [zero, one, another] = devices;
    drop(one);
    assert_eq!((fake.used(0), fake.used(1), fake.live().contexts), (20 * MIB, 20 * MIB, 2));
    drop((zero, another));
    assert_nothing_left(&fake, "all gone");
}

#[test]
fn an_error_of_leaving_the_context_is_returned_by_the_next_call() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    // Get, push, allocate; then both tries to pop fail.
    fake.fail_after(3, 999);
    fake.fail_after(4, 999);
    let segment = device.acquire(2 * MIB).unwrap();
    assert_eq!(fake.failed(), 2);
    let parked = device.acquire(2 * MIB).unwrap_err();
    assert!(
        matches!(parked, DeviceError::Driver { call: "cuCtxPopCurrent", code: 999, .. }),
        "{parked:?}"
    );
    assert_books_agree(&fake, &device, "after the parked error");
    device.release(segment).unwrap();
    drop(device);
    assert_nothing_left(&fake, "dropped");
}

#[test]
fn without_a_current_context_the_driver_refuses() {
    let fake = fake();
    let mut device = open(&fake, 0).unwrap();
    let segment = device.acquire(2 * MIB).unwrap();
    let neighbour = Neighbour::new(&fake);
    assert_eq!(neighbour.memory_free(segment.0), 201);
    assert_eq!(neighbour.set_current(0xbad), 201);
    let context = neighbour.use_device(1);
    assert_eq!(neighbour.release(1), 0);
    assert_eq!(neighbour.memory_free(segment.0), 709, "the current context is gone");
    assert_eq!(neighbour.set_current(context), 709);
    assert_eq!(neighbour.release(1), 201);
}
