//! Devices and blocks as programs use them.

use std::sync::mpsc;

use tonnage_memory::{
    AllocError, Config, Device, DeviceOptions, Explain, Explainer, FailedRequest, OomNotes,
    Release, StreamId, current_device, current_stream, set_current_device, with_stream,
};

use crate::MIB;

fn devices() -> [Device; 2] {
    [Device::dry("256 MiB").unwrap(), Device::host("256 MiB").unwrap()]
}

#[test]
fn a_dropped_block_goes_back_to_its_pool_and_serves_again() {
    for device in devices() {
        let first = device.allocate(5 * MIB).unwrap();
        let address = first.address();
        assert_eq!((first.requested(), first.size()), (5 * MIB, 5 * MIB));
        assert_eq!(device.memory().allocated(), 5 * MIB);
        drop(first);
        assert_eq!((device.memory().allocated(), device.memory().reserved()), (0, 20 * MIB));
        assert_eq!(device.allocate(5 * MIB).unwrap().address(), address, "{device:?}");
        device.memory().empty_cache().unwrap();
        assert_eq!(device.memory().reserved(), 0);
        assert_eq!(device.memory().max_allocated(), 5 * MIB);
    }
}

#[test]
fn a_block_outlives_the_handle_it_came_from() {
    for device in devices() {
        let other = device.clone();
        let block = device.allocate(100).unwrap();
        drop(device);
        assert_eq!(block.device(), &other);
        drop(block);
        assert_eq!(other.memory().allocated(), 0);
    }
}

#[test]
fn out_of_memory_stays_that_and_the_device_goes_on() {
    for device in devices() {
        let held = device.allocate(200 * MIB).unwrap();
        let Err(AllocError::OutOfMemory(report)) = device.allocate(100 * MIB) else {
            panic!("100 MiB do not fit")
        };
        assert_eq!((report.requested, report.allocated), (100 * MIB, 200 * MIB));
        drop(held);
        device.allocate(100 * MIB).unwrap();
    }
}

#[test]
fn contents_are_kept_on_the_host_and_checked_for_their_place() {
    let device = Device::host("64 MiB").unwrap();
    let [one, two] = [0, 1].map(|_| device.allocate(1_000).unwrap());
    one.write(0, &[1; 1_000]).unwrap();
    two.write(0, &[2; 1_000]).unwrap();
    let mut bytes = [0; 1_000];
    one.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 1));
    two.read(500, &mut bytes[..10]).unwrap();
    assert_eq!(bytes[..10], [2; 10]);
    for (offset, length) in [(25, 1_000), (1_024, 1), (u64::MAX, 1)] {
        let error = one.write(offset, &vec![0; length]).unwrap_err().to_string();
        assert!(error.contains("1024 bytes"), "{error}");
    }
}

#[test]
fn memory_is_not_reused_while_another_stream_may_use_it() {
    let device = Device::host("64 MiB").unwrap();
    let side = device.create_stream().unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let block = device.allocate(5 * MIB).unwrap();
    let address = block.address();
    side.launch(move || wait.recv().unwrap()).unwrap();
    block.record_stream(side.id());
    drop(block);
    let other = device.allocate(5 * MIB).unwrap();
    assert_ne!(other.address(), address, "the side stream is not done");
    go.send(()).unwrap();
    side.synchronize().unwrap();
    assert_eq!(device.allocate(5 * MIB).unwrap().address(), address);
}

