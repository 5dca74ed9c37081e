//! Work on a GPU: kernels as plans, plans as launches.
//!
//! | file | what it is |
//! | --- | --- |
//! | `plan.rs` | how a GPU computes a kernel, as data |
//! | `elementwise.rs` | the program of all kernels that compute each element by itself |
//! | `queue.rs` | plans onto streams, transfers |
//! | `fake.rs` | a GPU without arithmetic, for tests |
//! | `failures.rs` | what goes wrong inside kernels |
//! | `instance.rs` | its text, written once |
//! | `places.rs` | how operands of one shape lie |
//! | `multi.rs` | kernels over lists of tensors, as one launch |
//! | `rows.rs`, `rows.cuh` | rows and columns that are reduced |
//! | `profile.rs` | how long work takes |
//! | `recorded.rs` | the programs that a GPU would run, written down |
//! | `prelude.cu` | what every program begins with |

mod elementwise;

#[cfg(test)]
pub(crate) mod fake;

mod failures;

mod instance;

mod places;

mod multi;

mod plan;

mod profile;

mod queue;

mod recorded;

mod rows;

pub(crate) use elementwise::Elementwise;
pub(crate) use multi::MultiTensor;
pub(crate) use plan::{
    Launch, LibraryConvolution, LibraryProduct, Operands, Plan, Program, stored, wide,
};
pub use profile::WorkTime;
pub(crate) use queue::{CudaGraph, CudaQueue};
pub(crate) use recorded::RecordedPrograms;
pub(crate) use rows::{AnyRows, Axes, FULL, Group, blocks, index_type, pack_of};
