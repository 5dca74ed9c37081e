//! Dropout as a module: it drops while its model trains.

use super::module::{Module, Training, Visitor};
use crate::error::Result;
use crate::tensor::Tensor;

/// Zeros with probability `p` while training; otherwise what goes in.
///
/// ```
/// use tonnage_tensor::nn::{Dropout, Module};
/// use tonnage_tensor::{Device, Tensor};
///
/// let x = Tensor::ones([1000], &Device::host("64 MiB")?)?;
/// let dropout = Dropout::new(0.5);
/// assert!(dropout.forward(&x)?.to_vec::<f32>()?.contains(&0.0));
/// dropout.eval();
/// assert!(!dropout.forward(&x)?.to_vec::<f32>()?.contains(&0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    p: f64,
    training: Training,
}

impl Dropout {
    /// With this probability. What is none is refused by the first forward.
    #[must_use]
    pub fn new(p: f64) -> Self {
        Self { p, training: Training::default() }
    }
}

impl Default for Dropout {
    /// One half.
    fn default() -> Self {
        Self::new(0.5)
    }
}

impl Module for Dropout {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.dropout(self.p, self.training.get())
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.training(&self.training);
    }
}