#[test]
fn a_stream_waits_for_another() {
    let device = Device::host("64 MiB").unwrap();
    let [first, second] = [0, 1].map(|_| device.create_stream().unwrap());
    let (go, wait) = mpsc::channel::<()>();
    let (done, order) = mpsc::channel();
    let done_too = done.clone();
    first
        .launch(move || {
            wait.recv().unwrap();
            done.send(1).unwrap();
        })
        .unwrap();
    second.wait_for(first.id()).unwrap();
    second.launch(move || done_too.send(2).unwrap()).unwrap();
    go.send(()).unwrap();
    second.synchronize().unwrap();
    assert_eq!(order.iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn current_device_and_stream_belong_to_the_thread() {
    let [dry, host] = devices();
    assert_eq!(current_device(), None);
    set_current_device(&dry);
    assert_eq!(current_device(), Some(dry.clone()));
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(current_device(), None));
    });
    let side = host.create_stream().unwrap();
    with_stream(&side, || {
        assert_eq!(current_stream(&host), side.id());
        assert_eq!(current_stream(&dry), StreamId::DEFAULT);
        assert_eq!(host.allocate(1).unwrap().stream(), side.id());
    });
    assert_eq!(current_stream(&host), StreamId::DEFAULT);
}

/// Asks for the current device when it goes, which is with its own.
struct AsksAtTheEnd;

impl Explain for AsksAtTheEnd {
    fn explain(&self, _: FailedRequest<'_>) -> OomNotes {
        OomNotes::default()
    }
}

impl Drop for AsksAtTheEnd {
    fn drop(&mut self) {
        assert!(current_device().is_some_and(|device| device.kind() == "host"));
    }
}

#[test]
fn a_device_that_goes_when_another_becomes_current_finds_the_other() {
    let options = DeviceOptions { explain: Explainer::new(AsksAtTheEnd), ..Default::default() };
    set_current_device(&Device::dry_with("1 GiB", options).unwrap());
    set_current_device(&Device::host("1 GiB").unwrap());
}

#[test]
fn preallocated_memory_is_cached_and_a_limit_holds() {
    let device = Device::dry("1 GiB").unwrap();
    device.preallocate(100 * MIB).unwrap();
    assert_eq!((device.memory().allocated(), device.memory().reserved()), (0, 100 * MIB));
    device.memory().set_per_process_fraction(0.1).unwrap();
    assert!(device.allocate(100 * MIB).is_ok(), "what is cached serves");
    assert!(device.allocate(110 * MIB).is_err());
    device.memory().set_limit(None);
    assert!(device.allocate(110 * MIB).is_ok());
    let info = device.memory().mem_get_info().unwrap();
    assert_eq!(info.total - info.free, device.memory().reserved());
}

#[test]
fn sizes_and_devices_that_cannot_be_are_refused_in_words() {
    let error = Device::host("eight").unwrap_err().to_string();
    assert!(error.contains("24GiB"), "{error}");
    let error = Device::cuda(99).unwrap_err().to_string();
    assert!(!error.is_empty() && error.lines().count() == 1, "{error}");
}

#[test]
fn options_reach_the_allocator() {
    let config = Config::parse("expandable_segments:True", Release::default()).unwrap();
    let options = DeviceOptions { config, poison: true, ..DeviceOptions::default() };
    let device = Device::host_with("256 MiB", options).unwrap();
    let block = device.allocate(5 * MIB).unwrap();
    assert!(device.memory().snapshot().segments[0].expandable);
    block.write(0, &[7; 64]).unwrap();
    drop(block);
    device.memory().empty_cache().unwrap();
    assert_eq!(device.memory().reserved(), 0);
    assert!(device.memory().summary().contains("device ID 0"));
}

#[test]
fn memory_of_a_stream_that_has_ended_goes_back() {
    let config = Config::parse("expandable_segments:True", Release::default()).unwrap();
    let options = DeviceOptions { config, ..DeviceOptions::default() };
    let (_fake, on_fake) = crate::cuda(options.clone());
    let on_host = Device::host_with("256 MiB", options).unwrap();
    for device in [on_fake, on_host] {
        let stream = device.create_stream().unwrap();
        let [own, other] = [stream.id(), StreamId::DEFAULT]
            .map(|stream| device.allocate_on(5 * MIB, stream).unwrap());
        other.record_stream(stream.id());
        drop(stream);
        drop((own, other));
        device.memory().empty_cache().unwrap();
        assert_eq!(device.memory().reserved(), 0, "{device:?}");
    }
}
