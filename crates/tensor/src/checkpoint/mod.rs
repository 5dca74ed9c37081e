//! Checkpointing: what the forward would keep is dropped, and computed again when the backward
//! needs it.
//!
//! ```
//! use tonnage_tensor::checkpoint::checkpoint;
//! use tonnage_tensor::nn::{Linear, Module};
//! use tonnage_tensor::{Device, Tensor};
//!
//! let device = Device::host("64 MiB")?;
//! let layer = Linear::new(8, 8, &device)?;
//! let x = Tensor::randn([4, 8], &device)?;
//! let again = layer.clone();
//! let y = checkpoint(&[&x], move |x| again.forward(&x[0])?.relu())?;
//! y.sum()?.backward()?;
//! assert!(layer.weight.grad().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The meaning is that of PyTorch's non-reentrant form: the graph is recorded once, in the first run;
//! only values are recomputed, all of a segment when its first is needed. The random numbers and
//! autocast are those of the first run; recomputation stops when it has all values; segments nest.

mod frame;

mod placement;

pub use placement::{Placement, Segments};

use crate::autograd::is_grad_enabled;
use crate::error::{Call, Result};
use crate::nn::{Module, Sequential};
use crate::tensor::Tensor;

/// How a segment is recomputed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckpointOptions {
    /// Draw the random numbers of the first run again.
    pub preserve_rng: bool,
    /// Stop as soon as every value is there.
    pub early_stop: bool,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self { preserve_rng: true, early_stop: true }
    }
}

impl CheckpointOptions {
    /// Draws the random numbers of the first run again, or goes on with new ones.
    #[must_use]
    pub fn preserve_rng(mut self, on: bool) -> Self {
        self.preserve_rng = on;
        self
    }

    /// Stops as soon as every value is there, or runs to the end.
    #[must_use]
    pub fn early_stop(mut self, on: bool) -> Self {
        self.early_stop = on;
        self
    }
}

/// Runs `segment` on `inputs`, and again in the backward, instead of keeping what it saves.
///
/// What else it needs it captures: tensors and modules are handles, so a clone costs nothing. It must
/// do the same each time, and pass errors on: recomputation ends by one.
///
/// # Errors
///
/// Those of `segment`. The backward fails if the second run saves something else than the first, or
/// if an input was overwritten meanwhile.
#[track_caller]
pub fn checkpoint<T>(
    inputs: &[&Tensor],
    segment: impl Fn(&[Tensor]) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    checkpoint_with(CheckpointOptions::default(), inputs, segment)
}

/// The same with options.
///
/// # Errors
///
/// As for [`checkpoint`].
#[track_caller]
pub fn checkpoint_with<T>(
    options: CheckpointOptions,
    inputs: &[&Tensor],
    segment: impl Fn(&[Tensor]) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let call = Call::here("checkpoint");
    let handles: Vec<Tensor> = inputs.iter().map(|input| (*input).clone()).collect();
    if !is_grad_enabled() {
        return segment(&handles);
    }
    frame::run(call, options, &handles, segment)
}

/// Runs modules one after the other in this many checkpointed segments, the last of which is kept:
/// PyTorch's function of this name.
///
/// # Errors
///
/// Those of the modules.
#[track_caller]
pub fn checkpoint_sequential(
    modules: &Sequential,
    segments: usize,
    input: &Tensor,
) -> Result<Tensor> {
    modules.clone().checkpointed(Placement::Segments(segments)).forward(input)
}
