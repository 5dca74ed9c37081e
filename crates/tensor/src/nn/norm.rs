//! Norms as modules: of rows, of groups of channels, of channels over a batch.

use super::module::{Module, Training, Visitor};
use crate::create::TensorOptions;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::BatchNormOptions;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How a norm is made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NormOptions {
    /// What is added to the variance.
    pub eps: f64,
    /// Whether it multiplies with a weight.
    pub weight: bool,
    /// Whether it adds a bias.
    pub bias: bool,
}

impl Default for NormOptions {
    fn default() -> Self {
        Self { eps: 1e-5, weight: true, bias: true }
    }
}

impl NormOptions {
    /// Adds this to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Multiplies with a weight and adds a bias, or neither.
    #[must_use]
    pub fn affine(mut self, on: bool) -> Self {
        (self.weight, self.bias) = (on, on);
        self
    }

    /// Adds a bias, or not.
    #[must_use]
    pub fn bias(mut self, on: bool) -> Self {
        self.bias = on;
        self
    }
}

/// Weight and bias of a norm: ones and zeros at first.
#[derive(Clone, Debug)]
struct Affine {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Affine {
    #[track_caller]
    fn new(shape: &Shape, layer: NormOptions, options: TensorOptions<'_>) -> Result<Self> {
        let weight = layer.weight.then(|| Tensor::ones(shape, options)?.requires_grad_(true));
        let weight = weight.transpose()?;
        let bias = layer.bias.then(|| Tensor::zeros(shape, options)?.requires_grad_(true));
        Ok(Self { weight, bias: bias.transpose()? })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (name, tensor) in [("weight", &self.weight), ("bias", &self.bias)] {
            if let Some(tensor) = tensor {
                visitor.parameter(name, tensor);
            }
        }
    }
}

/// Norms of rows: how they are made and what they are made of.
macro_rules! row_norms {
    ($($(#[$doc:meta])* $name:ident, $first:expr, |$layer:ident| $adjusted:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            shape: Shape,
            eps: f64,
            affine: Affine,
        }

        impl $name {
            /// Of rows with this shape: the last axes, usually one.
            ///
            /// # Errors
            ///
            /// If there is no memory.
            #[track_caller]
            pub fn new<'a>(
                shape: impl Into<Shape>,
                options: impl Into<TensorOptions<'a>>,
            ) -> Result<Self> {
                Self::with(shape, $first, options)
            }

            /// The same with options of the layer.
            ///
            /// # Errors
            ///
            /// If there is no memory.
            #[track_caller]
            pub fn with<'a>(
                shape: impl Into<Shape>,
                $layer: NormOptions,
                options: impl Into<TensorOptions<'a>>,
            ) -> Result<Self> {
                let shape = shape.into();
                let affine = Affine::new(&shape, $adjusted, options.into())?;
                Ok(Self { shape, eps: $layer.eps, affine })
            }

            /// The weight, if it has one.
            #[must_use]
            pub fn weight(&self) -> Option<&Tensor> {
                self.affine.weight.as_ref()
            }

            /// The bias, if it has one.
            #[must_use]
            pub fn bias(&self) -> Option<&Tensor> {
                self.affine.bias.as_ref()
            }
        }
    )*};
}

row_norms! {
    /// Rows to mean 0 and variance 1, then multiplied with a weight and shifted by a bias.
    ///
    /// ```
    /// use tonnage_tensor::nn::{LayerNorm, Module};
    /// use tonnage_tensor::{Device, Tensor};
    ///
    /// let device = Device::host("64 MiB")?;
    /// let norm = LayerNorm::new(64, &device)?;
    /// let y = norm.forward(&Tensor::randn([8, 64], &device)?)?;
    /// assert!(y.mean()?.item::<f32>()?.abs() < 1e-5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    LayerNorm, NormOptions::default(), |layer| layer;
    /// Rows to a mean square of 1, then multiplied with a weight. What is added to the mean square is
    /// PyTorch's: the smallest step of the numbers in which it is computed.
    RmsNorm, NormOptions::default().eps(f32::EPSILON.into()), |layer| layer.bias(false);
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.layer_norm(&self.shape, self.weight(), self.bias(), self.eps)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.affine.visit(visitor);
    }
}

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.rms_norm(&self.shape, self.weight(), self.eps)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.affine.visit(visitor);
    }
}

/// Groups of channels of each image to mean 0 and variance 1, then each channel multiplied with a
/// weight and shifted by a bias.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    groups: usize,
    eps: f64,
    affine: Affine,
}

impl GroupNorm {
    /// Of so many channels in so many groups.
    ///
    /// # Errors
    ///
    /// If there is no memory. Channels that cannot be split are refused by the first forward.
    #[track_caller]
    pub fn new<'a>(
        groups: usize,
        channels: usize,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let layer = NormOptions::default();
        let affine = Affine::new(&channels.into(), layer, options.into())?;
        Ok(Self { groups, eps: layer.eps, affine })
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let Affine { weight, bias } = &self.affine;
        input.group_norm(self.groups, weight.as_ref(), bias.as_ref(), self.eps)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.affine.visit(visitor);
    }
}

