//! Functions without behaviour. Whoever calls one that only computes is told that it worked: nothing computes here. One
//! that answers something, or copies something that may be looked at, is noted by name, so that what a figure rests on can be
//! told; one that answers a size or gives memory fails, since what is not there would be taken for it.

use std::ffi::{CStr, c_char, c_int};

use tonnage_cuda_codes::Code;

use crate::state::with_state;
use crate::{cupti, launches, notes};

/// Whether a function answers a size, by its name.
fn answers_size(name: &str) -> bool {
    name.contains("bufferSize") || name.contains("WorkspaceSize") || name.ends_with("SpaceSize")
}

/// Whether a function gives memory, by its name.
fn gives_memory(name: &str) -> bool {
    name.contains("Malloc") || (name.contains("Alloc") && !name.contains("Allocation"))
}

/// Whether a function answers something, by its name.
fn answers(name: &str) -> bool {
    ["Get", "Create", "Query", "Allocation", "Size", "Export", "Import", "Memcpy"]
        .iter()
        .any(|word| name.contains(word))
}

/// Whether a function may start work on a stream, by its name: one that answers something does not, unless it copies.
fn works(name: &str) -> bool {
    !answers(name) || name.contains("Memcpy")
}

/// The code of a call of a function without behaviour.
pub(crate) fn called(name: &str) -> c_int {
    if cupti::is_it(name) {
        return cupti::NOT_INITIALIZED;
    }
    if answers_size(name) {
        notes::note(notes::UNKNOWN_FILE, &format!("{name}: refused, since its answer is a size"));
        return Code::NOT_SUPPORTED.0;
    }
    if gives_memory(name) {
        notes::note(notes::UNKNOWN_FILE, &format!("{name}: refused, since it gives memory"));
        return Code::NOT_SUPPORTED.0;
    }
    if name.contains("Launch") {
        launches::by_others();
    }
    if answers(name) {
        notes::note(notes::UNKNOWN_FILE, name);
    }
    if works(name) {
        // On which stream is not known here. Without a state nothing is captured.
        let _ = with_state(|state| state.captures.add_node_everywhere());
    }
    0
}

/// What every name without behaviour calls, of whatever library.
///
/// # Safety
///
/// `name` is null or ends in a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn tonnage_fake_unknown(name: *const c_char) -> c_int {
    if name.is_null() {
        return Code::INVALID_VALUE.0;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    called(&name.to_string_lossy())
}

/// Names that libraries of PyTorch import, and that have no behaviour.
macro_rules! unknown {
    ($($name:ident)*) => {$(
        /// Refused, and noted.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the runtime's name")]
        extern "C" fn $name() -> c_int {
            notes::note(notes::UNKNOWN_FILE, stringify!($name));
            Code::NOT_SUPPORTED.0
        }
    )*};
}

// Memory that processes share, and graphs that are changed.
unknown! {
    cudaGraphAddEmptyNode cudaGraphNodeGetDependencies_v2 cudaGraphNodeGetType cudaIpcCloseMemHandle
    cudaIpcGetEventHandle cudaIpcGetMemHandle cudaIpcOpenEventHandle cudaIpcOpenMemHandle
    cudaStreamUpdateCaptureDependencies
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use super::*;
    use crate::captures::ALONE;

    #[test]
    fn what_only_computes_works_and_sizes_are_refused() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(called("cublasSgemm_v2"), 0);
        assert_eq!(called("cusparseCreateConstCsr"), 0);
        assert_eq!(called("cusolverDnXgeqrf_bufferSize"), Code::NOT_SUPPORTED.0);
        assert_eq!(called("cudnnGetRNNWeightSpaceSize"), Code::NOT_SUPPORTED.0);
        for name in
            ["cudaMalloc3D", "cuMemAllocPitch_v2", "cudaMallocFromPoolAsync", "ncclMemAlloc"]
        {
            assert_eq!(called(name), Code::NOT_SUPPORTED.0, "{name}");
        }
        assert_eq!(called("cuMemRetainAllocationHandle"), 0);
        assert_eq!(called("cuptiSubscribe"), cupti::NOT_INITIALIZED);
        assert!(answers("cuMemcpyDtoH_v2") && answers("cudaMemcpyFromSymbol"));
        assert!(works("cublasSgemm_v2") && works("ncclSend") && works("cudaMemcpy3DAsync"));
        assert!(!works("cusparseCreateConstCsr"));
        assert_eq!(cudaIpcOpenMemHandle(), Code::NOT_SUPPORTED.0);
        // SAFETY: null is refused.
        assert_eq!(unsafe { tonnage_fake_unknown(std::ptr::null()) }, Code::INVALID_VALUE.0);
    }
}
