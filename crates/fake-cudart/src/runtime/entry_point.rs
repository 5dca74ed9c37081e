//! The driver's functions, which the runtime hands out by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::entry;
use crate::driver::function;
use crate::state::put;
use tonnage_cuda_codes::Code;

/// The name was found.
const FOUND: c_int = 0;

/// The function of this name; nothing for a name that is null. It may be the loader who knows it.
///
/// # Safety
///
/// `name` is null or ends in a zero byte.
unsafe fn named(name: *const c_char) -> Option<*const c_void> {
    // SAFETY: the caller's promise.
    (!name.is_null()).then(|| function(unsafe { CStr::from_ptr(name) }))
}

/// Writes a function that was looked up.
///
/// # Safety
///
/// `place` and `found` are null or can be written.
unsafe fn tell(
    function: Option<*const c_void>,
    place: *mut *const c_void,
    found: *mut c_int,
) -> Result<(), Code> {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    if !found.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(found, FOUND) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { put(place, function) }
}

entry! {
    /// A function of the driver, whatever the version.
    fn cudaGetDriverEntryPointByVersion(
        name: *const c_char,
        place: *mut *const c_void,
        _version: c_uint,
        _flags: u64,
        found: *mut c_int,
        // SAFETY: the caller's promise.
    ) first function = unsafe { named(name) }, |_| {
        // SAFETY: the caller's promise.
        unsafe { tell(function, place, found) }
    }

    /// A function of the driver.
    fn cudaGetDriverEntryPoint(
        name: *const c_char,
        place: *mut *const c_void,
        _flags: u64,
        found: *mut c_int,
        // SAFETY: the caller's promise.
    ) first function = unsafe { named(name) }, |_| {
        // SAFETY: the caller's promise.
        unsafe { tell(function, place, found) }
    }
}
