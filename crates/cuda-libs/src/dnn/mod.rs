//! cuDNN: convolutions.
//!
//! In:  a [`Convolution`] (plain data), addresses, and a workspace whose size the caller has chosen by rule
//!      ([`workspace`]).
//! Out: the convolution, or a gradient of it, queued on a stream.
//!
//! The plan of a shape is the first that the library's heuristics name, of those that fit the workspace and keep what was
//! asked (no TF32, deterministic). It is chosen once and kept; no measurement decides, and no plan changes how much memory
//! is used, since the whole workspace is the caller's in any case.

// What is asked for.
mod convolution;

// C types, and the table of functions.
mod sys;

// The library's descriptors.
mod descriptor;

// The plan of a shape.
mod plan;

// The library on one device.
mod handle;

pub use convolution::{Convolution, Layout4, Pass};
pub use handle::{Dnn, Operands};

use crate::find::Wanted;

/// Who convolves.
pub const CUDNN: Wanted = Wanted {
    name: "cuDNN",
    purpose: "computes convolutions on a CUDA device",
    files: &[("libcudnn.so.9", 0)],
    companions: &[],
    package: "nvidia-cudnn-cu13",
};

/// Bytes of workspace for a convolution whose three tensors have so many bytes together: room to turn each of them, as
/// engines for tensor cores do, and for parts of sums. A rule, so that memory can be predicted without a device.
///
/// With 64 MiB for all, an input's gradient of 73 MiB in ResNet-50 took 16 ms on an H200 instead of a tenth.
#[must_use]
pub const fn workspace(tensors: u64) -> u64 {
    tensors.saturating_add(16 << 20)
}
