//! Pools as modules.

use super::module::{Module, Visitor};
use crate::error::Result;
use crate::ops::{Pair, PoolOptions};
use crate::tensor::Tensor;

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident($options:ty), $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name($options);

        impl $name {
            /// As the tensor's method of this name takes it.
            #[must_use]
            pub fn new(options: impl Into<$options>) -> Self {
                Self(options.into())
            }
        }

        impl Module for $name {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.$method(self.0)
            }

            fn visit(&self, _: &mut Visitor<'_>) {}
        }
    )*};
}

pools! {
    /// The largest that each window sees.
    ///
    /// ```
    /// use tonnage_tensor::nn::{MaxPool2d, Module};
    /// use tonnage_tensor::{Device, PoolOptions, Tensor};
    ///
    /// let x = Tensor::zeros([8, 64, 112, 112], &Device::dry("1 GiB")?)?;
    /// let pool = MaxPool2d::new(PoolOptions::new(3).stride(2).padding(1));
    /// assert_eq!(pool.forward(&x)?.shape()[..], [8, 64, 56, 56]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    MaxPool2d(PoolOptions), max_pool2d;
    /// The mean of what each window sees.
    AvgPool2d(PoolOptions), avg_pool2d;
    /// Means over windows of about one size, so that there are as many as asked for: `1` is the mean
    /// of the whole image.
    AdaptiveAvgPool2d(Pair), adaptive_avg_pool2d;
}
