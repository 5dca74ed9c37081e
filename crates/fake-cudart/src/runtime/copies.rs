//! Copies and fills: between places of the host they happen; from and to the device only what is known moves.

use std::ffi::{c_int, c_void};

use super::entry;
use crate::state::State;

/// Moves `length` bytes.
///
/// # Safety
///
/// Addresses that are not the device's can be read or written for that length.
pub(crate) unsafe fn copy(state: &mut State, to: *mut c_void, from: *const c_void, length: usize) {
    if length == 0 || to.is_null() || from.is_null() {
        return;
    }
    let (to_device, from_device) = (state.on_device(to.addr()), state.on_device(from.addr()));
    match (to_device, from_device) {
        // SAFETY: the caller's promise.
        (false, false) => unsafe { to.cast::<u8>().copy_from(from.cast(), length) },
        (true, true) => state.shadow.copy(to.addr() as u64, from.addr() as u64, length),
        (true, false) => {
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
            state.shadow.write(to.addr() as u64, bytes);
        }
        (false, true) => {
            // SAFETY: the caller's promise.
            unsafe { to.cast::<u8>().write_bytes(0, length) };
            // SAFETY: the caller's promise; all of it was written above, and nobody looks there before the call ends.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
            let known = state.shadow.read(from.addr() as u64, bytes);
            state.reads.read(bytes, known);
        }
    }
}

/// Fills `length` bytes.
///
/// # Safety
///
/// An address that is not the device's can be written for that length.
pub(crate) unsafe fn fill(state: &mut State, place: *mut c_void, byte: c_int, length: usize) {
    if place.is_null() {
        return;
    }
    if state.on_device(place.addr()) {
        return state.shadow.fill(place.addr() as u64, byte as u8, length);
    }
    // SAFETY: the caller's promise.
    unsafe { place.cast::<u8>().write_bytes(byte as u8, length) };
}

entry! {
    /// Moves bytes.
    fn cudaMemcpy(to: *mut c_void, from: *const c_void, length: usize, _kind: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { copy(state, to, from, length) };
        Ok(())
    }

    /// Moves bytes.
    fn cudaMemcpyAsync(
        to: *mut c_void,
        from: *const c_void,
        length: usize,
        _kind: c_int,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        // SAFETY: the caller's promise.
        unsafe { copy(state, to, from, length) };
        Ok(())
    }

    /// Moves bytes between devices.
    fn cudaMemcpyPeerAsync(
        to: *mut c_void,
        _to_device: c_int,
        from: *const c_void,
        _from_device: c_int,
        length: usize,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        // SAFETY: the caller's promise.
        unsafe { copy(state, to, from, length) };
        Ok(())
    }

    /// Moves rows of bytes.
    fn cudaMemcpy2DAsync(
        to: *mut c_void,
        to_pitch: usize,
        from: *const c_void,
        from_pitch: usize,
        width: usize,
        height: usize,
        _kind: c_int,
        stream: u64,
    ) |state| {
        state.captures.add_node(stream);
        for row in 0..height {
            let (to, from) = (to.wrapping_byte_add(row * to_pitch), from.wrapping_byte_add(row * from_pitch));
            // SAFETY: the caller's promise, row by row.
            unsafe { copy(state, to, from, width) };
        }
        Ok(())
    }

    /// Variables of kernels hold nothing.
    fn cudaMemcpyToSymbol(
        _symbol: *const c_void,
        _from: *const c_void,
        _length: usize,
        _offset: usize,
        _kind: c_int,
    ) |_| { Ok(()) }

    /// Fills.
    fn cudaMemset(place: *mut c_void, byte: c_int, length: usize) |state| {
        // SAFETY: the caller's promise.
        unsafe { fill(state, place, byte, length) };
        Ok(())
    }

    /// Fills.
    fn cudaMemsetAsync(place: *mut c_void, byte: c_int, length: usize, stream: u64) |state| {
        state.captures.add_node(stream);
        // SAFETY: the caller's promise.
        unsafe { fill(state, place, byte, length) };
        Ok(())
    }
}
