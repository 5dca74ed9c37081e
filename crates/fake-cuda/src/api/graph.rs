//! Captures and graphs.

use std::ffi::{c_int, c_void};

use super::{entry, put};
use crate::codes::Code;

entry! {
    /// Begins to write down what is queued on a stream, which is none of the default ones.
    fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) |state| {
        let queue = state.current().and_then(|device| state.queues.key(stream, device))?;
        if !(0..=2).contains(&mode) {
            return Err(Code::INVALID_VALUE);
        }
        if queue != stream {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        state.captures.begin(queue)
    }
}

entry! {
    /// Ends a capture.
    fn cuStreamEndCapture(stream: u64, graph: *mut u64) |state| {
        let queue = state.current().and_then(|device| state.queues.key(stream, device))?;
        let handle = state.captures.end(queue)?;
        // SAFETY: the caller's promise.
        unsafe { put(graph, handle) }
    }
}

entry! {
    /// Whether a stream is captured.
    fn cuStreamIsCapturing(stream: u64, status: *mut c_int) |state| {
        let queue = state.current().and_then(|device| state.queues.key(stream, device))?;
        // SAFETY: the caller's promise.
        unsafe { put(status, c_int::from(state.captures.is_captured(queue))) }
    }
}

entry! {
    /// Makes a graph that can be launched.
    fn cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64) |state| {
        if flags != 0 || exec.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = state.captures.instantiate(graph)?;
        // SAFETY: the caller's promise.
        unsafe { put(exec, handle) }
    }
}

entry! {
    /// The number of a graph's nodes; their names are not told.
    fn cuGraphGetNodes(graph: u64, nodes: *mut *mut c_void, count: *mut usize) |state| {
        if !nodes.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the caller's promise.
        unsafe { put(count, state.captures.nodes(graph)?) }
    }
}

entry! {
    /// Queues the work of a graph.
    fn cuGraphLaunch(exec: u64, stream: u64) |state| {
        state.current()?;
        // SAFETY: the caller's promise, for each piece of work.
        unsafe { state.submit_graph(stream, exec) }
    }
}

entry! {
    /// Ends a graph that can be launched.
    fn cuGraphExecDestroy(exec: u64) |state| {
        state.captures.destroy_exec(exec)
    }
}

entry! {
    /// Ends a graph.
    fn cuGraphDestroy(graph: u64) |state| {
        state.captures.destroy(graph)
    }
}
