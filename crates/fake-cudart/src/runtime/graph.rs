//! Graphs: names of captures, whose nodes are known until they end. Launching one does nothing.

use std::ffi::{c_char, c_uint, c_void};

use super::entry;
use crate::launches::replayed;
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

/// Answers how many nodes come before one, and which, as far as there is room.
///
/// # Safety
///
/// As for [`nodes`].
unsafe fn dependencies(
    before: &[u64],
    nodes: *mut u64,
    count: *mut usize,
) -> Result<(), tonnage_cuda_codes::Code> {
    if !nodes.is_null() && !count.is_null() {
        // SAFETY: the caller's promise.
        let room = unsafe { count.read() };
        for (number, &node) in before.iter().enumerate().take(room) {
            // SAFETY: the caller's promise: there is room for so many.
            unsafe { put(nodes.wrapping_add(number), node) }?;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { put(count, before.len()) }
}

entry! {
    /// One node.
    fn cudaGraphGetNodes(_graph: u64, places: *mut u64, count: *mut usize) |_| {
        // SAFETY: the caller's promise.
        unsafe { nodes(places, count) }
    }

    /// The nodes that a node comes right behind: how many, and which if there is room. Up to release 12 there are no edges among the
    /// arguments.
    fn cudaGraphNodeGetDependencies(
        node: u64,
        nodes: *mut u64,
        edges_or_count: *mut c_void,
        count: *mut usize,
    ) |state| {
        let has_edges = state.profile.version == 0 || state.profile.version >= 13000;
        let count = if has_edges { count } else { edges_or_count.cast() };
        // SAFETY: the caller's promise.
        unsafe { dependencies(state.captures.before(node), nodes, count) }
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
    fn cudaGraphLaunch(_graph: u64, stream: u64) first () = replayed(), |state| {
        state.captures.add_node(stream);
        Ok(())
    }

    /// Nothing is left of it.
    fn cudaGraphDestroy(_graph: u64) |_| { Ok(()) }

    /// Nothing is left of it.
    fn cudaGraphExecDestroy(_graph: u64) |_| { Ok(()) }

    /// There is nothing to print.
    fn cudaGraphDebugDotPrint(_graph: u64, _path: *const c_char, _flags: c_uint) |_| { Ok(()) }
}
