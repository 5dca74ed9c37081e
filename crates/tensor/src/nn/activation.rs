//! Functions of single elements as modules.

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
    /// `x · sigmoid(x)`.
    Silu, silu;
    /// `1 / (1 + exp(-x))`.
    Sigmoid, sigmoid;
    /// The hyperbolic tangent.
    Tanh, tanh;
}
