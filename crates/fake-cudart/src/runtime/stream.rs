//! Streams, on which everything is done at once, and their captures.

use std::ffi::{c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;

use super::entry;
use super::graph::graph_of;
use crate::state::{State, put};

const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;

/// What a stream calls when it gets there.
type Callback = unsafe extern "C" fn(stream: u64, code: c_int, data: *mut c_void);
type HostFunction = unsafe extern "C" fn(data: *mut c_void);

/// A stream of this priority.
///
/// # Safety
///
/// `stream` is null, which is refused, or can be written.
unsafe fn create(state: &mut State, stream: *mut u64, priority: c_int) -> Result<(), Code> {
    let handle = state.next_handle();
    if priority != 0 {
        state.priorities.insert(handle, priority);
    }
    // SAFETY: the caller's promise.
    unsafe { put(stream, handle) }
}

entry! {
    /// A handle.
    fn cudaStreamCreate(stream: *mut u64) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, stream, 0) }
    }

    /// A handle.
    fn cudaStreamCreateWithFlags(stream: *mut u64, _flags: c_uint) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, stream, 0) }
    }

    /// A handle.
    fn cudaStreamCreateWithPriority(stream: *mut u64, _flags: c_uint, priority: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { create(state, stream, priority) }
    }

    /// No more of it.
    fn cudaStreamDestroy(stream: u64) |state| {
        state.priorities.remove(&stream);
        Ok(())
    }

    /// As on NVIDIA's devices since 2018.
    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(least, 0) }?;
        // SAFETY: the caller's promise.
        unsafe { put(greatest, -5) }
    }

    /// What it was created with.
    fn cudaStreamGetPriority(stream: u64, priority: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(priority, state.priorities.get(&stream).copied().unwrap_or(0)) }
    }

    /// Everything is done.
    fn cudaStreamSynchronize(_stream: u64) |_| { Ok(()) }

    /// Everything is done.
    fn cudaStreamQuery(_stream: u64) |_| { Ok(()) }

    /// Everything is done; but a stream that waits for a capture is part of it.
    fn cudaStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) |state| {
        state.wait_for_event(stream, event);
        Ok(())
    }

    /// The mode stays what it is: nothing is unsafe here.
    fn cudaThreadExchangeStreamCaptureMode(_mode: *mut c_int) |_| { Ok(()) }

    /// A graph begins.
    fn cudaStreamBeginCapture(stream: u64, _mode: c_int) |state| {
        if state.captures.of(stream).is_some() {
            return Err(Code::INVALID_VALUE);
        }
        state.captures.begin(stream);
        Ok(())
    }

    /// The graph is done.
    fn cudaStreamEndCapture(stream: u64, graph: *mut u64) |state| {
        let capture = state.captures.end(stream).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(graph, graph_of(capture)) }
    }

    /// Whether it is part of a graph.
    fn cudaStreamIsCapturing(stream: u64, answer: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(answer, status(state, stream)) }
    }

    /// Where a stream is in a capture. As of release 12.
    fn cudaStreamGetCaptureInfo_v2(
        stream: u64,
        answer: *mut c_int,
        id: *mut u64,
        graph: *mut u64,
        nodes: *mut *const u64,
        count: *mut usize,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { capture_info(state, stream, answer, [id, graph], nodes, count) }
    }

    /// Where a stream is in a capture. As of release 13; no edge is other than plain.
    fn cudaStreamGetCaptureInfo(
        stream: u64,
        answer: *mut c_int,
        id: *mut u64,
        graph: *mut u64,
        nodes: *mut *const u64,
        edges: *mut *const c_void,
        count: *mut usize,
    ) |state| {
        if !edges.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(edges, std::ptr::null()) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { capture_info(state, stream, answer, [id, graph], nodes, count) }
    }
}

fn status(state: &State, stream: u64) -> c_int {
    if state.captures.of(stream).is_some() { CAPTURING } else { NOT_CAPTURING }
}

/// Writes status, number, graph and nodes of the capture; all but the first may be unasked for.
///
/// # Safety
///
/// `answer`, `id`, `graph`, `nodes` and `count` are null or can be written.
unsafe fn capture_info(
    state: &State,
    stream: u64,
    answer: *mut c_int,
    [id, graph]: [*mut u64; 2],
    nodes: *mut *const u64,
    count: *mut usize,
) -> Result<(), Code> {
    let capture = state.captures.of(stream);
    for (place, value) in [(id, capture.unwrap_or(0)), (graph, capture.map_or(0, graph_of))] {
        if !place.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(place, value) }?;
        }
    }
    let behind = state.captures.at(stream).map_or(&[][..], |place| &place.behind);
    if !nodes.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(nodes, behind.as_ptr()) }?;
    }
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(count, behind.len()) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { put(answer, status(state, stream)) }
}

/// Calls back at once: everything before is done. Not with the state, which the function may ask for.
///
/// # Safety
///
/// As for the runtime's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
unsafe extern "C" fn cudaStreamAddCallback(
    stream: u64,
    callback: Option<Callback>,
    data: *mut c_void,
    _flags: c_uint,
) -> c_int {
    let Some(callback) = callback else { return Code::INVALID_VALUE.0 };
    // SAFETY: the caller's promise.
    unsafe { callback(stream, 0, data) };
    0
}

/// Calls at once, unless the stream is being captured: then the call would be part of the graph.
///
/// # Safety
///
/// As for the runtime's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
unsafe extern "C" fn cudaLaunchHostFunc(
    stream: u64,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> c_int {
    let Some(function) = function else { return Code::INVALID_VALUE.0 };
    let captured = crate::state::with_state(|state| {
        state.captures.add_node(stream);
        state.captures.of(stream).is_some()
    });
    if captured == Some(false) {
        // SAFETY: the caller's promise.
        unsafe { function(data) };
    }
    0
}
