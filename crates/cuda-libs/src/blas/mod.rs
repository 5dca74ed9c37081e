//! cuBLASLt: matrix products with what comes right after them.
//!
//! In:  a [`Product`] (plain data), addresses, and a workspace whose size is a rule ([`workspace`]).
//! Out: the product, queued on a stream.
//!
//! Matrices are row by row, as tensors are; the library thinks in columns, so that it is asked for the transposed product.
//! Which algorithm runs is asked once for a shape, within the workspace's bound, and kept: no choice depends on what ran
//! before, and none changes how much memory is used.

// What is asked for.
mod product;

// C types, and the table of functions.
mod sys;

// Descriptors and the algorithm of a shape.
mod plan;

// The library on one device.
mod handle;

pub use handle::{Blas, Operands};
pub use product::{Epilogue, Math, Matrix, Number, Product};

use crate::find::Wanted;
use crate::nvrtc::Architecture;

/// Who multiplies.
pub const CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    purpose: "multiplies matrices on a CUDA device",
    files: &[("libcublasLt.so.13", 13), ("libcublasLt.so.12", 12)],
    companions: &[],
    package: "nvidia-cublas",
};

/// Bytes of workspace that every product on such a device gets: what NVIDIA recommends for the generation. A rule, so that
/// memory can be predicted without a device.
#[must_use]
pub const fn workspace(architecture: Architecture) -> u64 {
    match architecture.major {
        0..=8 => 4 << 20,
        9..=11 => 32 << 20,
        _ => 12 << 20,
    }
}
