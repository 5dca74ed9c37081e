//! The table on `cuda`, over a fake driver: driver calls that fail, and streams that their owners destroy. A process finds one
//! driver and has one allocator, so each case is a process of its own, which this program starts with itself.

use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;

use tonnage_drop_in::{INTERFACE, Options, PoolName, Status};
use tonnage_fake_cuda::{Fake, control};

const DEFAULT: PoolName = PoolName { first: 0, second: 0 };
const NO_STACK: u32 = u32::MAX;
const MIB: u64 = 1 << 20;

/// Runs one of the ignored tests below in a process that finds the fake driver.
fn run(case: &str, policy: &str) {
    let folder = tempfile::tempdir().unwrap();
    Fake::install(folder.path()).unwrap();
    let done = Command::new(std::env::current_exe().unwrap())
        .args([case, "--exact", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("POLICY", policy)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{policy}: {}\n{said}", String::from_utf8_lossy(&done.stdout));
}

#[test]
fn whichever_driver_call_fails_the_allocator_goes_on() {
    for policy in ["pytorch", "pages"] {
        run("in_a_process::calls_fail", policy);
    }
}

#[test]
fn a_stream_may_be_destroyed_once_no_block_uses_it() {
    for policy in ["pytorch", "pages"] {
        run("in_a_process::a_stream_goes", policy);
    }
}

#[test]
fn a_stream_stays_while_blocks_use_it_that_do_not_hold_it() {
    for policy in ["pytorch", "pages"] {
        run("in_a_process::a_stream_stays", policy);
    }
}

#[test]
fn pages_are_shared_with_a_device_before_and_after_there_are_any() {
    run("in_a_process::devices_reach_each_other", "pages");
    run("in_a_process::devices_reach_each_other", "pytorch");
}

/// The driver that this process finds.
struct Driver(*mut c_void);

impl Driver {
    fn find() -> Self {
        // SAFETY: the fake driver of `run`, whose initialisers are the Rust runtime's.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        Self(library)
    }

    fn symbol(&self, name: &std::ffi::CStr) -> *mut c_void {
        // SAFETY: the library is open, and the name ends in a zero byte.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    fn control(&self, operation: u32, a: u64, b: u64) -> u64 {
        type Control = extern "C" fn(u32, u64, u64) -> u64;
        let control = self.symbol(c"fake_cuda_control");
        // SAFETY: the function of that name in the fake driver has this type.
        let control = unsafe { std::mem::transmute::<*mut c_void, Control>(control) };
        control(operation, a, b)
    }

    /// A stream of another owner's.
    fn make_stream(&self) -> u64 {
        type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> u32;
        let mut stream = null_mut();
        // SAFETY: the driver's function, and a place for the answer.
        let create: Create = unsafe { std::mem::transmute(self.symbol(c"cuStreamCreate")) };
        // SAFETY: as above.
        assert_eq!(unsafe { create(&raw mut stream, 1) }, 0);
        stream.expose_provenance() as u64
    }

    fn destroy_stream(&self, stream: u64) {
        type Destroy = unsafe extern "C" fn(*mut c_void) -> u32;
        // SAFETY: the driver's function.
        let destroy: Destroy = unsafe { std::mem::transmute(self.symbol(c"cuStreamDestroy_v2")) };
        // SAFETY: a stream that `make_stream` made, named no more.
        let destroyed = unsafe { destroy(std::ptr::with_exposed_provenance_mut(stream as usize)) };
        assert_eq!(destroyed, 0);
    }

    /// Lets this thread call the driver, as a framework that uses the device does.
    fn make_current(&self) {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, i32) -> u32;
        type SetCurrent = unsafe extern "C" fn(*mut c_void) -> u32;
        let mut context = null_mut();
        // SAFETY: the driver's function, and a place for the answer.
        let retain: Retain =
            unsafe { std::mem::transmute(self.symbol(c"cuDevicePrimaryCtxRetain")) };
        // SAFETY: as above.
        assert_eq!(unsafe { retain(&raw mut context, 0) }, 0);
        // SAFETY: as above, and a context that the driver gave.
        let set: SetCurrent = unsafe { std::mem::transmute(self.symbol(c"cuCtxSetCurrent")) };
        // SAFETY: as above.
        assert_eq!(unsafe { set(context) }, 0);
    }
}

fn open() {
    open_with(c"", 1);
}

fn open_with(settings: &std::ffi::CStr, devices: u32) {
    let policy = std::env::var("POLICY").unwrap_or_default();
    let policy = std::ffi::CString::new(format!("policy:{policy}")).unwrap();
    let options = Options {
        device: c"cuda".as_ptr(),
        devices,
        capacity: 0,
        policy: policy.as_ptr(),
        settings: settings.as_ptr(),
        release: c"2.11.0".as_ptr(),
        limit: 0,
        publish: 0,
    };
    // SAFETY: options whose texts stay during the call.
    assert_eq!(unsafe { (INTERFACE.open)(Some(&options)) }, Status::Ok);
}

fn allocate(bytes: u64, stream: u64) -> Result<u64, Status> {
    allocate_on(0, bytes, stream)
}

fn allocate_on(number: u32, bytes: u64, stream: u64) -> Result<u64, Status> {
    let mut address = 0;
    // SAFETY: a place for the answer.
    let mut status =
        unsafe { (INTERFACE.allocate_cached)(number, bytes, stream, NO_STACK, Some(&mut address)) };
    if status == Status::NotCached {
        // SAFETY: as above.
        status = unsafe {
            (INTERFACE.allocate_uncached)(number, bytes, stream, NO_STACK, 0, Some(&mut address))
        };
    }
    if status == Status::Ok { Ok(address) } else { Err(status) }
}

fn free(address: u64) -> Status {
    // SAFETY: nobody wants the answers.
    unsafe { (INTERFACE.free)(0, address, NO_STACK, None, None) }
}

fn hold(address: u64, stream: u64) {
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (INTERFACE.hold_stream)(0, address, stream) }, Status::Ok);
}

