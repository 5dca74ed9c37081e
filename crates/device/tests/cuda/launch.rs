//! Work that is queued without the device: modules, launches, copies, marks and graphs, on the fake driver.

use std::time::Duration;

use tonnage_device::cuda::{Arguments, Cuda, Extent, Function, Launcher, Module};
use tonnage_device::{Device, DeviceError};
use tonnage_events::{Address, StreamId};
use tonnage_fake_cuda::{Fake, SeenLaunch};

use crate::support::*;

/// Two kernels: one that a test gives a body, and one without arguments.
const PTX: &[u8] = b".version 8.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 add_one_param_0, .param .u32 add_one_param_1)
{ ret; }
.visible .entry nothing()
{ ret; }
";

fn load(launcher: &Launcher) -> Result<Module, DeviceError> {
    // SAFETY: whole PTX, of which the fake reads the names.
    unsafe { launcher.load(PTX) }
}

fn launch(
    launcher: &Launcher,
    function: &Function,
    extent: Extent,
    stream: StreamId,
    arguments: &Arguments,
) -> Result<(), DeviceError> {
    // SAFETY: tests give `add_one` segments that are large enough and live until the end.
    unsafe { launcher.launch(function, extent, stream, arguments) }
}

/// What `add_one` does: adds one to so many words.
fn add_one(launch: &SeenLaunch) {
    let address = u64::from_ne_bytes(launch.argument(0).unwrap());
    let count = u32::from_ne_bytes(launch.argument(1).unwrap());
    let words = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    for index in 0..count as usize {
        let word = words.wrapping_add(index);
        // SAFETY: tests launch it on a segment of the fake that has so many words.
        unsafe { *word += 1 };
    }
}

/// A device with a stream and eight words of zeros.
fn begin(fake: &Fake) -> (Launcher, Cuda, StreamId, Address) {
    let mut device = open(fake, 0).unwrap();
    let stream = device.create_stream().unwrap();
    let words = device.acquire(2 * MIB).unwrap();
    (device.launcher(), device, stream, words)
}

fn words(device: &mut Cuda, at: Address) -> [u32; 8] {
    let mut bytes = [0; 32];
    device.read(at, &mut bytes).unwrap();
    std::array::from_fn(|index| {
        u32::from_ne_bytes(bytes[4 * index..][..4].try_into().expect("four bytes"))
    })
}

#[test]
fn a_launch_reaches_the_driver_with_its_extent_and_arguments() {
    let fake = fake();
    let (launcher, mut device, stream, memory) = begin(&fake);
    fake.on_launch("add_one", add_one);
    let module = load(&launcher).unwrap();
    let function = module.function("add_one").unwrap();
    let arguments = Arguments::new().with(memory).with(5u32);
    let extent = Extent { grid: [3, 2, 1], block: [32, 4, 1], shared: 1024 };
    launch(&launcher, &function, extent, stream, &arguments).unwrap();
    assert_eq!(words(&mut device, memory), [1, 1, 1, 1, 1, 0, 0, 0]);
    let seen = fake.launches();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].name, "add_one");
    assert_eq!((seen[0].grid, seen[0].block, seen[0].shared), ([3, 2, 1], [32, 4, 1], 1024));
    assert_eq!(seen[0].stream, stream.0);
    assert_eq!(seen[0].argument(0), Some(memory.0.to_ne_bytes()));
    assert_eq!(seen[0].argument(1), Some(5u32.to_ne_bytes()));
    fake.forget_launches();
    let nothing = module.function("nothing").unwrap();
    launch(&launcher, &nothing, Extent::line(1, 1), StreamId(0), &Arguments::new()).unwrap();
    assert_eq!(fake.launches().len(), 1);
}

