//! cuSPARSE: handles, and products that need nothing beside, which is a guess.

use std::ffi::{c_char, c_int, c_void};

use super::{entry, handles};
use crate::notes;
use crate::state::put;

/// The release that is told.
const VERSION: c_int = 12603;

handles! {
    cusparseCreate cusparseCreateBsrsm2Info cusparseCreateBsrsv2Info cusparseCreateCoo cusparseCreateCsr
    cusparseCreateDnMat cusparseCreateDnVec cusparseCreateMatDescr cusparseSpGEMM_createDescr
    cusparseSpSM_createDescr cusparseSpSV_createDescr
}

/// # Safety
///
/// `size` is null, which is refused, or can be written.
unsafe fn nothing_beside(size: *mut usize) -> Result<(), tonnage_cuda_codes::Code> {
    notes::note(notes::GUESSES_FILE, "workspaces of sparse products (cuSPARSE) count as nothing");
    // SAFETY: the caller's promise.
    unsafe { put(size, 0) }
}

entry! {
    /// The release.
    fn cusparseGetVersion(_handle: u64, version: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(version, VERSION) }
    }

    /// Sparse times dense.
    fn cusparseSpMM_bufferSize(
        _handle: u64,
        _transposed_a: c_int,
        _transposed_b: c_int,
        _alpha: *const c_void,
        _a: u64,
        _b: u64,
        _beta: *const c_void,
        _c: u64,
        _type: c_int,
        _algorithm: c_int,
        size: *mut usize,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { nothing_beside(size) }
    }

    /// Sparse times a vector.
    fn cusparseSpMV_bufferSize(
        _handle: u64,
        _transposed: c_int,
        _alpha: *const c_void,
        _a: u64,
        _x: u64,
        _beta: *const c_void,
        _y: u64,
        _type: c_int,
        _algorithm: c_int,
        size: *mut usize,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { nothing_beside(size) }
    }
}

/// No status is in words here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cusparseGetErrorString(_status: c_int) -> *const c_char {
    c"a status of the fake cuSPARSE".as_ptr()
}
