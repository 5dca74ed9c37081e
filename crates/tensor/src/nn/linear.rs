//! The linear layer as a module.

use super::init::{fan_in_bound, kaiming_uniform_, uniform_};
use super::module::{Module, Visitor};
use crate::create::TensorOptions;
use crate::error::Result;
use crate::tensor::Tensor;

/// `x · weightᵀ + bias` over the last axis.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

/// How a [`Linear`] is made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LinearOptions {
    /// Whether it adds a bias.
    pub bias: bool,
}

impl Default for LinearOptions {
    fn default() -> Self {
        Self { bias: true }
    }
}

impl LinearOptions {
    /// Adds a bias, or not.
    #[must_use]
    pub fn bias(mut self, on: bool) -> Self {
        self.bias = on;
        self
    }
}

impl Linear {
    /// From `input` numbers to `output` numbers, with PyTorch's first values.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn new<'a>(
        input: usize,
        output: usize,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        Self::with(input, output, LinearOptions::default(), options)
    }

    /// The same with options of the layer.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn with<'a>(
        input: usize,
        output: usize,
        layer: LinearOptions,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let options = options.into();
        let weight = Tensor::empty([output, input], options)?.requires_grad_(true)?;
        let bias = match layer.bias {
            true => Some(Tensor::empty([output], options)?.requires_grad_(true)?),
            false => None,
        };
        kaiming_uniform_(&weight, input)?;
        if let Some(bias) = &bias {
            let bound = fan_in_bound(input);
            uniform_(bias, -bound, bound)?;
        }
        Ok(Self { weight, bias })
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.linear(&self.weight, self.bias.as_ref())
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.parameter("bias", bias);
        }
    }
}
