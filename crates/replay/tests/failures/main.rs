//! One device call fails, whichever it is: the sweep, which `cargo xtask sweep` runs over everything.

mod recordings;
mod streams;
