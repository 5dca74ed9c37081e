//! Streams, on which everything is done at once, and their captures.

use std::ffi::{c_int, c_uint, c_void};

use super::entry;
use crate::state::{State, put};

const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;

/// The number that every capture goes by.
const CAPTURE: u64 = 7;

entry! {
    /// A handle.
    fn cudaStreamCreateWithPriority(stream: *mut u64, _flags: c_uint, _priority: c_int) |state| {
        let handle = state.next_handle();
        // SAFETY: the caller's promise.
        unsafe { put(stream, handle) }
    }
}

entry! {
    /// As on NVIDIA's devices since 2018.
    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(least, 0) }?;
        // SAFETY: the caller's promise.
        unsafe { put(greatest, -5) }
    }
}

entry! {
    /// All are equal.
    fn cudaStreamGetPriority(_stream: u64, priority: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(priority, 0) }
    }
}

entry! {
    /// Everything is done.
    fn cudaStreamSynchronize(_stream: u64) |_| { Ok(()) }
}

entry! {
    /// Everything is done.
    fn cudaStreamQuery(_stream: u64) |_| { Ok(()) }
}

entry! {
    /// Everything is done.
    fn cudaStreamWaitEvent(_stream: u64, _event: u64, _flags: c_uint) |_| { Ok(()) }
}

entry! {
    /// The mode stays what it is: nothing is unsafe here.
    fn cudaThreadExchangeStreamCaptureMode(_mode: *mut c_int) |_| { Ok(()) }
}

fn status(state: &State) -> c_int {
    if state.capturing { CAPTURING } else { NOT_CAPTURING }
}

entry! {
    /// Whether the test has said so.
    fn cudaStreamIsCapturing(_stream: u64, answer: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(answer, status(state)) }
    }
}

/// Writes status and number of the capture; the latter may be unasked for.
///
/// # Safety
///
/// `answer` and `id` are null or can be written.
unsafe fn capture_info(
    state: &State,
    answer: *mut c_int,
    id: *mut u64,
) -> Result<(), crate::codes::Code> {
    if !id.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(id, if state.capturing { CAPTURE } else { 0 }) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { put(answer, status(state)) }
}

entry! {
    /// A capture without nodes. As of release 12.
    fn cudaStreamGetCaptureInfo_v2(
        _stream: u64,
        answer: *mut c_int,
        id: *mut u64,
        _graph: *mut u64,
        _nodes: *mut *const c_void,
        count: *mut usize,
    ) |state| {
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(count, 0) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { capture_info(state, answer, id) }
    }
}

entry! {
    /// A capture without nodes. As of release 13.
    fn cudaStreamGetCaptureInfo(
        _stream: u64,
        answer: *mut c_int,
        id: *mut u64,
        _graph: *mut u64,
        _nodes: *mut *const c_void,
        _edges: *mut *const c_void,
        count: *mut usize,
    ) |state| {
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(count, 0) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { capture_info(state, answer, id) }
    }
}
