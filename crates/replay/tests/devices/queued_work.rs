//! Memory is never handed out while queued work on another stream still uses it.

use std::sync::mpsc;

use tonnage_device::Device;
use tonnage_device::cuda::{Cuda, Driver};
use tonnage_device::host::Host;
use tonnage_engine::{Allocation, Config, Engine, Release};
use tonnage_events::StreamId;
use tonnage_fake_cuda::Fake;

use super::real::Real;

const MIB: u64 = 1 << 20;

const SETTINGS: [&str; 2] = ["", "expandable_segments:True"];

#[test]
fn host_keeps_memory_while_queued_work_uses_it() {
    for settings in SETTINGS {
        let (go, wait) = mpsc::channel::<()>();
        let busy = queue_and_free(Host::new(1 << 30), settings, 32 * MIB, 3, |host, side| {
            let late = host.streams().launch(side, move || wait.recv().unwrap());
            late.unwrap();
        });
        busy.goes_on_elsewhere(|_| go.send(()).unwrap());
    }
}

#[test]
fn cuda_on_the_fake_driver_keeps_memory_while_queued_work_uses_it() {
    for settings in SETTINGS {
        let fake = Fake::start().expect("cargo builds the fake driver with this test");
        // SAFETY: the fake keeps to the driver's interface: that is what it is for.
        let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
        let cuda = Cuda::open_with(driver, 0).unwrap();
        let busy = queue_and_free(cuda, settings, 32 * MIB, 3, |_, _| fake.hold_events());
        busy.goes_on_elsewhere(|_| fake.complete_events());
    }
}

#[test]
fn cuda_on_a_gpu_keeps_memory_while_queued_work_uses_it() {
    if std::env::var_os("TONNAGE_TEST_CUDA").is_none_or(|value| value != "1") {
        println!("skipped: TONNAGE_TEST_CUDA=1 is not set");
        return;
    }
    for settings in SETTINGS {
        let cuda = Cuda::open(0).expect("TONNAGE_TEST_CUDA=1 promises a device");
        // Half a terabyte to write takes long enough to be late.
        let mut busy = queue_and_free(cuda, settings, 1 << 30, 500, |_, _| {});
        let side = busy.side;
        let late = !busy.engine.device_mut().query_stream(side).unwrap();
        assert!(late, "the work was done before the memory was asked for again");
        busy.goes_on_elsewhere(|_| {});
    }
}

#[test]
fn without_record_stream_the_same_memory_is_handed_out_at_once() {
    // What the other tests would see if nothing waited.
    let (go, wait) = mpsc::channel::<()>();
    let mut engine = Engine::new(Host::new(1 << 30), Config::default());
    let side = engine.device_mut().make_stream().unwrap();
    engine.device_mut().streams().launch(side, move || wait.recv().unwrap()).unwrap();
    let block = engine.allocate(32 * MIB, StreamId::DEFAULT).unwrap();
    engine.device_mut().queue_fill(block.address, block.size, 1, side).unwrap();
    engine.free(&block).unwrap();
    let other = engine.allocate(32 * MIB, StreamId::DEFAULT).unwrap();
    assert_eq!(other.address, block.address);
    engine.device_mut().queue_fill(other.address, other.size, 2, StreamId::DEFAULT).unwrap();
    engine.device_mut().synchronize(StreamId::DEFAULT).unwrap();
    go.send(()).unwrap();
    engine.device_mut().synchronize(side).unwrap();
    assert!(engine.device_mut().has(other.address, [1; 16]).unwrap(), "the late work wrote last");
}

/// An engine some of whose memory was freed while a side stream still writes to it.
struct Busy<R> {
    engine: Engine<R>,
    side: StreamId,
    freed: Allocation,
}

/// Queues `fills` fillings of a block on a side stream that `hold` makes late, and frees the block.
fn queue_and_free<R: Real>(
    device: R,
    settings: &str,
    size: u64,
    fills: usize,
    hold: impl FnOnce(&mut R, StreamId),
) -> Busy<R> {
    let config = Config::parse(settings, Release::default()).unwrap();
    let mut engine = Engine::new(device, config);
    let side = engine.device_mut().make_stream().unwrap();
    let freed = engine.allocate(size, StreamId::DEFAULT).unwrap();
    hold(engine.device_mut(), side);
    for _ in 0..fills {
        engine.device_mut().queue_fill(freed.address, size, 1, side).unwrap();
    }
    engine.record_stream_of(&freed, side).unwrap();
    engine.free(&freed).unwrap();
    Busy { engine, side, freed }
}

impl<R: Real> Busy<R> {
    /// Another block of the same size lies elsewhere and keeps its bytes; once the work is done, the
    /// memory serves again.
    fn goes_on_elsewhere(self, finish: impl FnOnce(&mut R)) {
        let Self { mut engine, side, freed } = self;
        let size = freed.size;
        let other = engine.allocate(size, StreamId::DEFAULT).unwrap();
        let apart =
            other.address.0 >= freed.address.0 + size || other.address.0 + size <= freed.address.0;
        assert!(apart, "{other:?} and {freed:?}");
        let device = engine.device_mut();
        device.queue_fill(other.address, size, 2, StreamId::DEFAULT).unwrap();
        finish(device);
        device.synchronize(side).unwrap();
        device.synchronize(StreamId::DEFAULT).unwrap();
        for offset in [0, size / 2, size - 16] {
            assert!(device.has(other.address.offset(offset), [2; 16]).unwrap(), "at {offset}");
        }
        let again = engine.allocate(size, StreamId::DEFAULT).unwrap();
        assert_eq!(again.address, freed.address, "the work is done");
        engine.free(&again).unwrap();
        engine.free(&other).unwrap();
        engine.empty_cache().unwrap();
        engine.device_mut().end_stream(side).unwrap();
        assert!(engine.device().holds_nothing());
    }
}
