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
/// With 64 MiB for every convolution, a step of ResNet-50 (32 images, bf16) took 30 ms on an H200, 16 of them for one
/// gradient whose tensors have 73 MiB; with this, 12 ms.
#[must_use]
pub const fn workspace(tensors: u64) -> u64 {
    /// Chosen: what is larger has more to lose by running out of memory than by an engine that turns nothing.
    const MOST: u64 = 512 << 20;
    (if tensors < MOST { tensors } else { MOST }) + (16 << 20)
}