#[test]
fn arguments_that_are_not_the_kernels_are_refused_before_the_driver_reads_them() {
    let fake = fake();
    let (launcher, _device, stream, memory) = begin(&fake);
    let function = load(&launcher).unwrap().function("add_one").unwrap();
    let wrong = [
        Arguments::new(),
        Arguments::new().with(memory),
        Arguments::new().with(memory).with(1u64),
        Arguments::new().with(1u32).with(memory),
        Arguments::new().with(memory).with(1u32).with(1u32),
    ];
    for arguments in wrong {
        let launched = launch(&launcher, &function, Extent::line(1, 32), stream, &arguments);
        assert_refused(launched, "add_one takes arguments of [8, 4] bytes, and was given");
    }
    assert!(fake.launches().is_empty());
}

#[test]
fn what_the_device_cannot_run_is_refused_by_name() {
    let fake = fake();
    let (launcher, _device, stream, memory) = begin(&fake);
    let module = load(&launcher).unwrap();
    let missing = module.function("multiply").unwrap_err().to_string();
    assert!(
        missing.contains("named symbol not found (CUDA_ERROR_NOT_FOUND), for multiply"),
        "{missing}"
    );
    assert_refused(module.function("a\0b"), "has a zero byte inside");
    let function = module.function("add_one").unwrap();
    let arguments = Arguments::new().with(memory).with(1u32);
    let run = |extent| launch(&launcher, &function, extent, stream, &arguments);
    for extent in [
        Extent::line(0, 32),
        Extent::line(1, 1025),
        Extent { grid: [1, 1 << 16, 1], block: [1; 3], shared: 0 },
        Extent::line(1, 32).with_shared((48 << 10) + 1),
    ] {
        let error = run(extent).unwrap_err();
        assert!(matches!(error, DeviceError::Driver { call: "cuLaunchKernel", code: 1, .. }));
    }
    function.allow_shared(200 << 10).unwrap();
    run(Extent::line(1, 32).with_shared(200 << 10)).unwrap();
    let error = function.allow_shared(228 << 10).unwrap_err().to_string();
    assert!(error.contains("cuFuncSetAttribute") && error.ends_with("for add_one"), "{error}");
    assert_eq!(function.blocks_per_multiprocessor(256, 0), Ok(8));
    assert_eq!(function.needs().unwrap().threads_per_block, 1024);
    let no_stream = launch(&launcher, &function, Extent::line(1, 1), StreamId(0x77), &arguments);
    assert_refused(no_stream, "no stream 0x77");
    // SAFETY: text, which the fake reads up to its end and refuses.
    let refused = unsafe { launcher.load(b"no kernels at all") }.unwrap_err().to_string();
    assert!(refused.ends_with("the image is neither PTX nor a cubin"), "{refused}");
}

#[test]
fn copies_and_fills_arrive_without_the_device() {
    let fake = fake();
    let (launcher, mut device, stream, memory) = begin(&fake);
    let pinned = device.pinned().acquire(32).unwrap();
    let host = pinned.cast::<[u32; 8]>();
    // SAFETY: here and below: pinned memory and segment live until the end, and nobody else uses them.
    unsafe { launcher.fill_words(memory, 7, 8, stream) }.unwrap();
    // SAFETY: as above.
    unsafe { launcher.fill(memory.offset(4), 0xff, 4, stream) }.unwrap();
    // SAFETY: as above.
    unsafe { launcher.copy_to_host(pinned.as_ptr(), memory, 32, stream) }.unwrap();
    launcher.synchronize(stream).unwrap();
    // SAFETY: as above, and the copy is done.
    assert_eq!(unsafe { host.read() }, [7, u32::MAX, 7, 7, 7, 7, 7, 7]);
    // SAFETY: as above.
    unsafe { host.write([9; 8]) };
    // SAFETY: as above.
    unsafe { launcher.copy_to_device(memory.offset(64), pinned.as_ptr(), 16, stream) }.unwrap();
    // SAFETY: as above.
    unsafe { launcher.copy_within(memory, memory.offset(64), 16, stream) }.unwrap();
    // SAFETY: as above.
    unsafe { launcher.copy_within(memory, memory, 0, stream) }.unwrap();
    assert_eq!(words(&mut device, memory), [9, 9, 9, 9, 7, 7, 7, 7]);
    let mut other = open(&fake, 1).unwrap();
    let there = other.acquire(2 * MIB).unwrap();
    other.write(there, &[5; 8]).unwrap();
    // SAFETY: both segments live until the end.
    unsafe { launcher.copy_from(memory, (&other.launcher(), there), 8, stream) }.unwrap();
    assert_eq!(words(&mut device, memory)[..3], [0x0505_0505, 0x0505_0505, 9]);
    // SAFETY: nothing is read: the driver refuses.
    let beyond = unsafe { launcher.fill_words(memory.offset(2 * MIB), 0, 1, stream) };
    assert!(matches!(beyond, Err(DeviceError::Driver { call: "cuMemsetD32Async", code: 1, .. })));
    // SAFETY: as above.
    assert!(unsafe { launcher.fill_words(memory.offset(2), 0, 1, stream) }.is_err());
}

