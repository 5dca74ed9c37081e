//! One layer of a transformer's encoder as a module.

use super::attention::MultiheadAttention;
use super::dropout::Dropout;
use super::linear::Linear;
use super::module::{Module, Visitor};
use super::norm::LayerNorm;
use crate::create::TensorOptions;
use crate::error::Result;
use crate::tensor::Tensor;

/// Attention, then two linear layers, each with a way around it and a norm: PyTorch's module of this
/// name, for inputs `[batch, rows, width]`.
///
/// ```
/// use tonnage_tensor::nn::{Module, TransformerEncoderLayer};
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::host("64 MiB")?;
/// let layer = TransformerEncoderLayer::new(32, 4, 128, &device)?;
/// let x = Tensor::randn([2, 10, 32], &device)?;
/// assert_eq!(layer.forward(&x)?.shape(), x.shape());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerEncoderLayer {
    self_attn: MultiheadAttention,
    linear1: Linear,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    dropout: Dropout,
    norm_first: bool,
}

impl TransformerEncoderLayer {
    /// Of this width, in so many heads, with so many numbers between the linear layers. Dropout is a
    /// tenth, norms come last, the function between is `relu`.
    ///
    /// # Errors
    ///
    /// If the width cannot be split into the heads, or if there is no memory.
    #[track_caller]
    pub fn new<'a>(
        width: usize,
        heads: usize,
        between: usize,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let options = options.into();
        Ok(Self {
            self_attn: MultiheadAttention::new(width, heads, options)?,
            linear1: Linear::new(width, between, options)?,
            linear2: Linear::new(between, width, options)?,
            norm1: LayerNorm::new(width, options)?,
            norm2: LayerNorm::new(width, options)?,
            dropout: Dropout::new(0.1),
            norm_first: false,
        })
    }

    /// With another probability of dropout.
    #[must_use]
    pub fn dropout(mut self, p: f64) -> Self {
        self.dropout = Dropout::new(p);
        self
    }

    /// Norms come before what they belong to, or after.
    #[must_use]
    pub fn norm_first(mut self, on: bool) -> Self {
        self.norm_first = on;
        self
    }

    #[track_caller]
    fn attended(&self, x: &Tensor) -> Result<Tensor> {
        self.dropout.forward(&self.self_attn.forward(x)?)
    }

    #[track_caller]
    fn fed(&self, x: &Tensor) -> Result<Tensor> {
        let between = self.dropout.forward(&self.linear1.forward(x)?.relu()?)?;
        self.dropout.forward(&self.linear2.forward(&between)?)
    }
}

impl Module for TransformerEncoderLayer {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        if self.norm_first {
            let x = input.add(&self.attended(&self.norm1.forward(input)?)?)?;
            return x.add(&self.fed(&self.norm2.forward(&x)?)?);
        }
        let x = self.norm1.forward(&input.add(&self.attended(input)?)?)?;
        self.norm2.forward(&x.add(&self.fed(&x)?)?)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module("self_attn", &self.self_attn);
        visitor.module("linear1", &self.linear1);
        visitor.module("linear2", &self.linear2);
        visitor.module("norm1", &self.norm1);
        visitor.module("norm2", &self.norm2);
        visitor.module("dropout", &self.dropout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::conformance;

    #[test]
    fn norms_come_where_they_are_asked_for() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let layer = TransformerEncoderLayer::new(8, 2, 16, &device)?.dropout(0.0);
        let x = Tensor::randn([2, 5, 8], &device)?.mul(10.0)?;
        let deviation = |y: &Tensor| y.std_dim(&[2], 0.0, false)?.mean()?.item::<f32>();
        let last = layer.forward(&x)?;
        assert!((deviation(&last)? - 1.0).abs() < 1e-3);
        let first = layer.clone().norm_first(true).forward(&x)?;
        assert!(deviation(&first)? > 2.0);
        assert_eq!(layer.named_parameters()[4].0, "linear1.weight");
        Ok(())
    }

    conformance!(encoder_layers, |device| {
        let layer = TransformerEncoderLayer::new(32, 4, 64, device)?;
        let y = layer.forward(&Tensor::ones([2, 10, 32], device)?)?;
        y.sum()?.backward()?;
        Ok(vec![y, layer.parameters()[0].grad().unwrap()])
    });
}
