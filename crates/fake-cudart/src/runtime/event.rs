//! Events, complete when the test says so.

use std::ffi::c_uint;

use super::entry;
use crate::state::{State, put};
use tonnage_cuda_codes::Code;

/// An event's handle.
///
/// # Safety
///
/// `event` is null, which is refused, or can be written.
unsafe fn create(state: &mut State, event: *mut u64) -> Result<(), Code> {
    if event.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let handle = state.create_event();
    // SAFETY: the caller's promise.
    unsafe { put(event, handle) }
}

entry! {
    /// A handle.
    fn cudaEventCreate(event: *mut u64) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, event) }
    }

    /// A handle.
    fn cudaEventCreateWithFlags(event: *mut u64, _flags: c_uint) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, event) }
    }

    /// No more of it.
    fn cudaEventDestroy(event: u64) |state| { state.destroy_event(event) }

    /// Marks the end of what is queued on the stream.
    fn cudaEventRecord(event: u64, stream: u64) |state| { state.record_event(event, stream) }

    /// The same.
    fn cudaEventRecordWithFlags(event: u64, stream: u64, _flags: c_uint) |state| {
        state.record_event(event, stream)
    }

    /// Whether the mark was reached.
    fn cudaEventQuery(event: u64) |state| {
        if state.is_reached(event)? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// Waiting gets there at once.
    fn cudaEventSynchronize(event: u64) |state| { state.is_reached(event).map(drop) }

    /// Nothing takes time, but no program divides by what it took.
    fn cudaEventElapsedTime(milliseconds: *mut f32, _from: u64, _to: u64) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(milliseconds, 1.0) }
    }
}