#[test]
fn marks_order_streams_and_are_known_to_the_device_too() {
    let fake = fake();
    let (launcher, mut device, one, _) = begin(&fake);
    let two = device.create_stream().unwrap();
    fake.hold_events();
    let first = launcher.record(one).unwrap();
    launcher.wait_on(two, first).unwrap();
    launcher.order_behind(two, two).unwrap();
    let second = launcher.record(two).unwrap();
    assert_eq!((launcher.query(first), device.query_event(second)), (Ok(false), Ok(false)));
    fake.complete_events_of(two.0, 0);
    assert_eq!(launcher.query(second), Ok(false), "behind the first");
    fake.complete_events_of(one.0, 0);
    assert_eq!((device.query_event(first), launcher.query(second)), (Ok(true), Ok(true)));
    launcher.destroy_event(first).unwrap();
    device.destroy_event(second).unwrap();
    assert_refused(launcher.query(first), "no event");
    assert_eq!(device.live().events, 0);
    launcher.order_behind(one, two).unwrap();
    launcher.synchronize_all().unwrap();
    assert_eq!(device.live().events, 0);
    assert_eq!(launcher.known_streams(), device.known_streams());
    device.destroy_stream(two).unwrap();
    // Memory that was used on it may still be named by it: nothing is queued there any more.
    launcher.order_behind(one, two).unwrap();
    launcher.synchronize(two).unwrap();
    assert_eq!(device.live().events, 0);
    assert_refused(launcher.order_behind(two, one), "no stream");
    assert_refused(launcher.record(StreamId(0xdead)), "no stream");
}

#[test]
fn a_thread_that_waits_does_not_keep_others_from_launching() {
    let fake = fake();
    let (launcher, mut device, stream, memory) = begin(&fake);
    let function = load(&launcher).unwrap().function("add_one").unwrap();
    let arguments = Arguments::new().with(memory).with(1u32);
    fake.hold_waits();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| launcher.synchronize(stream));
        while fake.waiting() == 0 {
            std::thread::yield_now();
        }
        let other = device.create_stream().unwrap();
        launch(&launcher, &function, Extent::line(1, 1), other, &arguments).unwrap();
        assert_eq!(fake.launches().len(), 1);
        fake.complete_events();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn moments_tell_how_long_work_took() {
    let fake = fake();
    let (launcher, _device, stream, memory) = begin(&fake);
    let begin = launcher.moment(stream).unwrap();
    for _ in 0..9 {
        // SAFETY: the segment lives until the end.
        unsafe { launcher.fill(memory, 1, 1, stream) }.unwrap();
    }
    let end = launcher.moment(stream).unwrap();
    // The fake's time: a microsecond for each piece of work, the first mark among them.
    let took = end.since(&begin).unwrap();
    assert!(
        (took.as_secs_f64() - Duration::from_micros(10).as_secs_f64()).abs() < 1e-9,
        "{took:?}"
    );
}

