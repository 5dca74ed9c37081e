//! The table, called as C would, on `host` and on two devices. One setup serves the process, so each test has blocks of its
//! own and asks for nothing that others do; what concerns all devices has one test.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tonnage_drop_in::{Failure, INTERFACE, Moment, Options, PoolName, Quantity, Status};

const DEFAULT: PoolName = PoolName { first: 0, second: 0 };
const NO_STACK: u32 = u32::MAX;
const MIB: u64 = 1 << 20;

/// One test at a time: the figures are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static OPENED: OnceLock<Status> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(*OPENED.get_or_init(open), Status::Ok, "{}", said());
    turn
}

fn open() -> Status {
    let device = CString::new("host").unwrap();
    let release = CString::new("2.11.0").unwrap();
    let options = Options {
        device: device.as_ptr(),
        devices: 2,
        capacity: 256 * MIB,
        policy: c"policy:pytorch".as_ptr(),
        settings: c"".as_ptr(),
        release: release.as_ptr(),
        limit: 0,
        publish: 0,
    };
    // SAFETY: options whose texts stay during the call.
    unsafe { (INTERFACE.open)(Some(&options)) }
}

fn failure() -> Failure {
    // SAFETY: takes nothing.
    unsafe { (INTERFACE.failure)() }
}

fn said() -> String {
    // SAFETY: the text of this thread's last call.
    unsafe { CStr::from_ptr(failure().text) }.to_string_lossy().into_owned()
}

fn allocate(device: u32, bytes: u64) -> Result<u64, Status> {
    let mut address = 0;
    // SAFETY: a place for the answer.
    let cached =
        unsafe { (INTERFACE.allocate_cached)(device, bytes, 0, NO_STACK, Some(&mut address)) };
    match cached {
        Status::Ok => Ok(address),
        Status::NotCached => {
            // SAFETY: as above.
            let status = unsafe {
                (INTERFACE.allocate_uncached)(device, bytes, 0, NO_STACK, 0, Some(&mut address))
            };
            if status == Status::Ok { Ok(address) } else { Err(status) }
        }
        other => Err(other),
    }
}

fn free(first: u32, address: u64) -> Result<(u32, u64), Status> {
    let (mut device, mut bytes) = (0, 0);
    // SAFETY: places for the answers.
    let status =
        unsafe { (INTERFACE.free)(first, address, NO_STACK, Some(&mut device), Some(&mut bytes)) };
    if status == Status::Ok { Ok((device, bytes)) } else { Err(status) }
}

fn stats(device: u32) -> ([Quantity; 29], [i64; 7]) {
    let (mut quantities, mut counts) = ([Quantity::default(); 29], [0; 7]);
    // SAFETY: places for the answers.
    let status = unsafe { (INTERFACE.stats)(device, Some(&mut quantities), Some(&mut counts)) };
    assert_eq!(status, Status::Ok);
    (quantities, counts)
}

fn moment(device: u32) -> (Vec<u64>, Vec<(u32, u32)>) {
    let mut moment = Moment::none();
    // SAFETY: a place for the answer.
    let status = unsafe { (INTERFACE.moment)(device, DEFAULT, 1, Some(&mut moment)) };
    assert_eq!(status, Status::Ok);
    // SAFETY: as many as it says, until it is forgotten.
    let segments =
        unsafe { std::slice::from_raw_parts(moment.segments, moment.segment_count as usize) };
    let segments = segments.iter().map(|segment| segment.address).collect();
    // SAFETY: as above.
    let entries =
        unsafe { std::slice::from_raw_parts(moment.entries, moment.entry_count as usize) };
    let entries = entries.iter().map(|entry| (entry.action, entry.stack)).collect();
    for _ in 0..2 {
        // SAFETY: a moment that was given; the second time it has nothing to give back.
        assert_eq!(unsafe { (INTERFACE.forget_moment)(Some(&mut moment)) }, Status::Ok);
    }
    (segments, entries)
}

