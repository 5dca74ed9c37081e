//! The operations, one file for each family: shape rule, forward, backward, kernel and test together.
//!
//! See the crate's page for how to add one.

mod batch_norm;

mod binary;

mod choose;

mod compare;

mod conv;

mod copy;

mod extreme;

mod layer_norm;

mod linear;

mod matmul;

mod pool;

mod pow;

mod reduce;

mod unary;

mod variance;

mod view;

mod window;

pub use batch_norm::BatchNormOptions;
pub use binary::Rhs;
pub use conv::ConvOptions;
pub(crate) use copy::Copy;
pub use pool::PoolOptions;
pub use window::Pair;
