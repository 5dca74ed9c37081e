//! Streams and events of the driver: the runtime's, under other names.

use std::ffi::{c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;

use super::entry;
use crate::state::put;

const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;

entry! {
    /// A handle.
    fn cuStreamCreate(stream: *mut u64, _flags: c_uint) |state| {
        let handle = state.next_handle();
        // SAFETY: the caller's promise.
        unsafe { put(stream, handle) }
    }

    /// No more of it.
    fn cuStreamDestroy_v2(_stream: u64) |_| { Ok(()) }

    /// Everything is done.
    fn cuStreamSynchronize(_stream: u64) |_| { Ok(()) }

    /// Everything is done.
    fn cuStreamQuery(_stream: u64) |_| { Ok(()) }

    /// Everything is done; but a stream that waits for a capture is part of it.
    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) |state| {
        state.wait_for_event(stream, event);
        Ok(())
    }

    /// Whether it is part of a graph.
    fn cuStreamIsCapturing(stream: u64, answer: *mut c_int) |state| {
        let captured = state.captures.of(stream).is_some();
        // SAFETY: the caller's promise.
        unsafe { put(answer, if captured { CAPTURING } else { NOT_CAPTURING }) }
    }

    /// A handle.
    fn cuEventCreate(event: *mut u64, _flags: c_uint) |state| {
        if event.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = state.create_event();
        // SAFETY: the caller's promise.
        unsafe { put(event, handle) }
    }

    /// No more of it.
    fn cuEventDestroy_v2(event: u64) |state| { state.destroy_event(event) }

    /// Marks the end of what is queued on the stream.
    fn cuEventRecord(event: u64, stream: u64) |state| { state.record_event(event, stream) }

    /// Whether the mark was reached.
    fn cuEventQuery(event: u64) |state| {
        if state.is_reached(event)? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// Waiting gets there at once.
    fn cuEventSynchronize(event: u64) |state| { state.is_reached(event).map(drop) }
}
