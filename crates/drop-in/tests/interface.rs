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

/// The segments of a pool, by the order in which they were obtained.
fn segments_of(device: u32, pool: PoolName) -> Vec<u64> {
    let mut moment = Moment::none();
    // SAFETY: a place for the answer.
    let status = unsafe { (INTERFACE.moment)(device, pool, 0, Some(&mut moment)) };
    assert_eq!(status, Status::Ok);
    // SAFETY: as many as it says, until it is forgotten.
    let segments =
        unsafe { std::slice::from_raw_parts(moment.segments, moment.segment_count as usize) };
    let mut segments: Vec<_> = segments.iter().map(|it| (it.number, it.address)).collect();
    segments.sort_unstable();
    // SAFETY: a moment that was given.
    assert_eq!(unsafe { (INTERFACE.forget_moment)(Some(&mut moment)) }, Status::Ok);
    segments.into_iter().map(|it| it.1).collect()
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

unsafe extern "C" fn every_stream(_: *mut c_void, _: u64) -> u8 {
    1
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

type OfPools = Vec<(PoolName, [Quantity; 3])>;

unsafe extern "C" fn note_pool(pools: *mut c_void, pool: PoolName, quantities: &[Quantity; 3]) {
    // SAFETY: what the test passes.
    unsafe { &mut *pools.cast::<OfPools>() }.push((pool, *quantities));
}

#[test]
fn what_private_pools_reserve_is_told_of_each() {
    let _alone = alone();
    let pool = PoolName { first: 0, second: 77 };
    let inside = |bytes| {
        // SAFETY: functions that take whatever they are given.
        let status =
            unsafe { (INTERFACE.begin_pool)(0, pool, every_stream, std::ptr::null_mut(), nothing) };
        assert_eq!(status, Status::Ok, "{}", said());
        let block = allocate(0, bytes).unwrap();
        // SAFETY: the pool that was begun.
        assert_eq!(unsafe { (INTERFACE.end_pool)(0, pool) }, Status::Ok);
        block
    };
    // Of the pool's two segments the later one lies in front, where room came free meanwhile.
    let in_front = allocate(0, 24 * MIB).unwrap();
    let large = inside(12 * MIB);
    free(0, in_front).unwrap();
    // SAFETY: a plain name.
    assert_eq!(unsafe { (INTERFACE.empty_cache)(DEFAULT, NO_STACK) }, Status::Ok);
    let small = inside(1000);
    assert!(small < large, "{in_front:#x} {small:#x} {large:#x}");
    let told = || {
        let mut pools = OfPools::new();
        // SAFETY: the function takes what it is given.
        let status = unsafe {
            (INTERFACE.reserved_by_pools)(0, note_pool, std::ptr::from_mut(&mut pools).cast())
        };
        assert_eq!(status, Status::Ok);
        pools.retain(|(name, _)| *name == pool);
        pools.into_iter().map(|(_, of)| of.map(|it| (it.current, it.peak))).collect::<Vec<_>>()
    };
    assert_eq!(segments_of(0, pool), [large, small], "as they were made");
    let mib = |all: i64, small: i64, large: i64| {
        [all, small, large].map(|mib| mib * i64::try_from(MIB).unwrap())
    };
    let (all, peak) = (mib(14, 2, 12), mib(14, 2, 12));
    assert_eq!(told(), [[0, 1, 2].map(|it| (all[it], peak[it]))]);
    free(0, small).unwrap();
    free(0, large).unwrap();
    for _ in 0..2 {
        // SAFETY: the pool that was begun as often; nothing uses it any more.
        assert_eq!(unsafe { (INTERFACE.release_pool)(0, pool) }, Status::Ok);
    }
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (INTERFACE.empty_cache)(DEFAULT, NO_STACK) }, Status::Ok);
    // A pool that is gone keeps its peaks.
    assert_eq!(told(), [[0, 1, 2].map(|it| (0, peak[it]))]);
}

/// What an allocator behind a pool does when it is asked, and what came of it.
#[derive(Default)]
struct Own {
    /// A block that it gives back.
    gives_back: u64,
    /// A pool that it drops.
    drops: Option<PoolName>,
    /// The same of when memory comes back to it.
    gives_back_then: u64,
    drops_then: Option<PoolName>,
    /// It fails.
    fails: bool,
    /// What it was told.
    told: Vec<(Status, String)>,
}

