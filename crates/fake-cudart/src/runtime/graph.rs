//! Graphs: names of captures. Launching one does nothing.

use std::ffi::{c_char, c_uint, c_void};

use super::entry;
use crate::state::put;

/// The one node that every graph is told to have: PyTorch warns about graphs without any.
const NODE: u64 = 0x8000;

/// The graph of a capture.
pub(super) fn graph_of(capture: u64) -> u64 {
    0x7000 + capture * 0x10
}

/// Answers how many nodes there are, and which if there is room.
///
/// # Safety
///
/// `nodes` is null or has room for the number at `count`, which is null or can be read and written.
unsafe fn nodes(nodes: *mut u64, count: *mut usize) -> Result<(), tonnage_cuda_codes::Code> {
    if !nodes.is_null() && !count.is_null() {
        // SAFETY: the caller's promise.
        let room = unsafe { count.read() };
        if room > 0 {
            // SAFETY: the caller's promise: there is room for one.
            unsafe { put(nodes, NODE) }?;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { put(count, 1) }
}

entry! {
    /// One node.
    fn cudaGraphGetNodes(_graph: u64, places: *mut u64, count: *mut usize) |_| {
        // SAFETY: the caller's promise.
        unsafe { nodes(places, count) }
    }

    /// It is alone.
    fn cudaGraphNodeGetDependencies(
        _node: u64,
        _nodes: *mut u64,
        _edges: *mut c_void,
        count: *mut usize,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(count, 0) }
    }

    /// A graph that can be launched has the name of the graph.
    fn cudaGraphInstantiateWithFlags(place: *mut u64, graph: u64, _flags: u64) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(place, graph) }
    }

    /// The same.
    fn cudaGraphInstantiate(place: *mut u64, graph: u64, _flags: u64) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(place, graph) }
    }

    /// Nothing happens.
    fn cudaGraphLaunch(_graph: u64, _stream: u64) |_| { Ok(()) }

    /// Nothing is left of it.
    fn cudaGraphDestroy(_graph: u64) |_| { Ok(()) }

    /// Nothing is left of it.
    fn cudaGraphExecDestroy(_graph: u64) |_| { Ok(()) }

    /// There is nothing to print.
    fn cudaGraphDebugDotPrint(_graph: u64, _path: *const c_char, _flags: c_uint) |_| { Ok(()) }
}
