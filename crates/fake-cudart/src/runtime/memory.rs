//! Segments.

use std::ffi::c_void;

use tonnage_device::Device;
use tonnage_events::Address;

use super::entry;
use crate::codes::Code;
use crate::state::put;

entry! {
    /// Obtains a segment.
    fn cudaMalloc(address: *mut *mut c_void, size: usize) |state| {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let segment = state.device.acquire(size as u64)?;
        // SAFETY: the caller's promise. Nothing lies there: nobody follows the pointer.
        unsafe { put(address, std::ptr::without_provenance_mut(segment.0 as usize)) }
    }
}

entry! {
    /// Takes a segment back; null is nothing.
    fn cudaFree(address: *mut c_void) |state| {
        if address.is_null() {
            return Ok(());
        }
        Ok(state.device.release(Address(address.addr() as u64))?)
    }
}

entry! {
    /// Free and total bytes.
    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) |state| {
        let info = state.device.memory_info()?;
        // SAFETY: the caller's promise.
        unsafe { put(free, info.free as usize) }?;
        // SAFETY: the caller's promise.
        unsafe { put(total, info.total as usize) }
    }
}