unsafe extern "C" fn acquire(own: *mut c_void, bytes: u64) -> u64 {
    // SAFETY: what the test passes.
    let own = unsafe { &mut *own.cast::<Own>() };
    for status in [
        allocate(0, 100).map(drop),
        // SAFETY: plain numbers.
        Err(unsafe { (INTERFACE.record_stream)(0, own.gives_back, 9) }),
        // SAFETY: a plain name.
        Err(unsafe { (INTERFACE.empty_cache)(DEFAULT, NO_STACK) }),
        // SAFETY: a text.
        Err(unsafe { (INTERFACE.configure)(c"".as_ptr()) }),
    ] {
        own.told.push((status.err().unwrap_or(Status::Ok), said()));
    }
    let shared = tonnage_drop_in::pause(0, None, false).map(drop);
    let paused = tonnage_drop_in::paused_pools().map(drop);
    for refused in [shared, paused] {
        own.told.push((Status::Failed, format!("{refused:?}")));
    }
    if own.gives_back != 0 {
        free(0, own.gives_back).unwrap();
    }
    if let Some(pool) = own.drops {
        drop_pool(pool);
    }
    if own.fails { u64::MAX } else { 0x7700_0000_0000 + (bytes << 20) }
}

/// As PyTorch's `MemPool` does when it goes.
fn drop_pool(pool: PoolName) {
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (INTERFACE.set_use_on_oom)(0, pool, 0) }, Status::Ok, "{}", said());
    // SAFETY: as above.
    assert_eq!(unsafe { (INTERFACE.release_pool)(0, pool) }, Status::Ok, "{}", said());
    // SAFETY: as above.
    assert_eq!(unsafe { (INTERFACE.empty_cache)(pool, NO_STACK) }, Status::Ok, "{}", said());
}

fn uses_of(pool: PoolName) -> u64 {
    let mut uses = u64::MAX;
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { (INTERFACE.pool_uses)(0, pool, Some(&mut uses)) }, Status::Ok);
    uses
}

/// Bytes that a pool has reserved.
fn reserved_by(pool: PoolName) -> i64 {
    let mut pools = OfPools::new();
    // SAFETY: the function takes what it is given.
    let status = unsafe {
        (INTERFACE.reserved_by_pools)(0, note_pool, std::ptr::from_mut(&mut pools).cast())
    };
    assert_eq!(status, Status::Ok, "{}", said());
    pools.iter().filter(|(name, _)| *name == pool).map(|(_, of)| of[0].current).sum()
}

unsafe extern "C" fn release(own: *mut c_void, _: u64) {
    // SAFETY: what the test passes.
    let own = unsafe { &mut *own.cast::<Own>() };
    own.told.push((allocate(0, 100).unwrap_err(), said()));
    if own.gives_back_then != 0 {
        free(0, own.gives_back_then).unwrap();
    }
    if let Some(pool) = own.drops_then {
        drop_pool(pool);
    }
}

#[test]
fn an_allocator_behind_a_pool_is_refused_what_it_asks_for_and_waits_for_nobody() {
    let _alone = alone();
    let pool = PoolName { first: 0, second: 78 };
    let spare = PoolName { first: 0, second: 80 };
    // SAFETY: functions that take whatever they are given.
    let status =
        unsafe { (INTERFACE.begin_pool)(0, spare, every_stream, std::ptr::null_mut(), nothing) };
    assert_eq!(status, Status::Ok, "{}", said());
    let of_spare = allocate(0, 5 * MIB).unwrap();
    // SAFETY: the pool that was begun.
    assert_eq!(unsafe { (INTERFACE.end_pool)(0, spare) }, Status::Ok);
    free(0, of_spare).unwrap();
    assert!(reserved_by(spare) > 0 && uses_of(spare) == 1);
    let given = allocate(0, 3 * MIB).unwrap();
    let mut own = Own { gives_back: given, drops: Some(spare), ..Own::default() };
    let place = std::ptr::from_mut(&mut own).cast();
    // SAFETY: functions and what they are given, which stays as long as the pool.
    let status = unsafe { (INTERFACE.use_pool_from)(0, pool, acquire, release, place, nothing) };
    assert_eq!(status, Status::Ok, "{}", said());
    // SAFETY: functions that take whatever they are given.
    let status =
        unsafe { (INTERFACE.begin_pool)(0, pool, every_stream, std::ptr::null_mut(), nothing) };
    assert_eq!(status, Status::Ok, "{}", said());
    let inside = allocate(0, 2 * MIB).unwrap();
    assert!(inside >= 0x7700_0000_0000);
    // What was given back meanwhile is back, and what was dropped goes with the next that is cached: while requests go to a pool, as in
    // a capture, nothing does.
    assert_eq!(free(0, given), Err(Status::Failed));
    assert_eq!(uses_of(spare), 0);
    // SAFETY: the pool that was begun.
    assert_eq!(unsafe { (INTERFACE.end_pool)(0, pool) }, Status::Ok);
    assert_eq!(allocate(0, 3 * MIB), Ok(given));
    free(0, given).unwrap();
    free(0, inside).unwrap();
    for _ in 0..2 {
        // SAFETY: the pool that was used and begun.
        assert_eq!(unsafe { (INTERFACE.release_pool)(0, pool) }, Status::Ok);
    }
    // SAFETY: a plain name.
    assert_eq!(unsafe { (INTERFACE.empty_cache)(DEFAULT, NO_STACK) }, Status::Ok);
    assert_eq!(reserved_by(spare), 0);
    assert_eq!(own.told.len(), 7);
    for (status, text) in &own.told {
        assert_eq!(*status, Status::Failed);
        assert!(text.contains("the allocator of a MemPool"), "{text}");
    }
    // This thread is no allocator's any more.
    assert!(tonnage_drop_in::paused_pools().is_ok());
}

