//! Tensors on the engine: storage, views, operations, autograd.
#![deny(unsafe_code)]

// Element types,
mod dtype;

mod number;

// shapes,
mod shape;

// what can go wrong.
mod error;

// Memory:
mod device;

mod storage;

mod live;

// where work goes,
#[allow(unsafe_code, reason = "kernels reach device memory by address")]
mod exec;

mod random;

// the tensor itself,
mod tensor;

mod create;

mod transfer;

mod print;

// what can be done with it,
mod ops;

// and back.
pub mod autograd;

pub mod testing;

pub use create::{Scalar, TensorOptions};
pub use device::{Device, current_device, set_device};
pub use dtype::{DType, Element, Stored};
pub use error::{Error, ErrorKind, Result};
pub use live::{Live, Role};
pub use number::{Bf16, Complex64, F16};
pub use ops::Rhs;
pub use random::{Generator, GeneratorState};
pub use shape::Shape;
pub use tensor::Tensor;
pub use transfer::Pinned;