/// Channels to mean 0 and variance 1 over a batch, then multiplied with a weight and shifted by a bias.
/// While training it keeps a memory of the batches' statistics, which evaluation uses.
///
/// ```
/// use tonnage_tensor::nn::{BatchNorm2d, Module};
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::host("64 MiB")?;
/// let norm = BatchNorm2d::new(3, &device)?;
/// let x = Tensor::randn([8, 3, 4, 4], &device)?.add(5.0)?;
/// norm.forward(&x)?;
/// let mean = norm.running_mean.to_vec::<f32>()?;
/// assert!(mean.iter().all(|it| (it - 0.5).abs() < 0.1), "a tenth of the way to 5: {mean:?}");
/// norm.eval();
/// norm.forward(&x)?;
/// # assert_eq!(norm.num_batches_tracked.item::<i64>()?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm2d {
    affine: Affine,
    /// Of each channel.
    pub running_mean: Tensor,
    /// Of each channel.
    pub running_var: Tensor,
    /// How many batches it was trained with.
    pub num_batches_tracked: Tensor,
    options: BatchNormOptions,
    training: Training,
}

impl BatchNorm2d {
    /// Of so many channels.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn new<'a>(channels: usize, options: impl Into<TensorOptions<'a>>) -> Result<Self> {
        Self::with(channels, BatchNormOptions::default(), options)
    }

    /// The same with another share of the newest batch, or another number added to the variance.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn with<'a>(
        channels: usize,
        layer: BatchNormOptions,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let options = options.into();
        let affine = Affine::new(&channels.into(), NormOptions::default(), options)?;
        // Statistics of 16-bit numbers are kept in 32.
        let wide = match options.dtype {
            Some(DType::F64) => DType::F64,
            _ => DType::F32,
        };
        let running_mean = Tensor::zeros([channels], (options.device, wide))?;
        let running_var = Tensor::ones([channels], (options.device, wide))?;
        let num_batches_tracked = Tensor::zeros((), (options.device, DType::I64))?;
        let training = Training::default();
        Ok(Self {
            affine,
            running_mean,
            running_var,
            num_batches_tracked,
            options: layer,
            training,
        })
    }

    /// The weight, if it has one.
    #[must_use]
    pub fn weight(&self) -> Option<&Tensor> {
        self.affine.weight.as_ref()
    }
}

impl Module for BatchNorm2d {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let training = self.training.get();
        if training {
            self.num_batches_tracked.add_(1)?;
        }
        let running = Some([&self.running_mean, &self.running_var]);
        let (Affine { weight, bias }, options) = (&self.affine, self.options.training(training));
        input.batch_norm(weight.as_ref(), bias.as_ref(), running, options)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.affine.visit(visitor);
        visitor.buffer("running_mean", &self.running_mean);
        visitor.buffer("running_var", &self.running_var);
        visitor.buffer("num_batches_tracked", &self.num_batches_tracked);
        visitor.training(&self.training);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn names_and_first_values_are_pytorch_s() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let names = |module: &dyn Module| -> Vec<String> {
            module.named_parameters().into_iter().map(|(name, _)| name).collect()
        };
        let layer = LayerNorm::new([2, 3], &device)?;
        assert_eq!(names(&layer), ["weight", "bias"]);
        assert_eq!(layer.weight().unwrap().to_vec::<f32>()?, [1.0; 6]);
        assert_eq!(layer.bias().unwrap().to_vec::<f32>()?, [0.0; 6]);
        assert_eq!(names(&RmsNorm::new(4, &device)?), ["weight"]);
        assert_eq!(names(&GroupNorm::new(2, 4, &device)?), ["weight", "bias"]);
        let plain = LayerNorm::with(4, NormOptions::default().affine(false), &device)?;
        assert!(names(&plain).is_empty());
        Ok(())
    }

    #[test]
    fn a_batch_norm_evaluates_with_what_it_has_seen() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let norm = BatchNorm2d::with(1, BatchNormOptions::default().momentum(1.0), &device)?;
        let x = Tensor::from_slice(&[1.0f32, 3.0, 5.0, 7.0], [1, 1, 2, 2], &device)?;
        norm.forward(&x)?;
        assert_eq!(norm.running_mean.item::<f32>()?, 4.0);
        assert!((norm.running_var.item::<f32>()? - 20.0 / 3.0).abs() < 1e-5);
        norm.eval();
        let y = norm.forward(&Tensor::full([1, 1, 1, 1], 4.0, &device)?)?;
        assert_eq!(y.item::<f32>()?, 0.0);
        assert_eq!(norm.num_batches_tracked.item::<i64>()?, 1);
        Ok(())
    }
}
