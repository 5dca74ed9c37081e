//! Names that must be there and have no behaviour yet. Whoever calls one is refused, and told which.

use std::ffi::{CStr, c_int, c_void};

use crate::codes::Code;

macro_rules! absent {
    ($($name:ident)*) => {
        $(
            /// Refuses, and says so.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the runtime's name")]
            extern "C" fn $name() -> c_int {
                refuse(stringify!($name))
            }
        )*

        /// Every name of the runtime without behaviour.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

// What libc10_cuda of 2.8 to 2.15 imports beyond what has behaviour.
absent! {
    cudaDeviceGetDefaultMemPool cudaFreeAsync cudaGraphAddEmptyNode cudaGraphNodeGetDependencies
    cudaGraphNodeGetDependencies_v2 cudaGraphNodeGetType cudaHostAlloc cudaIpcCloseMemHandle
    cudaIpcGetMemHandle cudaIpcOpenMemHandle cudaMallocAsync cudaMallocManaged cudaMemPoolGetAttribute
    cudaMemPoolSetAccess cudaMemPoolSetAttribute cudaMemPoolTrimTo cudaMemcpy cudaMemcpyAsync
    cudaMemcpyPeerAsync cudaPointerGetAttributes cudaStreamUpdateCaptureDependencies
}

fn refuse(name: &str) -> c_int {
    eprintln!("the fake CUDA runtime has no {name}: it was called, and refused");
    Code::NOT_SUPPORTED.0
}

/// The function that stands for every name of the driver without behaviour.
pub(crate) fn function(name: &CStr) -> *const c_void {
    if std::env::var_os("TONNAGE_FAKE_CUDA_TRACE").is_some() {
        eprintln!("the fake CUDA driver has no {}: it was looked up", name.to_string_lossy());
    }
    unknown as *const c_void
}

extern "C" fn unknown() -> c_int {
    eprintln!(
        "a function that the fake CUDA driver does not have was called, and refused: with \
         TONNAGE_FAKE_CUDA_TRACE=1 those that are looked up are named"
    );
    Code::NOT_SUPPORTED.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_behaviour_are_refused() {
        assert_eq!(cudaMemcpyAsync(), Code::NOT_SUPPORTED.0);
        assert!(NAMES.is_sorted());
    }
}
