//! Events, complete when the test says so.

use std::ffi::c_uint;

use super::entry;
use crate::codes::Code;
use crate::state::put;

entry! {
    /// A handle.
    fn cudaEventCreateWithFlags(event: *mut u64, _flags: c_uint) |state| {
        if event.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = state.create_event();
        // SAFETY: the caller's promise.
        unsafe { put(event, handle) }
    }
}

entry! {
    /// No more of it.
    fn cudaEventDestroy(event: u64) |state| { state.destroy_event(event) }
}

entry! {
    /// Marks the end of what is queued on the stream.
    fn cudaEventRecord(event: u64, stream: u64) |state| { state.record_event(event, stream) }
}

entry! {
    /// Whether the mark was reached.
    fn cudaEventQuery(event: u64) |state| {
        if state.is_reached(event)? { Ok(()) } else { Err(Code::NOT_READY) }
    }
}

entry! {
    /// Waiting gets there at once.
    fn cudaEventSynchronize(event: u64) |state| { state.is_reached(event).map(drop) }
}

entry! {
    /// Nothing takes time.
    fn cudaEventElapsedTime(milliseconds: *mut f32, _from: u64, _to: u64) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(milliseconds, 0.0) }
    }
}
