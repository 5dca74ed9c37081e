//! What a test says to the fake: one entry point, [`fake_cudart_control`], with an operation and two
//! numbers. It stands beside the runtime's functions in the library, so that a driver in C or C++ can call
//! it.

use tonnage_events::StreamId;

use crate::state::{State, with_state};

/// Starts over with a device of `a` bytes that gives out at most `b`.
pub const RESET: u32 = 0;
/// Events are complete from now on if `a` is not 0, else none is.
pub const EVENTS: u32 = 1;
/// After events were held: those of stream `a` are complete.
pub const EVENTS_OF: u32 = 2;
/// Streams count as capturing if `a` is not 0.
pub const CAPTURING: u32 = 3;

/// The answer to an operation that does not exist.
pub const REFUSED: u64 = u64::MAX;

/// Does an operation of this module; 0 if it was done.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cudart_control(operation: u32, a: u64, b: u64) -> u64 {
    with_state(|state| control(state, operation, a, b)).unwrap_or(REFUSED)
}

fn control(state: &mut State, operation: u32, a: u64, b: u64) -> u64 {
    match operation {
        RESET => *state = State::new(a, b),
        EVENTS if a == 0 => state.device.hold_events(),
        EVENTS => state.device.complete_events(),
        EVENTS_OF => state.device.complete_events_of(StreamId(a)),
        CAPTURING => state.captures.everything = a != 0,
        _ => return REFUSED,
    }
    0
}