#[test]
fn captured_work_is_done_when_its_graph_is_launched_and_again() {
    let fake = fake();
    let (launcher, mut device, stream, memory) = begin(&fake);
    let side = device.create_stream().unwrap();
    fake.on_launch("add_one", add_one);
    let function = load(&launcher).unwrap().function("add_one").unwrap();
    let add = |stream, count: u32| {
        let arguments = Arguments::new().with(memory).with(count);
        launch(&launcher, &function, Extent::line(1, 32), stream, &arguments).unwrap();
    };
    let capture = launcher.capture(stream).unwrap();
    assert_eq!(capture.stream(), stream);
    assert_eq!(launcher.is_capturing(stream), Ok(true));
    add(stream, 8);
    launcher.order_behind(side, stream).unwrap();
    assert_eq!(launcher.is_capturing(side), Ok(true), "who waits for captured work is captured");
    add(side, 4);
    // SAFETY: the segment lives until the end.
    unsafe { launcher.copy_within(memory.offset(28), memory, 4, side) }.unwrap();
    launcher.order_behind(stream, side).unwrap();
    // Memory may be had meanwhile, and what is captured is not waited for: the driver would end the capture.
    let more = device.acquire(2 * MIB).unwrap();
    device.release(more).unwrap();
    device.synchronize(stream).unwrap();
    assert!(!launcher.known_streams().contains(&stream));
    let graph = capture.finish().unwrap();
    assert_eq!(graph.nodes(), 3);
    assert_eq!(words(&mut device, memory), [0; 8], "nothing was done yet");
    assert_eq!(launcher.is_capturing(stream), Ok(false));
    for _ in 0..2 {
        // SAFETY: segment and module live until the end.
        unsafe { launcher.launch_graph(&graph, stream) }.unwrap();
    }
    assert_eq!(words(&mut device, memory), [4, 4, 4, 4, 2, 2, 2, 4]);
    assert_eq!(fake.launches().len(), 4);
    drop(graph);
    assert_eq!(fake.live().graphs, 0);
}

#[test]
fn waiting_for_the_context_is_refused_while_a_stream_is_captured_and_waiting_for_the_stream_breaks_it()
 {
    let fake = fake();
    let (launcher, mut device, stream, _memory) = begin(&fake);
    let capture = launcher.capture(stream).unwrap();
    assert!(launcher.has_captured(stream));
    let error = launcher.synchronize_context().unwrap_err();
    assert!(matches!(error, DeviceError::Misuse { .. }), "{error:?}");
    launcher.synchronize_all().unwrap();
    drop(capture.finish().unwrap());
    launcher.synchronize_context().unwrap();
    let capture = launcher.capture(stream).unwrap();
    let error = launcher.synchronize(stream).unwrap_err();
    assert!(matches!(error, DeviceError::Driver { code: 907, .. }), "{error:?}");
    let error = capture.finish().unwrap_err();
    assert!(matches!(error, DeviceError::Driver { code: 901, .. }), "{error:?}");
    assert!(!launcher.has_captured(stream));
    device.synchronize(stream).unwrap();
    launcher.synchronize_context().unwrap();
}

#[test]
fn a_capture_that_cannot_end_well_leaves_the_stream_usable() {
    let fake = fake();
    let (launcher, mut device, stream, memory) = begin(&fake);
    let side = device.create_stream().unwrap();
    assert!(launcher.capture(StreamId(0)).is_err(), "the default stream cannot be captured");
    let capture = launcher.capture(stream).unwrap();
    launcher.order_behind(side, stream).unwrap();
    let error = capture.finish().unwrap_err();
    assert!(matches!(error, DeviceError::Driver { code: 904, .. }), "{error:?}");
    drop(launcher.capture(stream).unwrap());
    // SAFETY: the segment lives until the end.
    unsafe { launcher.fill_words(memory, 3, 8, stream) }.unwrap();
    launcher.synchronize(stream).unwrap();
    assert_eq!(words(&mut device, memory), [3; 8]);
    assert_eq!(fake.live().graphs, 0);
}

