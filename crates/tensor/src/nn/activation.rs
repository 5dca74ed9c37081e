//! Functions of single elements, and other shapes of the same elements, as modules.

use super::module::{Module, Visitor};
use crate::error::Result;
use crate::tensor::Tensor;

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident, $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Module for $name {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.$method()
            }

            fn visit(&self, _: &mut Visitor<'_>) {}
        }
    )*};
}

activations! {
    /// The larger of the number and zero.
    Relu, relu;
    /// `x · Φ(x)`, with the normal distribution's Φ.
    Gelu, gelu;
    /// [`Gelu`], approximated with a hyperbolic tangent as GPT-2 does: PyTorch's
    /// `GELU(approximate="tanh")`.
    GeluTanh, gelu_tanh;
    /// `x · sigmoid(x)`.
    Silu, silu;
    /// `1 / (1 + exp(-x))`.
    Sigmoid, sigmoid;
    /// The hyperbolic tangent.
    Tanh, tanh;
}

/// Axes as one: from the second to the last, unless told otherwise.
///
/// ```
/// use tonnage_tensor::nn::{Flatten, Module};
/// use tonnage_tensor::{Device, Tensor};
///
/// let x = Tensor::zeros([8, 3, 4, 4], &Device::dry("64 MiB")?)?;
/// assert_eq!(Flatten::default().forward(&x)?.shape()[..], [8, 48]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Flatten {
    /// The first of the axes.
    pub first: isize,
    /// The last of them; counted from the end if negative.
    pub last: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Self { first: 1, last: -1 }
    }
}

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(self.first, self.last)
    }

    fn visit(&self, _: &mut Visitor<'_>) {}
}
