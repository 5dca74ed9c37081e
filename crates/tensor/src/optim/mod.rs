//! Optimizers: one pass over all parameters, with no memory but their state.
//!
//! ```
//! use tonnage_tensor::nn::{Linear, Module};
//! use tonnage_tensor::optim::{AdamW, Optimizer};
//! use tonnage_tensor::{Device, Tensor};
//!
//! let device = Device::host("64 MiB")?;
//! let model = Linear::new(4, 1, &device)?;
//! let mut optimizer = AdamW::new(model.parameters(), AdamW::options().lr(1e-2))?;
//! for _ in 0..3 {
//!     let loss = model.forward(&Tensor::randn([8, 4], &device)?)?.square()?.mean()?;
//!     optimizer.zero_grad(true)?;
//!     loss.backward()?;
//!     optimizer.step()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! State is allocated at the first step, in PyTorch's order. Where PyTorch's default makes a copy of
//! the model's size on the way, an update here is computed piece by piece and needs none: it is
//! PyTorch's *fused* form.

mod adam;

mod clip;

mod groups;

pub mod schedule;

mod sgd;

pub use adam::{Adam, AdamOptions, AdamW};
pub use clip::clip_grad_norm_;
pub use sgd::{Sgd, SgdOptions};

use crate::error::Result;
use crate::tensor::Tensor;

/// Something that changes parameters by their gradients.
pub trait Optimizer {
    /// Changes every parameter that has a gradient.
    ///
    /// # Errors
    ///
    /// If there is no memory for the state, which is allocated at the first step.
    #[track_caller]
    fn step(&mut self) -> Result<()>;

    /// The parameters, in order.
    fn parameters(&self) -> Vec<Tensor>;

    /// The learning rate of every group, from now on.
    fn set_lr(&mut self, lr: f64);

    /// What is kept between steps, with names such as `0.exp_avg`: parameter and kind.
    fn named_state(&self) -> Vec<(String, Tensor)>;

    /// Drops the gradients, or sets them to zero if `set_to_none` is false: their memory then stays.
    ///
    /// # Errors
    ///
    /// If the device fails.
    #[track_caller]
    fn zero_grad(&mut self, set_to_none: bool) -> Result<()> {
        for parameter in self.parameters() {
            if set_to_none {
                drop(parameter.take_grad());
            } else if let Some(grad) = parameter.grad() {
                grad.zero_()?;
            }
        }
        Ok(())
    }
}
