//! Functions without behaviour. Whoever calls one that only computes is told that it worked: nothing computes here. One
//! that answers something is noted by name, so that what a figure rests on can be told; one that answers a size fails,
//! since a size that is not there would be taken for one.

use std::ffi::{CStr, c_char, c_int};

use tonnage_cuda_codes::Code;

use crate::notes;

/// Whether a function answers a size, by its name.
fn answers_size(name: &str) -> bool {
    name.contains("bufferSize") || name.contains("WorkspaceSize") || name.ends_with("SpaceSize")
}

/// Whether a function answers something, by its name.
fn answers(name: &str) -> bool {
    ["Get", "Create", "Query", "Alloc", "Size", "Export", "Import"]
        .iter()
        .any(|word| name.contains(word))
}

/// The code of a call of a function without behaviour.
pub(crate) fn called(name: &str) -> c_int {
    if answers_size(name) {
        notes::note(notes::UNKNOWN_FILE, &format!("{name}: refused, since its answer is a size"));
        return Code::NOT_SUPPORTED.0;
    }
    if answers(name) {
        notes::note(notes::UNKNOWN_FILE, name);
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
    use super::*;

    #[test]
    fn what_only_computes_works_and_sizes_are_refused() {
        assert_eq!(called("cublasSgemm_v2"), 0);
        assert_eq!(called("cusparseCreateConstCsr"), 0);
        assert_eq!(called("cusolverDnXgeqrf_bufferSize"), Code::NOT_SUPPORTED.0);
        assert_eq!(called("cudnnGetRNNWeightSpaceSize"), Code::NOT_SUPPORTED.0);
        assert_eq!(cudaIpcOpenMemHandle(), Code::NOT_SUPPORTED.0);
        // SAFETY: null is refused.
        assert_eq!(unsafe { tonnage_fake_unknown(std::ptr::null()) }, Code::INVALID_VALUE.0);
    }
}
