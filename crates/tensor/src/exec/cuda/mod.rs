//! Work on a GPU: kernels as plans, plans as launches.
//!
//! | file | what it is |
//! | --- | --- |
//! | `plan.rs` | how a GPU computes a kernel, as data |
//! | `elementwise.rs` | the program of all kernels that compute each element by itself |
//! | `recorded.rs` | the programs that a GPU would run, written down |
//! | `prelude.cu` | what every program begins with |

mod elementwise;

mod plan;

mod recorded;

pub(crate) use elementwise::{Elementwise, computes_in};
pub(crate) use plan::{Launch, Operands, Plan, Program, stored, wide};
pub(crate) use recorded::RecordedPrograms;
