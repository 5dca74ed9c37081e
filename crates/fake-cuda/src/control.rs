//! What a real driver does not have: an entry point for the test.
//!
//! [`fake_cuda_control`] is exported beside the driver's functions and looked up in the same
//! library, so that it speaks to the same state. Each operation takes two numbers and answers one;
//! what an operation does not use is ignored, and one that cannot be done answers [`REFUSED`].
//! Control calls are not counted as calls of the driver.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::codes::Code;
use crate::launches::{Body, Sink};
use crate::state::{self, State, with_state};

/// Starts over: no memory, no failures, two devices of 8 GiB. What is current on threads stays.
pub const RESET: u32 = 0;
/// The number of driver calls so far.
pub const CALLS: u32 = 1;
/// After `a` more calls, one fails with code `b`. May be said several times.
pub const FAIL: u32 = 2;
/// The number of calls that were made to fail.
pub const FAILED: u32 = 3;
/// Forgets the failures that are still to come.
pub const CLEAR_FAILURES: u32 = 4;
/// Device `a` has `b` bytes.
pub const CAPACITY: u32 = 5;
/// The bytes that device `a` has given and not got back.
pub const USED: u32 = 6;
/// Starts over with `a` devices.
pub const DEVICES: u32 = 7;
/// Device `a` can map pages, or cannot (`b` = 0).
pub const VIRTUAL_MEMORY: u32 = 8;
/// Work on stream `a` of device `b`, or on all ([`ALL`]), is not done until told, or waited for.
pub const HOLD: u32 = 9;
/// Ends [`HOLD`] for stream `a` of device `b`, or for all ([`ALL`]).
pub const COMPLETE: u32 = 10;
/// How many things of kind `a` were not given back.
pub const LIVE: u32 = 11;

/// [`HOLD`] for all, and who waits for work, in whichever call, waits until [`COMPLETE`] for all.
pub const HOLD_WAITS: u32 = 12;
/// The number of driver calls that wait at this moment.
pub const WAITING: u32 = 13;
/// Copies that their caller waits for take until [`COMPLETE`] for all.
pub const HOLD_COPIES: u32 = 14;

/// Forgets the launches so far.
pub const FORGET_LAUNCHES: u32 = 15;

/// Whether device `a` may read and write what is mapped at address `b`: 1 if so.
pub const REACHES: u32 = 16;

/// All streams.
pub const ALL: u64 = u64::MAX;

/// The answer where there is none.
pub const REFUSED: u64 = u64::MAX;

/// Kinds for [`LIVE`]: segments.
pub const SEGMENTS: u64 = 0;
/// Kinds for [`LIVE`]: reserved ranges.
pub const RANGES: u64 = 1;
/// Kinds for [`LIVE`]: page handles.
pub const PAGES: u64 = 2;
/// Kinds for [`LIVE`]: mappings.
pub const MAPPINGS: u64 = 3;
/// Kinds for [`LIVE`]: streams.
pub const STREAMS: u64 = 4;
/// Kinds for [`LIVE`]: events.
pub const EVENTS: u64 = 5;
/// Kinds for [`LIVE`]: references to primary contexts, of all devices.
pub const CONTEXTS: u64 = 6;
/// Kinds for [`LIVE`]: pieces of pinned host memory.
pub const PINNED: u64 = 7;
/// Kinds for [`LIVE`]: modules.
pub const MODULES: u64 = 8;
/// Kinds for [`LIVE`]: graphs, captured ones and ones that can be launched.
pub const GRAPHS: u64 = 9;

/// Shows every launch so far, oldest first, to `sink`.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_each_launch(sink: Sink, data: *mut c_void) {
    let launches = with_state(|state| state.launches.done.clone()).unwrap_or_default();
    launches.iter().for_each(|launch| launch.show(sink, data));
}

/// From now on a launch of the kernel with this name calls `body`, with the driver's state locked: it may read and
/// write memory of the devices, and calls no function of the driver.
///
/// # Safety
///
/// 1. `name` has `length` bytes.
/// 2. `body` may be called with `data` from any thread, one at a time, as long as the library is loaded.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_on_launch(
    name: *const u8,
    length: usize,
    body: Sink,
    data: *mut c_void,
) {
    // SAFETY: promise 1.
    let name = unsafe { std::slice::from_raw_parts(name, length) };
    let name = String::from_utf8_lossy(name).into_owned();
    // A panic elsewhere has been answered there.
    let _ = with_state(|state| state.launches.set_body(name, Body { call: body, data }));
}

/// Does an operation of this module.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_control(operation: u32, a: u64, b: u64) -> u64 {
    let answer = with_state(|state| control(state, operation, a, b));
    state::wake();
    answer.and_then(Result::ok).unwrap_or(REFUSED)
}

fn control(state: &mut State, operation: u32, a: u64, b: u64) -> Result<u64, Code> {
    match operation {
        RESET => *state = State::new(2),
        CALLS => return Ok(state.calls),
        FAIL => {
            let call = state.calls.checked_add(a).and_then(|call| call.checked_add(1));
            let code = i32::try_from(b).map_err(|_| Code::INVALID_VALUE)?;
            state.failures.insert(call.ok_or(Code::INVALID_VALUE)?, code);
        }
        FAILED => return Ok(state.failed),
        CLEAR_FAILURES => state.failures.clear(),
        CAPACITY => {
            let device = device(state, a)?;
            state.memory.budgets[device].capacity = b;
        }
        USED => {
            let device = device(state, a)?;
            return Ok(state.memory.budgets[device].used);
        }
        DEVICES => *state = State::new(a.min(64) as usize),
        VIRTUAL_MEMORY => {
            let device = device(state, a)?;
            state.devices[device].virtual_memory = b != 0;
        }
        HOLD if a == ALL => state.queues.hold_all(),
        HOLD => {
            let device = device(state, b)?;
            let queue = state.queues.key(a, device)?;
            state.queues.hold(queue);
        }
        COMPLETE if a == ALL => state.queues.complete_all(),
        COMPLETE => {
            let device = device(state, b)?;
            let queue = state.queues.key(a, device)?;
            state.queues.complete(queue);
        }
        HOLD_WAITS => state.queues.hold_waits(),
        HOLD_COPIES => state.queues.hold_copies(),
        WAITING => return Ok(state::WAITING.load(Ordering::Relaxed)),
        LIVE => return live(state, a),
        FORGET_LAUNCHES => state.launches.done.clear(),
        REACHES => {
            let device = device(state, a)?;
            return Ok(u64::from(state.memory.reaches(device, b)));
        }
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(0)
}

fn device(state: &State, number: u64) -> Result<usize, Code> {
    state.device(i32::try_from(number).map_err(|_| Code::INVALID_DEVICE)?)
}

fn live(state: &State, kind: u64) -> Result<u64, Code> {
    let [segments, ranges, pages, mappings] = state.memory.live();
    let [streams, events] = state.queues.live();
    let count = match kind {
        SEGMENTS => segments,
        RANGES => ranges,
        PAGES => pages,
        MAPPINGS => mappings,
        STREAMS => streams,
        EVENTS => events,
        CONTEXTS => state.devices.iter().map(|device| device.retained as usize).sum(),
        PINNED => state.pinned.len(),
        MODULES => state.launches.live(),
        GRAPHS => state.captures.live(),
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok(count as u64)
}
