//! cuBLASLt: descriptors, and one algorithm for everything.

use std::ffi::c_int;

use super::{entry, handles};
use crate::state::put;

/// The release that is told.
const VERSION: usize = 130_100;

/// The runtime's release that it was built with.
const RUNTIME: usize = 13000;

/// The workspace that the one algorithm is told to need. PyTorch does not look at it; cuDNN asks for it for convolutions
/// that are products, of which most need none on an H200 (`cudnn/workspaces/matmuls.rs` has those that were measured).
const WORKSPACE: usize = 0;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

handles! {
    cublasLtCreate cublasLtMatmulDescCreate cublasLtMatmulPreferenceCreate cublasLtMatrixLayoutCreate
    cublasLtMatrixTransformDescCreate
}

entry! {
    /// One algorithm.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: u64,
        _operation: u64,
        _a: u64,
        _b: u64,
        _c: u64,
        _d: u64,
        _preference: u64,
        room: c_int,
        results: *mut Heuristic,
        count: *mut c_int,
    ) |_| {
        if room < 1 {
            // SAFETY: the caller's promise.
            return unsafe { put(count, 0) };
        }
        let result = Heuristic {
            algorithm: [0; 8],
            workspace: WORKSPACE,
            status: 0,
            waves: 1.0,
            reserved: [0; 4],
        };
        // SAFETY: the caller's promise: there is room for one.
        unsafe { put(results, result) }?;
        // SAFETY: the caller's promise.
        unsafe { put(count, 1) }
    }
}

/// The release.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}

/// The runtime's release.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cublasLtGetCudartVersion() -> usize {
    RUNTIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_the_librarys_size() {
        assert_eq!(size_of::<Heuristic>(), 96);
    }
}
