//! The operations, one file for each family: shape rule, forward, backward, kernel and test together.
//!
//! See the crate's page for how to add one.

mod activation;

mod attention;

mod binary;

mod complex;

mod copy;

mod dropout;

mod embedding;

mod index;

mod join;

mod linear;

mod loss;

mod matmul;

mod reduce;

mod softmax;

mod solve;

mod triangle;

mod unary;

mod view;

pub use attention::AttentionOptions;
pub use binary::Rhs;
pub(crate) use copy::Copy;
pub use loss::{CrossEntropyOptions, Reduction};
