//! The operations, one file for each family: shape rule, forward, backward, kernel and test together.
//!
//! See the crate's page for how to add one.

mod binary;

mod copy;

mod linear;

mod matmul;

mod reduce;

mod unary;

mod view;

pub use binary::Rhs;
pub(crate) use copy::Copy;
