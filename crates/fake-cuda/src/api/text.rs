//! Names and words of codes, and what the driver does not have. These calls are not counted and cannot be made to fail.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::put;
use crate::codes::{Code, SUCCESS, text};

/// The name of a code.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the driver's name")]
unsafe extern "C" fn cuGetErrorName(code: c_int, place: *mut *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(place, text(code).map(|(name, _)| name)) }
}

/// The words for a code.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the driver's name")]
unsafe extern "C" fn cuGetErrorString(code: c_int, place: *mut *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { answer(place, text(code).map(|(_, words)| words)) }
}

/// # Safety
///
/// `place` is null or can be written.
unsafe fn answer(place: *mut *const c_char, text: Option<&'static CStr>) -> c_int {
    let pointer = text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the caller's promise.
    let written = unsafe { put(place, pointer) };
    match (written, text) {
        (Ok(()), Some(_)) => SUCCESS,
        _ => Code::INVALID_VALUE.0,
    }
}

/// Tables of functions that no manual has: there are none. NVRTC asks for them where it finds a driver, and does without if
/// it is told so, but not if nobody answers.
///
/// # Safety
///
/// Nothing is read or written.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the driver's name")]
unsafe extern "C" fn cuGetExportTable(_table: *mut *const c_void, _id: *const c_void) -> c_int {
    Code::NOT_FOUND.0
}
