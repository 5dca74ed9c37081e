//! Names and words of codes, and the last one.

use std::ffi::{c_char, c_int};

use tonnage_cuda_codes::runtime_text as text;

use crate::state::last;

/// The last failure of this thread, which is forgotten by that.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn cudaGetLastError() -> c_int {
    last(true)
}

/// The last failure of this thread.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn cudaPeekAtLastError() -> c_int {
    last(false)
}

/// The name of a code.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn cudaGetErrorName(code: c_int) -> *const c_char {
    text(code).0.as_ptr()
}

/// A code in words.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime's name")]
extern "C" fn cudaGetErrorString(code: c_int) -> *const c_char {
    text(code).1.as_ptr()
}
