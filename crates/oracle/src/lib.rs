//! PyTorch's own allocator beside the engine.
//!
//! A released PyTorch is asked what it does: its allocator libraries run, unchanged and without a GPU, on a
//! fake CUDA runtime (`tonnage-fake-cudart`). Random streams of commands go through them and through the
//! engine; every answer, address, figure and setting is compared. What differs is made as small as it gets
//! and printed. `cargo xtask oracle` runs it.
//!
//! 1. [`generate`] makes streams, by seed.
//! 2. A [`Subject`] plays them: [`Library`] the released binary, [`EngineSubject`] ours.
//! 3. [`compare`](mod@compare) says whether the transcripts are equal. Where PyTorch asserts, crashes or
//!    follows the order of a hash table there is nothing to compare with: the stream is cut there, or the
//!    figure masked, and counted.
//! 4. [`shrink`](mod@shrink) looks for the smallest stream that still differs.
//! 5. [`campaign`] does that until enough commands were compared, and sums up. [`vector`] writes streams down with
//!    their answers.
//!
//! Nothing but [`Library`] and [`setup`] needs PyTorch: the rest is tested without.

#![forbid(unsafe_code)]

// 1. Streams.
pub mod command;

mod random;

pub mod generate;

// 2. Who plays them, and what comes out.
pub mod transcript;

mod engine_subject;

mod protocol;

mod library;

pub mod setup;

// 3. Equal or not.
pub mod compare;

mod histories;

mod quirks;

// 4. The smallest stream.
pub mod shrink;

// 5. All of it.
pub mod campaign;

pub mod report;

pub mod vector;

pub use command::{Command, Start, Stream};
pub use engine_subject::EngineSubject;
pub use library::Library;
pub use transcript::Transcript;

/// Someone who plays streams.
pub trait Subject {
    /// Plays a stream on a new device, from the beginning.
    ///
    /// # Errors
    ///
    /// If the subject itself fails; what an allocator refuses is part of the transcript.
    fn play(&mut self, stream: &Stream) -> anyhow::Result<Transcript>;
}
