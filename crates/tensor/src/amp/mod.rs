//! Mixed precision: products in 16 bits, sums in 32, and a scale that keeps small gradients.
//!
//! ```
//! use tonnage_tensor::amp::autocast;
//! use tonnage_tensor::{DType, Device, Tensor};
//!
//! let device = Device::host("64 MiB")?;
//! let weight = Tensor::randn([8, 8], &device)?.requires_grad_(true)?;
//! let x = Tensor::randn([4, 8], &device)?;
//! let y = autocast(DType::Bf16, || x.linear(&weight, None))?;
//! assert_eq!(y.dtype(), DType::Bf16);
//! y.sum()?.backward()?;
//! assert_eq!(weight.grad().unwrap().dtype(), DType::F32);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod autocast;

mod scaler;

pub use autocast::{Guard, autocast, autocast_dtype, autocast_guard, no_autocast};
pub(crate) use autocast::{Mode, copies_apart, lower, raise, raised, sums};
pub use scaler::{GradScaler, ScalerOptions};
