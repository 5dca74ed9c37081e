//! The driver's functions, which the runtime hands out by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::entry;
use crate::driver::function;
use crate::state::put;
use tonnage_cuda_codes::Code;

/// The name was found.
const FOUND: c_int = 0;

/// Writes the function of this name.
///
/// # Safety
///
/// `name` is null or ends in a zero byte; `place` and `found` are null or can be written.
unsafe fn look_up(
    name: *const c_char,
    place: *mut *const c_void,
    found: *mut c_int,
) -> Result<(), Code> {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if !found.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(found, FOUND) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { put(place, function(name)) }
}

entry! {
    /// A function of the driver, whatever the version.
    fn cudaGetDriverEntryPointByVersion(
        name: *const c_char,
        place: *mut *const c_void,
        _version: c_uint,
        _flags: u64,
        found: *mut c_int,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { look_up(name, place, found) }
    }

    /// A function of the driver.
    fn cudaGetDriverEntryPoint(
        name: *const c_char,
        place: *mut *const c_void,
        _flags: u64,
        found: *mut c_int,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { look_up(name, place, found) }
    }
}
