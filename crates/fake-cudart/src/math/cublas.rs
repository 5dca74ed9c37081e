//! cuBLAS: a handle with a stream and modes. Workspaces are PyTorch's own.

use std::ffi::{c_char, c_int, c_void};

use super::{entry, handles};
use crate::state::{State, put};

/// What a handle was told, by kind.
const STREAM: u8 = 0;
const POINTER_MODE: u8 = 1;
const MATH_MODE: u8 = 2;
const ATOMICS_MODE: u8 = 3;

/// The release that is told.
const VERSION: c_int = 130_100;

fn set(state: &mut State, handle: u64, kind: u8, value: u64) {
    state.settings.insert((handle, kind), value);
}

fn get(state: &State, handle: u64, kind: u8) -> u64 {
    state.settings.get(&(handle, kind)).copied().unwrap_or(0)
}

handles! { cublasCreate_v2 }

entry! {
    /// Nothing is left of it.
    fn cublasDestroy_v2(handle: u64) |state| {
        state.settings.retain(|&(other, _), _| other != handle);
        Ok(())
    }

    /// Remembers.
    fn cublasSetStream_v2(handle: u64, stream: u64) |state| {
        set(state, handle, STREAM, stream);
        Ok(())
    }

    /// What was told.
    fn cublasGetStream_v2(handle: u64, stream: *mut u64) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(stream, get(state, handle, STREAM)) }
    }

    /// Remembers.
    fn cublasSetPointerMode_v2(handle: u64, mode: c_int) |state| {
        set(state, handle, POINTER_MODE, mode as u64);
        Ok(())
    }

    /// What was told.
    fn cublasGetPointerMode_v2(handle: u64, mode: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(mode, get(state, handle, POINTER_MODE) as c_int) }
    }

    /// Remembers.
    fn cublasSetMathMode(handle: u64, mode: c_int) |state| {
        set(state, handle, MATH_MODE, mode as u64);
        Ok(())
    }

    /// What was told.
    fn cublasGetMathMode(handle: u64, mode: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(mode, get(state, handle, MATH_MODE) as c_int) }
    }

    /// Remembers.
    fn cublasSetAtomicsMode(handle: u64, mode: c_int) |state| {
        set(state, handle, ATOMICS_MODE, mode as u64);
        Ok(())
    }

    /// What was told.
    fn cublasGetAtomicsMode(handle: u64, mode: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(mode, get(state, handle, ATOMICS_MODE) as c_int) }
    }

    /// The release.
    fn cublasGetVersion_v2(_handle: u64, version: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(version, VERSION) }
    }
}

/// Functions for many matrices that tell on the host whether an argument was wrong: none is.
macro_rules! none_is_wrong {
    ($([$($name:ident)*] $args:tt;)*) => {$($(none_is_wrong! { @one $name $args })*)*};
    (@one $name:ident ($($arg:ident: $kind:ty),*)) => {
        entry! {
            /// Nothing is computed, and no argument is wrong.
            fn $name(handle: u64, $($arg: $kind,)* wrong: *mut c_int) |state| {
                state.captures.add_node(get(state, handle, STREAM));
                // SAFETY: the caller's promise.
                unsafe { put(wrong, 0) }
            }
        }
    };
}

none_is_wrong! {
    [cublasSgeqrfBatched cublasDgeqrfBatched cublasCgeqrfBatched cublasZgeqrfBatched]
    (_m: c_int, _n: c_int, _a: *const c_void, _lda: c_int, _tau: *const c_void);

    [cublasSgetrsBatched cublasDgetrsBatched cublasCgetrsBatched cublasZgetrsBatched]
    (_trans: c_int, _n: c_int, _right_hands: c_int, _a: *const c_void, _lda: c_int, _pivots: *const c_void,
     _b: *const c_void, _ldb: c_int);

    [cublasSgelsBatched cublasDgelsBatched cublasCgelsBatched cublasZgelsBatched]
    (_trans: c_int, _m: c_int, _n: c_int, _right_hands: c_int, _a: *const c_void, _lda: c_int, _c: *const c_void,
     _ldc: c_int);
}

/// No status is in words here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cublasGetStatusString(_status: c_int) -> *const c_char {
    c"a status of the fake cuBLAS".as_ptr()
}

/// No status has a name here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cublasGetStatusName(_status: c_int) -> *const c_char {
    c"CUBLAS_STATUS_FAKE".as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_matrices_have_no_wrong_argument() {
        let (mut wrong, null) = (7, std::ptr::null());
        // SAFETY: what is written lives here.
        let status = unsafe { cublasSgeqrfBatched(1, 2, 2, null, 2, null, &raw mut wrong) };
        assert_eq!((status, wrong), (0, 0));
    }
}