#[test]
fn the_context_is_current_while_one_stays_in_it() {
    let fake = fake();
    let (launcher, _device, stream, _) = begin(&fake);
    let neighbour = Neighbour::new(&fake);
    let calls = |work: &dyn Fn()| {
        let before = fake.calls();
        work();
        fake.calls() - before
    };
    let mark = || drop(launcher.record(stream).map(|event| launcher.destroy_event(event)).unwrap());
    mark();
    assert_eq!(calls(&mark), 4, "get, push, record, pop");
    {
        let _entered = launcher.enter().unwrap();
        assert_ne!(neighbour.current(), 0);
        assert_eq!(calls(&mark), 2, "get, record");
        let handle: Result<_, DeviceError> =
            launcher.with_stream(stream, |handle| Ok(handle.addr() as u64));
        assert_eq!(handle, Ok(stream.0));
    }
    assert_eq!(neighbour.current(), 0);
    let missing = launcher.with_stream(StreamId(0x77), |_| Ok::<_, DeviceError>(()));
    assert_refused(missing, "no stream");
}

#[test]
fn a_launcher_outlives_its_device_without_its_streams() {
    let fake = fake();
    let (launcher, device, stream, _) = begin(&fake);
    let module = load(&launcher).unwrap();
    let event = launcher.record(stream).unwrap();
    drop(device);
    assert_refused(launcher.record(stream), "no stream");
    launcher.wait(event).unwrap();
    launcher.synchronize(StreamId(0)).unwrap();
    assert_eq!((fake.live().contexts, fake.live().modules), (1, 1));
    drop((launcher, module));
    assert_nothing_left(&fake, "everything went with the last handle");
}

/// Uses every function of the launcher; each step is tried again until it succeeds.
fn script(fake: &Fake, launcher: &Launcher, stream: StreamId, memory: Address, context: &str) {
    fn run<T>(context: &str, step: impl Fn() -> Result<T, DeviceError>) -> T {
        let tried: Result<T, _> = (0..4)
            .try_fold((), |(), _| match step() {
                Ok(value) => Err(value),
                Err(_) => Ok(()),
            })
            .map_or_else(Ok, Err);
        tried.unwrap_or_else(|()| panic!("{context}: a step fails again and again"))
    }
    let module = run(context, || load(launcher));
    let function = run(context, || module.function("add_one"));
    run(context, || function.needs());
    run(context, || function.allow_shared(100 << 10));
    run(context, || function.blocks_per_multiprocessor(256, 0));
    let arguments = Arguments::new().with(memory).with(1u32);
    run(context, || launch(launcher, &function, Extent::line(1, 32), stream, &arguments));
    let (mut host, there) = ([0u8; 16], memory.offset(64));
    let host = host.as_mut_ptr();
    // SAFETY: the fake copies at once; segment and array live until the end.
    run(context, || unsafe { launcher.copy_to_device(memory, host, 16, stream) });
    // SAFETY: as above.
    run(context, || unsafe { launcher.copy_to_host(host, memory, 16, stream) });
    // SAFETY: as above.
    run(context, || unsafe { launcher.copy_within(memory, there, 16, stream) });
    // SAFETY: as above.
    run(context, || unsafe { launcher.fill(memory, 1, 16, stream) });
    // SAFETY: as above.
    run(context, || unsafe { launcher.fill_words(memory, 1, 4, stream) });
    run(context, || launcher.order_behind(StreamId(0), stream));
    run(context, || launcher.synchronize(stream));
    run(context, || {
        let (begin, end) = (launcher.moment(stream)?, launcher.moment(stream)?);
        end.since(&begin)
    });
    let graph = run(context, || {
        let capture = launcher.capture(stream)?;
        // SAFETY: as above.
        unsafe { launcher.fill(memory, 1, 16, stream) }?;
        capture.finish()
    });
    // SAFETY: as above.
    run(context, || unsafe { launcher.launch_graph(&graph, stream) });
    assert!(fake.live().events <= 2, "{context}: events are used again");
}

