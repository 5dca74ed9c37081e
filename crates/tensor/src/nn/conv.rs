//! The convolution as a module.

use super::init::{fan_in_bound, uniform_};
use super::module::{Module, Visitor};
use crate::create::TensorOptions;
use crate::error::{Call, ErrorKind, Result};
use crate::ops::{ConvOptions, Pair};
use crate::tensor::Tensor;

/// A convolution over images `[image, channel, height, width]`.
///
/// ```
/// use tonnage_tensor::nn::{Conv2d, Conv2dOptions, Module};
/// use tonnage_tensor::{ConvOptions, Device, Tensor};
///
/// let device = Device::dry("1 GiB")?;
/// let window = ConvOptions::default().stride(2).padding(3);
/// let first = Conv2d::with(3, 64, 7, Conv2dOptions::from(window).bias(false), &device)?;
/// let images = Tensor::zeros([8, 3, 224, 224], &device)?;
/// assert_eq!(first.forward(&images)?.shape()[..], [8, 64, 112, 112]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// `[out, in of a group, height, width]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    window: ConvOptions,
}

/// How a [`Conv2d`] is made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Conv2dOptions {
    /// How its window moves.
    pub window: ConvOptions,
    /// Whether it adds a bias.
    pub bias: bool,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        ConvOptions::default().into()
    }
}

impl From<ConvOptions> for Conv2dOptions {
    fn from(window: ConvOptions) -> Self {
        Self { window, bias: true }
    }
}

impl Conv2dOptions {
    /// Adds a bias, or not.
    #[must_use]
    pub fn bias(mut self, on: bool) -> Self {
        self.bias = on;
        self
    }
}

impl Conv2d {
    /// From `input` channels to `output` channels with a window of this size, and PyTorch's first
    /// values.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn new<'a>(
        input: usize,
        output: usize,
        kernel: impl Into<Pair>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        Self::with(input, output, kernel, ConvOptions::default(), options)
    }

    /// The same with options of the layer.
    ///
    /// # Errors
    ///
    /// If the channels cannot be split into the groups, or if there is no memory.
    #[track_caller]
    pub fn with<'a>(
        input: usize,
        output: usize,
        kernel: impl Into<Pair>,
        layer: impl Into<Conv2dOptions>,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let (Conv2dOptions { window, bias }, options) = (layer.into(), options.into());
        let (groups, [height, width]) = (window.groups, kernel.into().0);
        if groups == 0 || !input.is_multiple_of(groups) || !output.is_multiple_of(groups) {
            let what = format!("{input} channels in and {output} out are not {groups} groups");
            return Err(Call::here("Conv2d").error(ErrorKind::Value, what));
        }
        let shape = [output, input / groups, height, width];
        let weight = Tensor::empty(shape, options)?.requires_grad_(true)?;
        let bias = bias.then(|| Tensor::empty([output], options)?.requires_grad_(true));
        let bias = bias.transpose()?;
        let bound = fan_in_bound(shape[1..].iter().product());
        for tensor in [Some(&weight), bias.as_ref()].into_iter().flatten() {
            uniform_(tensor, -bound, bound)?;
        }
        Ok(Self { weight, bias, window })
    }
}

impl Module for Conv2d {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.conv2d(&self.weight, self.bias.as_ref(), self.window)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.parameter("bias", bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn first_values_lie_within_what_a_place_sees() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let layer = Conv2d::with(8, 16, [3, 1], ConvOptions::default().groups(2), &device)?;
        assert_eq!(layer.weight.shape()[..], [16, 4, 3, 1]);
        let bound = 1.0 / 12f32.sqrt();
        for numbers in [layer.weight.to_vec::<f32>()?, layer.bias.clone().unwrap().to_vec()?] {
            let largest = numbers.iter().fold(0.0f32, |most, it| most.max(it.abs()));
            assert!(largest <= bound && largest > 0.8 * bound, "{largest} of {bound}");
        }
        let odd = Conv2d::with(8, 15, 3, ConvOptions::default().groups(2), &device);
        assert!(odd.unwrap_err().to_string().contains("8 channels in and 15 out"));
        Ok(())
    }
}
