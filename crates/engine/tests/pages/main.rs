//! The policy `pages`: what it promises whatever is asked of it.

mod ends;
mod failures;
mod faults;
mod loops;
mod oom;
mod ordered;
mod pause;
mod random;