#[test]
fn any_driver_call_may_fail_once_and_nothing_stays() {
    let fake = fake();
    let mut swept = 0;
    loop {
        fake.reset();
        let (launcher, device, stream, memory) = begin(&fake);
        fake.fail_after(swept, 999);
        script(&fake, &launcher, stream, memory, &format!("call {swept}"));
        let failed = fake.failed() > 0;
        fake.clear_failures();
        assert_eq!(device.live().events, 0, "call {swept}");
        assert_eq!((fake.live().modules, fake.live().graphs), (0, 0), "call {swept}");
        drop((launcher, device));
        assert_nothing_left(&fake, &format!("call {swept}"));
        if !failed {
            break;
        }
        swept += 1;
    }
    assert!(swept > 80, "only {swept} calls were swept");
}

#[test]
fn any_two_driver_calls_in_a_row_may_fail_without_a_panic() {
    let fake = fake();
    let neighbour = Neighbour::new(&fake);
    for n in 0.. {
        fake.reset();
        let (launcher, _device, stream, memory) = begin(&fake);
        fake.fail_after(n, 999);
        fake.fail_after(n + 1, 999);
        script(&fake, &launcher, stream, memory, &format!("call {n} and the next"));
        // A context that could not be left, twice, is still there.
        neighbour.leave_all();
        let live = fake.live();
        assert!(
            live.modules + live.graphs <= 1,
            "call {n}: what could not be given back: {live:?}"
        );
        if fake.failed() < 2 {
            return;
        }
    }
}

/// Fails the first wait for all work after a context was entered, and the second one if told.
fn fail_waits(fake: &Fake, waits: u64) {
    // Asking which context is current, and making this one so, come first.
    (0..waits).for_each(|wait| fake.fail_after(2 + wait, 999));
}

#[test]
fn a_module_whose_work_cannot_be_waited_for_stays() {
    let fake = fake();
    for (waits, left) in [(0, 0), (1, 0), (2, 1)] {
        fake.reset();
        let (launcher, _device, ..) = begin(&fake);
        let module = load(&launcher).unwrap();
        fail_waits(&fake, waits);
        drop(module);
        assert_eq!((fake.failed(), fake.live().modules), (waits, left));
        fake.clear_failures();
    }
}

#[test]
fn memory_whose_work_cannot_be_waited_for_is_not_given_back() {
    let fake = fake();
    for (waits, left) in [(0, 0), (1, 0), (2, 1)] {
        fake.reset();
        let (launcher, device, ..) = begin(&fake);
        fail_waits(&fake, waits);
        drop(device);
        assert_eq!((fake.failed(), fake.live().segments), (waits, left));
        fake.clear_failures();
        drop(launcher);
    }
}

#[test]
fn threads_share_a_graph() {
    let fake = fake();
    let (launcher, mut device, stream, memory) = begin(&fake);
    fake.on_launch("add_one", add_one);
    let function = load(&launcher).unwrap().function("add_one").unwrap();
    let arguments = Arguments::new().with(memory).with(8u32);
    let capture = launcher.capture(stream).unwrap();
    launch(&launcher, &function, Extent::line(1, 8), stream, &arguments).unwrap();
    let graph = capture.finish().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // SAFETY: segment and module live until the end.
            scope.spawn(|| unsafe { launcher.launch_graph(&graph, stream) }.unwrap());
        }
    });
    assert_eq!(words(&mut device, memory), [4; 8]);
}