/// Bytes in use, and bytes obtained.
fn levels() -> (i64, i64) {
    let mut quantities = Default::default();
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { (INTERFACE.stats)(0, Some(&mut quantities), None) }, Status::Ok);
    (quantities[12].current, quantities[15].current)
}

/// Requests of both halves and two streams, all freed again; then everything cached goes back. How each call went.
fn work(side: u64) -> Vec<Status> {
    let mut seen = Vec::new();
    let mut kept = Vec::new();
    for (bytes, stream) in [(1000, 0), (3 * MIB, 0), (30 * MIB, side), (5 * MIB, 0)] {
        match allocate(bytes, stream) {
            Ok(address) => kept.push(address),
            Err(status) => seen.push(status),
        }
    }
    for address in kept {
        // SAFETY: plain numbers.
        seen.push(unsafe { (INTERFACE.record_stream)(0, address, side) });
        seen.push(free(address));
    }
    seen.push(allocate(20 * MIB, 0).map_or_else(|status| status, free));
    // SAFETY: plain numbers.
    seen.push(unsafe { (INTERFACE.empty_cache)(DEFAULT, NO_STACK) });
    seen
}

mod in_a_process {
    use super::*;

    #[test]
    #[ignore = "started by the tests above, with the fake driver"]
    fn calls_fail() {
        let driver = Driver::find();
        open();
        let block = allocate(MIB, 0).unwrap();
        assert_eq!(free(block), Status::Ok);
        driver.make_current();
        let side = driver.make_stream();
        let out_of_memory = 2;
        let unknown = 999;
        for code in [out_of_memory, unknown] {
            let mut count = 0;
            loop {
                driver.control(control::FAIL, count, code);
                let failed_before = driver.control(control::FAILED, 0, 0);
                let seen = work(side);
                let failed = driver.control(control::FAILED, 0, 0) > failed_before;
                driver.control(control::CLEAR_FAILURES, 0, 0);
                assert!(!seen.contains(&Status::Broken), "call {count}, {code}: {seen:?}");
                // What was deferred is done by then, and nothing is lost.
                let after = work(side);
                assert!(
                    after.iter().all(|it| *it == Status::Ok),
                    "call {count}, {code}: {after:?}"
                );
                assert_eq!(levels().0, 0, "call {count}, {code}");
                if !failed {
                    break;
                }
                count += 1;
            }
            assert!(count > 10, "only {count} calls could fail");
        }
    }

