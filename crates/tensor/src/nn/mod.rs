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
//!
//! To add one: a file here with a struct of tensors, its [`Module`] and its test.

mod module;

pub mod init;

mod activation;

mod linear;

mod sequential;

pub use activation::{Relu, Sigmoid, Silu, Tanh};
pub use linear::{Linear, LinearOptions};
pub use module::{Module, Visitor};
pub use sequential::Sequential;
