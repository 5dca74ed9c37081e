//! Recordings through the engine: exact, or the first difference.
#![forbid(unsafe_code)]

pub mod recording;

pub mod stream;

mod outcome;

pub use outcome::{Difference, HistoryKind, Outcome};
