//! Recordings through the engine: exact, or the first difference.
#![forbid(unsafe_code)]

pub mod recording;

pub mod stream;

// A recording's requests, asked of another allocator.
pub mod job;

pub mod what_if;

pub mod tune;

mod outcome;

mod reach;

// When long work ends before it is done.
mod until;

// The engine's own history, as a recording.
mod own_snapshot;

pub use outcome::{Difference, HistoryKind, Outcome};
pub use own_snapshot::snapshot_file;
pub use reach::Reach;
pub use until::{Stop, Until};
