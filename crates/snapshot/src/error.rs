//! Why a file could not be read, sorted by what the caller can do about it.
//!
//! Offsets count bytes of the pickle itself: for a compressed file, of what comes out of the
//! decompressor. `python3 -m pickletools` shows the same numbers.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A snapshot that could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Something is wrong with the file at this path.
    #[error("{}: {source}", path.display())]
    File {
        /// The file that was opened.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<SnapshotError>,
    },

    /// The bytes could not be obtained. The file may be fine: check that it exists and is
    /// readable.
    #[error("cannot read: {0}")]
    Io(#[source] io::Error),

    /// Another kind of file. Pass the one that `_dump_snapshot` wrote.
    #[error("not a pickled memory snapshot: this looks like {looks_like}. {hint}")]
    NotAPickle {
        /// What the first bytes suggest.
        looks_like: &'static str,
        /// What to do instead.
        hint: &'static str,
    },

    /// The file asks for something that a snapshot never needs. Do not load it with Python unless
    /// you trust whoever wrote it.
    #[error("refused at byte {offset}: opcode {opcode} {why}")]
    Opcode {
        /// Its name in Python's `pickletools`.
        opcode: &'static str,
        /// Where it stands.
        offset: u64,
        /// What it would do, and what to do about it.
        why: &'static str,
    },

    /// The file ends too early. Copy or record it again.
    #[error(
        "the file ends at byte {offset}, in the middle of the snapshot: it was cut short; copy it \
         or dump it again"
    )]
    Truncated {
        /// Where the data ends.
        offset: u64,
    },

    /// The compression is damaged. Copy the file again.
    #[error(
        "the {compression} data is damaged after byte {offset} of the pickle ({source}); copy the \
         file again"
    )]
    Damaged {
        /// `zstd`, `gzip` or `xz`.
        compression: &'static str,
        /// How much of the pickle had come out.
        offset: u64,
        /// What the decompressor said.
        source: io::Error,
    },

    /// The compression looks back further than is allowed. Unpack the file first.
    #[error(
        "unpacking the {compression} data takes more than {allowed} bytes of memory; unpack it with \
         the tool that packed it, and pass the result"
    )]
    Window {
        /// `zstd` or `xz`.
        compression: &'static str,
        /// Bytes that unpacking may take.
        allowed: u64,
    },

    /// The bytes break the rules of pickles. Nothing but a fresh copy will help.
    #[error("malformed pickle at byte {offset}: {what}")]
    Malformed {
        /// Where the opcode stands that cannot be followed.
        offset: u64,
        /// Which rule it breaks.
        what: String,
    },

    /// A proper pickle, but not of a snapshot that this reader understands. Please report it if
    /// PyTorch wrote it.
    #[error("{path}: expected {expected}, found {found} (in what ends at byte {offset})")]
    Shape {
        /// Which value, as one would write it in Python: `device_traces[0][17].size`.
        path: String,
        /// What would do.
        expected: &'static str,
        /// What is there.
        found: String,
        /// Where the dictionary or list that holds it ends.
        offset: u64,
    },

    /// Reading on would cost more than allowed. Raise the limit if the file is trusted.
    #[error(
        "at byte {offset} the file passes the limit of {allowed} {unit}; if you trust it, raise \
         `Limits::{limit}`"
    )]
    Limit {
        /// The field of [`Limits`](crate::Limits).
        limit: &'static str,
        /// Its value.
        allowed: u64,
        /// What it counts.
        unit: &'static str,
        /// How far reading came.
        offset: u64,
    },
}

/// For results inside the crate.
pub(crate) type Result<T> = std::result::Result<T, SnapshotError>;
