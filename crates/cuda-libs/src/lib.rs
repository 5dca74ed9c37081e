//! NVIDIA's compiler and libraries, found where people have them and loaded at run time.
//!
//! Nothing is linked against CUDA and no header of NVIDIA's is needed: the functions that are called are declared here.
//! A machine without a library gets one sentence that says which, for what, and where it was looked for.
//!
//! | module | library | what for |
//! | --- | --- | --- |
//! | [`find`] | | where libraries lie: toolkit, Python environments, `LD_LIBRARY_PATH` |
//! | [`nvrtc`] | `libnvrtc` | kernels compiled at run time, with the [`prelude`] instead of headers |
//! | [`cache`] | | compiled kernels on disk, bounded |
//! | [`kernels`] | | kernels by name on one device: compiled, cached, loaded |
//! | [`blas`] | `libcublasLt` | matrix products with bias, GELU, ReLU and their gradients |
//! | [`dnn`] | `libcudnn` | convolutions and their gradients |
//! | [`nvml`] | `libnvidia-ml` | which processes hold how much |
//! | [`versions`] | | which libraries are here |
//! | [`check`] | | every kernel compiled for every architecture, for tests |
//!
//! Memory is the caller's: workspaces have a size by rule, and are handed in.

// Foreign calls live in the modules that say so.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "cuBLASLt is a C library")]
pub mod blas;

pub mod cache;

pub mod check;

#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub mod dnn;

mod error;

mod table;

#[allow(unsafe_code, reason = "opening a library runs its initialisers")]
pub mod find;

#[allow(unsafe_code, reason = "compiled images are loaded")]
pub mod kernels;

#[allow(unsafe_code, reason = "NVRTC is a C library")]
pub mod nvrtc;

#[allow(unsafe_code, reason = "NVML is a C library")]
pub mod nvml;

pub mod prelude;

#[allow(unsafe_code, reason = "libraries are asked for their versions")]
pub mod versions;

/// Shapes that a library's choices are kept for: those used last.
const PLANS: std::num::NonZeroUsize = std::num::NonZeroUsize::new(4096).expect("not zero");

pub use error::{Error, Result};
pub use kernels::{KernelSource, Kernels};
pub use nvrtc::{Architecture, Compiler};