#[test]
fn blocks_come_and_go_and_are_found_wherever_they_are() {
    let _alone = alone();
    let before = stats(1).0[12].current;
    let (here, there) = (allocate(0, 1000).unwrap(), allocate(1, 3 * MIB).unwrap());
    assert_eq!(stats(1).0[12].current - before, 3 * MIB as i64);
    // Looked for on the wrong device first.
    assert_eq!(free(0, there), Ok((1, 3 * MIB)));
    assert_eq!(free(1, here), Ok((0, 1024)));
    assert_eq!(stats(1).0[12].current, before);
    assert_eq!(free(0, here), Err(Status::Failed));
    assert!(said().contains("no block in use begins at"), "{}", said());
    // What is cached is handed out again.
    assert_eq!(allocate(1, 3 * MIB), Ok(there));
    free(1, there).unwrap();
}

#[test]
fn a_request_that_fails_says_so_as_pytorch_does_and_then_why() {
    let _alone = alone();
    assert_eq!(allocate(1, 300 * MIB), Err(Status::OutOfMemory));
    let text = said();
    assert!(
        text.starts_with("CUDA out of memory. Tried to allocate 300.00 MiB. GPU 1 has a total capacity of 256.00 MiB"),
        "{text}"
    );
    assert!(text.lines().count() > 1, "{text}");
    let failure = failure();
    assert_eq!((failure.asked, failure.total), (300 * MIB, 256 * MIB));
    // It goes on.
    let block = allocate(1, MIB).unwrap();
    free(1, block).unwrap();
}

#[test]
fn what_is_wrong_with_a_call_is_said() {
    let _alone = alone();
    assert_eq!(open(), Status::Failed);
    assert!(said().contains("set up before"), "{}", said());
    assert_eq!(allocate(7, 100), Err(Status::Failed));
    assert!(said().contains("no device 7"), "{}", said());
    // SAFETY: null for no options.
    assert_eq!(unsafe { (INTERFACE.open)(None) }, Status::Failed);
    // SAFETY: a level that there is not.
    assert_eq!(unsafe { (INTERFACE.record_history)(1, 10, 9, 0, 0) }, Status::Failed);
    // SAFETY: a pool that there is not.
    let released = unsafe { (INTERFACE.release_pool)(0, PoolName { first: 0, second: 99 }) };
    assert_eq!(released, Status::Failed);
    // SAFETY: no state.
    let status = unsafe {
        (INTERFACE.set_pool_state)(0, null(), NO_STACK, ignore, ignore, std::ptr::null_mut())
    };
    assert_eq!(status, Status::Failed);
}

unsafe extern "C" fn ignore(_: *mut c_void, _: u64) {}

unsafe extern "C" fn note(numbers: *mut c_void, number: u32) {
    // SAFETY: what the test passes.
    unsafe { &mut *numbers.cast::<Vec<u32>>() }.push(number);
}

#[test]
fn histories_have_the_callers_stacks_on_every_device() {
    let _alone = alone();
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (INTERFACE.record_history)(1, 100, 3, 1, 0) }, Status::Ok);
    let mut address = 0;
    // SAFETY: a place for the answer.
    let status = unsafe { (INTERFACE.allocate_uncached)(1, 40 * MIB, 0, 5, 0, Some(&mut address)) };
    assert_eq!(status, Status::Ok, "{}", said());
    // SAFETY: nobody wants the answers.
    assert_eq!(unsafe { (INTERFACE.free)(1, address, 6, None, None) }, Status::Ok);
    let (segments, entries) = moment(1);
    assert!(segments.contains(&address));
    assert_eq!(entries, [(3, 5), (0, 5), (1, 6), (2, 6)]);
    let mut named: Vec<u32> = Vec::new();
    let numbers = std::ptr::from_mut(&mut named).cast();
    // SAFETY: the function takes what it is given.
    assert_eq!(unsafe { (INTERFACE.stacks_in_use)(1, note, numbers) }, Status::Ok);
    assert_eq!(named, [5, 6]);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (INTERFACE.record_history)(0, 0, 0, 0, 0) }, Status::Ok);
    assert_eq!(moment(1).1, []);
}

#[test]
fn threads_share_a_device() {
    let _alone = alone();
    let before = stats(0).0[12].current;
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                for round in 0..500_u64 {
                    let block =
                        allocate(0, 1 + (thread * 7919 + round * 104_729) % (2 * MIB)).unwrap();
                    assert!(free(0, block).is_ok());
                }
            });
        }
    });
    assert_eq!(stats(0).0[12].current, before);
}
