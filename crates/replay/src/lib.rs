//! Recordings through the engine: exact, or the first difference.
#![forbid(unsafe_code)]

pub mod recording;

pub mod stream;

// A recording's requests, asked of another allocator.
pub mod job;

pub mod what_if;

pub mod tune;

mod outcome;

pub use outcome::{Difference, HistoryKind, Outcome};