#[test]
fn what_is_left_to_do_while_something_is_done_that_was_left_is_done_too() {
    let _alone = alone();
    let given = allocate(0, 3 * MIB).unwrap();
    let before = stats(0).0[12].current;
    let [outer, inner] = [83, 84].map(|second| PoolName { first: 0, second });
    let mut owns = [
        Own { drops_then: Some(inner), ..Own::default() },
        Own { gives_back_then: given, ..Own::default() },
    ];
    for (pool, own) in [outer, inner].into_iter().zip(&mut owns) {
        let place = std::ptr::from_mut(own).cast();
        // SAFETY: functions and what they are given, which stays as long as the pools.
        let status =
            unsafe { (INTERFACE.use_pool_from)(0, pool, acquire, release, place, nothing) };
        assert_eq!(status, Status::Ok, "{}", said());
        // SAFETY: functions that take whatever they are given.
        let status =
            unsafe { (INTERFACE.begin_pool)(0, pool, every_stream, std::ptr::null_mut(), nothing) };
        assert_eq!(status, Status::Ok, "{}", said());
        let bytes = if pool == outer { 2 * MIB } else { 30 * MIB };
        let inside = allocate(0, bytes).unwrap();
        // SAFETY: the pool that was begun.
        assert_eq!(unsafe { (INTERFACE.end_pool)(0, pool) }, Status::Ok);
        // SAFETY: as above.
        assert_eq!(unsafe { (INTERFACE.release_pool)(0, pool) }, Status::Ok);
        free(0, inside).unwrap();
    }
    // SAFETY: the pool that was used.
    assert_eq!(unsafe { (INTERFACE.release_pool)(0, outer) }, Status::Ok);
    // SAFETY: a plain name.
    assert_eq!(unsafe { (INTERFACE.empty_cache)(DEFAULT, NO_STACK) }, Status::Ok);
    // Asked first: every other call does what is left to do, and would hide what was forgotten.
    assert_eq!(stats(0).0[12].current, before - 3 * MIB as i64);
    assert_eq!(reserved_by(inner), 0);
}

#[test]
fn an_allocator_behind_a_pool_that_fails_ends_its_request_at_once() {
    let _alone = alone();
    let pool = PoolName { first: 0, second: 79 };
    let mut own = Own { fails: true, ..Own::default() };
    let place = std::ptr::from_mut(&mut own).cast();
    // SAFETY: functions and what they are given, which stays as long as the pool.
    let status = unsafe { (INTERFACE.use_pool_from)(0, pool, acquire, release, place, nothing) };
    assert_eq!(status, Status::Ok, "{}", said());
    let cached = allocate(0, 3 * MIB).unwrap();
    free(0, cached).unwrap();
    let before = stats(0);
    // SAFETY: functions that take whatever they are given.
    let status =
        unsafe { (INTERFACE.begin_pool)(0, pool, every_stream, std::ptr::null_mut(), nothing) };
    assert_eq!(status, Status::Ok, "{}", said());
    assert_eq!(allocate(0, 2 * MIB), Err(Status::Failed));
    assert!(said().contains("the allocator of pool (0, 79) failed"), "{}", said());
    assert_eq!(stats(0), before, "nothing was given back for it");
    assert_eq!(own.told.len(), 6, "it was asked once");
    // SAFETY: the pool that was begun.
    assert_eq!(unsafe { (INTERFACE.end_pool)(0, pool) }, Status::Ok);
    for _ in 0..2 {
        // SAFETY: as above.
        assert_eq!(unsafe { (INTERFACE.release_pool)(0, pool) }, Status::Ok);
    }
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
