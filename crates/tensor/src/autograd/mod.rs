//! Automatic differentiation: a graph that grows as operations run, and the way back through it.
//!
//! ```
//! use tonnage_tensor::{Device, Tensor};
//!
//! let device = Device::host("64 MiB")?;
//! let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &device)?.requires_grad_(true)?;
//! let loss = x.mul(&x)?.sum()?;
//! loss.backward()?;
//! assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | piece | file |
//! | --- | --- |
//! | a tensor's place in the graph | `meta.rs` |
//! | an operation in the graph, and what it leads to | `node.rs` |
//! | changes in place through views | `copy_slices.rs` |
//! | values kept for the backward, hooks on them | `saved.rs` |
//! | recording on, off, and inference | `mode.rs` |
//! | the way back | `engine.rs` |
//! | collecting gradients in leaves | `accumulate.rs` |
//! | what threads use in turns while hooks run | `turns.rs` |

mod accumulate;

mod copy_slices;

mod engine;

mod meta;

mod mode;

mod node;

mod saved;

mod turns;

pub use engine::{BackwardOptions, backward};
pub(crate) use meta::Meta;
pub(crate) use mode::is_backward;
pub use mode::{
    Guard, inference, inference_guard, is_grad_enabled, is_inference, no_grad, no_grad_guard,
    set_grad_enabled,
};
pub(crate) use node::{Backward, Grads, Needs, Node, record, record_in_place, records};
pub(crate) use saved::Saved;
pub use saved::{Packed, SavedTensorHooks, saved_tensors_hooks};
pub(crate) use turns::{InUse, Turns};
