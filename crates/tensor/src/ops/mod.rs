//! The operations, one file for each family: shape rule, forward, backward, kernel and test together.
//!
//! See the crate's page for how to add one.

mod attention;

mod batch_norm;

mod binary;

mod choose;

mod compare;

mod complex;

mod conv;

mod copy;

mod dropout;

mod embedding;

mod extreme;

mod index;

mod join;

mod layer_norm;

mod linear;

mod loss;

mod matmul;

mod pool;

mod pow;

mod reduce;

mod softmax;

mod solve;

mod triangle;

mod unary;

mod variance;

mod view;

mod window;

pub use attention::AttentionOptions;
pub use batch_norm::BatchNormOptions;
pub use binary::Rhs;
pub use conv::ConvOptions;
pub(crate) use copy::Copy;
pub use loss::{CrossEntropyOptions, Reduction};
pub use pool::PoolOptions;
pub use window::Pair;
