//! Modules: layers with named parameters.
//!
//! ```
//! use tonnage_tensor::nn::{Linear, Module, Relu, Sequential};
//! use tonnage_tensor::{Device, Tensor};
//!
//! let device = Device::host("64 MiB")?;
//! let model = Sequential::new()
//!     .then(Linear::new(4, 8, &device)?)
//!     .then(Relu)
//!     .then(Linear::new(8, 2, &device)?);
//! let y = model.forward(&Tensor::randn([3, 4], &device)?)?;
//! assert_eq!(y.shape()[..], [3, 2]);
//! let names: Vec<_> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
//! assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A module is a handle, like the tensors it holds: cloning one gives another to the same
//! parameters, which is what [`checkpoint`](crate::checkpoint::checkpoint) needs to run it again.
//! Names, defaults and first values are PyTorch's, so that files of either fit the other.
//!
//! To add one: a file here with a struct of tensors, its [`Module`] and its test. A module made of
//! others writes its forward and shows them to the visitor; parameters, state and mode follow:
//!
//! ```
//! use tonnage_tensor::nn::{Linear, Module, Visitor};
//! use tonnage_tensor::{Device, Result, Tensor};
//!
//! /// Two layers and a way around them.
//! struct Residual {
//!     inner: Linear,
//!     outer: Linear,
//! }
//!
//! impl Module for Residual {
//!     fn forward(&self, x: &Tensor) -> Result<Tensor> {
//!         self.outer.forward(&self.inner.forward(x)?.relu()?)?.add(x)
//!     }
//!
//!     fn visit(&self, visitor: &mut Visitor<'_>) {
//!         visitor.module("inner", &self.inner);
//!         visitor.module("outer", &self.outer);
//!     }
//! }
//!
//! let device = Device::dry("64 MiB")?;
//! let model =
//!     Residual { inner: Linear::new(4, 8, &device)?, outer: Linear::new(8, 4, &device)? };
//! assert_eq!(model.num_parameters(), 4 * 8 + 8 + 8 * 4 + 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod module;

pub mod init;

mod activation;

mod attention;

mod conv;

mod dropout;

mod embedding;

mod linear;

mod norm;

mod pool;

mod sequential;

mod transformer;

pub use activation::{Flatten, Gelu, GeluTanh, Relu, Sigmoid, Silu, Tanh};
pub use attention::MultiheadAttention;
pub(crate) use attention::{check_heads, join_heads, split_three};
pub use conv::{Conv2d, Conv2dOptions};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use linear::{Linear, LinearOptions};
pub(crate) use module::matching;
pub use module::{Module, Training, Visitor};
pub use norm::{BatchNorm2d, GroupNorm, LayerNorm, NormOptions, RmsNorm};
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
pub use sequential::Sequential;
pub use transformer::TransformerEncoderLayer;
