//! The lines of a command stream.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;
use thiserror::Error;

/// A file that is no command stream.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The file cannot be read.
    #[error("line {line} cannot be read: {source}")]
    Io {
        /// Counted from 1.
        line: usize,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("line {line} is not a {expected} of a command stream: {reason}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// What belongs there.
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// The largest device that a stream may ask for: 4 TiB, far beyond any GPU. Expandable segments of more have more pages than
/// are worth holding.
const LARGEST_DEVICE: u64 = 1 << 42;

/// What holds for a whole stream.
#[derive(Clone, Debug, Deserialize)]
pub struct Header {
    format: String,
    version: u32,
    /// The release that answered.
    pub library: String,
    /// Settings from the start.
    pub conf: String,
    /// Bytes the device has.
    pub device_total: u64,
    /// Bytes it gives out.
    pub device_capacity: u64,
    /// The memory fraction that was set before the first command.
    pub fraction: Option<f64>,
    /// The limit that makes.
    pub limit: Option<u64>,
    /// Statistics of which only the current value is known.
    #[serde(default)]
    pub masked: Vec<String>,
}

/// A command, and what PyTorch answered.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    /// The command.
    #[serde(flatten)]
    pub command: Command,
    /// Statistics that changed, with their new values.
    #[serde(default)]
    pub stats: BTreeMap<String, i64>,
}

/// What to do.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Command {
    /// Allocate `size` bytes on a stream.
    Alloc {
        /// Names the block from now on.
        id: u64,
        /// Bytes.
        size: u64,
        /// The stream's handle.
        stream: u64,
        /// Where the block was, or null if there was no memory.
        address: Option<u64>,
    },
    /// Free a block.
    Free {
        /// The block.
        id: u64,
    },
    /// The block is used on another stream too.
    RecordStream {
        /// The block.
        id: u64,
        /// The other stream.
        stream: u64,
    },
    /// All events are complete from now on, or none is.
    Events {
        /// Which.
        complete: bool,
    },
    /// The events of one stream are complete from now on.
    StreamEventsComplete {
        /// The stream.
        stream: u64,
    },
    /// Give cached memory back.
    EmptyCache {
        /// Only of this pool.
        #[serde(default)]
        pool: Option<(u64, u64)>,
    },
    /// Divert all requests to a pool.
    PoolBegin {
        /// The pool.
        pool: (u64, u64),
    },
    /// Divert them no more.
    PoolEnd {
        /// The pool.
        pool: (u64, u64),
    },
    /// Take one use from a pool.
    PoolRelease {
        /// The pool.
        pool: (u64, u64),
    },
    /// A graph capture begins (PyTorch's `markCaptureBegin`, 2.13 on), and all that follows is part of it.
    CaptureBegin,
    /// The capture that began last ends.
    CaptureEnd,
    /// Never split this pool's blocks.
    PoolNoSplit {
        /// The pool.
        pool: (u64, u64),
    },
    /// Let this pool serve others rather than fail, or no longer.
    PoolUseOnOom {
        /// The pool.
        pool: (u64, u64),
        /// Whether it does.
        on: bool,
    },
    /// Allow this share of the device.
    MemoryFraction {
        /// The share.
        fraction: f64,
    },
    /// Read new settings.
    Configure {
        /// The settings.
        conf: String,
    },
    /// Look at the state.
    Snapshot {
        /// What it was.
        segments: Vec<Segment>,
    },
}

/// A segment of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// `small` or `large`.
    pub pool_kind: String,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: (u64, u64),
    /// Whether it is a mapped run of an expandable range.
    pub expandable: bool,
    /// Its blocks: offset, size, state, requested size (unknown for free ones).
    pub blocks: Vec<(u64, u64, String, Option<u64>)>,
}

/// The state at the end.
#[derive(Clone, Debug, Deserialize)]
pub struct End {
    /// Always true: tells this line from a command.
    pub end: bool,
    /// Segments and blocks.
    pub segments: Vec<Segment>,
    /// All current values.
    pub stats: BTreeMap<String, i64>,
    /// For each statistic three rows (all, small, large) of current, peak, allocated, freed.
    pub full_stats: BTreeMap<String, Vec<[Option<i64>; 4]>>,
}

/// A whole stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// What holds throughout.
    pub header: Header,
    /// The commands.
    pub lines: Vec<Line>,
    /// The state at the end.
    pub end: End,
}

impl Stream {
    /// Reads a stream.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a line is not what it should be.
    pub fn read(input: impl BufRead) -> Result<Self, StreamError> {
        let mut header = None;
        let mut lines = Vec::new();
        let mut number = 0;
        for line in input.lines() {
            number += 1;
            let text = line.map_err(|source| StreamError::Io { line: number, source })?;
            if text.trim().is_empty() {
                continue;
            }
            let malformed = |expected, reason: String| StreamError::Malformed {
                line: number,
                expected,
                reason,
            };
            let Some(header) = &header else {
                header = Some(parse_header(&text).map_err(|reason| malformed("header", reason))?);
                continue;
            };
            if text.starts_with("{\"end\"") {
                let end: End = serde_json::from_str(&text)
                    .map_err(|error| malformed("end", error.to_string()))?;
                return Ok(Self { header: header.clone(), lines, end });
            }
            lines.push(
                serde_json::from_str(&text)
                    .map_err(|error| malformed("command", error.to_string()))?,
            );
        }
        let reason = "the file ends before it".to_owned();
        Err(StreamError::Malformed { line: number + 1, expected: "end", reason })
    }
}

fn parse_header(text: &str) -> Result<Header, String> {
    let header: Header = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if header.format != "allocator-stream" || header.version != 1 {
        return Err(format!("format {} {} is unknown", header.format, header.version));
    }
    if header.device_total.max(header.device_capacity) > LARGEST_DEVICE {
        return Err(format!("a device has at most {LARGEST_DEVICE} bytes"));
    }
    Ok(header)
}
