//! Command streams: random commands with the answers of PyTorch's own library.
//!
//! A stream is JSON, one object a line: a header, the commands with their results, an end line.
//! Replaying one gives every command to the engine, on a dry device with the same address rules, and
//! compares every result. The format is described beside the files, in `testdata/streams/README.md`.

mod compare;

mod format;

mod run;

pub use format::{Command, Header, Stream, StreamError};
pub use run::{replay_stream, run_commands};