    #[test]
    #[ignore = "started by the tests above, with the fake driver"]
    fn devices_reach_each_other() {
        let driver = Driver::find();
        open_with(c"expandable_segments:True", 2);
        let reaches = |device, address| driver.control(control::REACHES, device, address) == 1;
        // SAFETY: plain numbers.
        let share = |number, with| unsafe { (INTERFACE.share_pages)(number, with) };
        let first = allocate_on(0, 30 * MIB, 0).unwrap();
        assert!(reaches(0, first) && !reaches(1, first));
        assert_eq!([share(0, 1), share(0, 1)], [Status::Ok; 2]);
        let second = allocate_on(0, 50 * MIB, 0).unwrap();
        assert!(reaches(1, first) && reaches(1, second));
        // A device that nobody has asked for memory yet.
        assert_eq!(share(1, 0), Status::Ok);
        let other = allocate_on(1, 30 * MIB, 0).unwrap();
        assert!(reaches(0, other) && reaches(1, other));
        // One that is not there, on either side.
        assert_eq!([share(2, 0), share(0, 2)], [Status::Failed; 2]);
        assert_eq!([first, second, other].map(free), [Status::Ok; 3]);
    }

    #[test]
    #[ignore = "started by the tests above, with the fake driver"]
    fn a_stream_stays() {
        let driver = Driver::find();
        open();
        let first = allocate(MIB, 0).unwrap();
        driver.make_current();
        let stream = driver.make_stream();
        // By the framework's own name of the stream, and by another's.
        let [used, held] = [30 * MIB, 3 * MIB].map(|bytes| allocate(bytes, 0).unwrap());
        for block in [used, held] {
            // SAFETY: plain numbers.
            let recorded = unsafe { (INTERFACE.record_stream)(0, block, stream) };
            assert_eq!(recorded, Status::Ok);
        }
        hold(held, stream);
        assert_eq!(free(held), Status::Ok);
        // Work that is queued from now on is waited for all the same.
        driver.control(control::HOLD, stream, 0);
        assert_eq!(free(used), Status::Ok);
        let next = allocate(30 * MIB, 0).unwrap();
        assert!(!(used..used + 30 * MIB).contains(&next), "{next} lies in {used}");
        driver.control(control::COMPLETE, stream, 0);
        assert_eq!([free(next), free(first)], [Status::Ok; 2]);
    }

    #[test]
    #[ignore = "started by the tests above, with the fake driver"]
    fn a_stream_goes() {
        let driver = Driver::find();
        open();
        let first = allocate(MIB, 0).unwrap();
        driver.make_current();
        for _ in 0..3 {
            let stream = driver.make_stream();
            let [own, used] = [(30 * MIB, stream), (3 * MIB, 0)]
                .map(|(bytes, stream)| allocate(bytes, stream).unwrap());
            hold(own, stream);
            // SAFETY: plain numbers.
            let recorded = unsafe { (INTERFACE.record_stream)(0, used, stream) };
            assert_eq!(recorded, Status::Ok);
            hold(used, stream);
            driver.control(control::HOLD, stream, 0);
            assert_eq!([free(own), free(used)], [Status::Ok; 2]);
            driver.control(control::COMPLETE, stream, 0);
            driver.destroy_stream(stream);
            // Whoever looks how far that stream is must not name it any more: the driver would follow the handle.
            let large = allocate(60 * MIB, 0).unwrap();
            assert_eq!(free(large), Status::Ok);
            // SAFETY: plain numbers.
            assert_eq!(unsafe { (INTERFACE.empty_cache)(DEFAULT, NO_STACK) }, Status::Ok);
        }
        assert_eq!(free(first), Status::Ok);
    }
}
