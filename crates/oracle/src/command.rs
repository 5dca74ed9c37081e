//! Streams of commands: what is asked, without what was answered.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};

/// A stream: a new device and what is asked of its allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// How it begins.
    pub start: Start,
    /// What is asked.
    pub commands: Vec<Command>,
}

/// The device, and what the process finds in its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Bytes the device has.
    pub total: u64,
    /// Bytes it gives out.
    pub capacity: u64,
    /// Variables and their values: at most the three names of the allocator's settings.
    pub environment: Vec<(String, String)>,
}

impl Start {
    /// The device of most examples: 8 GiB, all to be had, no settings.
    #[must_use]
    pub fn plain() -> Self {
        Self { total: 8 << 30, capacity: 8 << 30, environment: Vec::new() }
    }
}

/// A pool's two numbers; (0, 0) is the default pool.
pub type Pool = (u64, u64);

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Allocate on a stream; the block goes by `id` from now on.
    Allocate {
        /// Names the block.
        id: u64,
        /// Bytes.
        size: u64,
        /// The stream's handle.
        stream: u64,
    },
    /// Free a block; nothing if there is none of this name.
    Free {
        /// The block.
        id: u64,
    },
    /// The block is used on another stream too; nothing if there is none of this name.
    RecordStream {
        /// The block.
        id: u64,
        /// The stream.
        stream: u64,
    },
    /// Give cached memory back: all, or of one private pool.
    EmptyCache {
        /// The pool.
        pool: Pool,
    },
    /// Events are complete from now on, or none is.
    Events {
        /// Which.
        complete: bool,
    },
    /// While none is: those of one stream are.
    EventsOf {
        /// The stream.
        stream: u64,
    },
    /// Divert requests to a pool.
    PoolBegin {
        /// The pool.
        pool: Pool,
        /// Only those of this stream.
        only: Option<u64>,
    },
    /// Divert them no more.
    PoolEnd {
        /// The pool.
        pool: Pool,
    },
    /// Take one use from a pool.
    PoolRelease {
        /// The pool.
        pool: Pool,
    },
    /// Never split this pool's blocks.
    PoolNoSplit {
        /// The pool.
        pool: Pool,
    },
    /// Let this pool serve others rather than fail, or no longer.
    PoolUseOnOom {
        /// The pool.
        pool: Pool,
        /// Whether it does.
        on: bool,
    },
    /// Make a pool with one use, or add one.
    PoolUse {
        /// The pool.
        pool: Pool,
    },
    /// A capture begins.
    CaptureBegin {
        /// Whether the current stream is part of it; otherwise that of another thread is.
        here: bool,
    },
    /// The one that began last ends.
    CaptureEnd,
    /// Tag a stream with a class of reserves; an empty one takes the tag away.
    ReserveClass {
        /// The stream.
        stream: u64,
        /// The class, a word.
        class: String,
    },
    /// Allow this share of the device.
    Fraction(f64),
    /// Read settings.
    Configure(String),
    /// Let peaks begin again.
    ResetPeaks,
    /// Let sums and counts begin again.
    ResetSums,
    /// Record history from now on.
    RecordHistory,
    /// Look at segments and blocks.
    Snapshot,
}

/// The command as one line of the driver's protocol, which is also how streams are shown.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { id, size, stream } => write!(f, "a {id} {size} {stream}"),
            Self::Free { id } => write!(f, "f {id}"),
            Self::RecordStream { id, stream } => write!(f, "r {id} {stream}"),
            Self::EmptyCache { pool: (a, b) } => write!(f, "e {a} {b}"),
            Self::Events { complete } => write!(f, "d {}", u8::from(*complete)),
            Self::EventsOf { stream } => write!(f, "s {stream}"),
            Self::PoolBegin { pool: (a, b), only: None } => write!(f, "b {a} {b}"),
            Self::PoolBegin { pool: (a, b), only: Some(stream) } => write!(f, "b {a} {b} {stream}"),
            Self::PoolEnd { pool: (a, b) } => write!(f, "x {a} {b}"),
            Self::PoolRelease { pool: (a, b) } => write!(f, "R {a} {b}"),
            Self::PoolNoSplit { pool: (a, b) } => write!(f, "n {a} {b}"),
            Self::PoolUseOnOom { pool: (a, b), on } => write!(f, "o {a} {b} {}", u8::from(*on)),
            Self::PoolUse { pool: (a, b) } => write!(f, "u {a} {b}"),
            Self::CaptureBegin { here } => write!(f, "C {}", u8::from(*here)),
            Self::CaptureEnd => f.write_str("E"),
            // The shortest decimal that reads back as the same number.
            Self::Fraction(share) => write!(f, "p {share:?}"),
            Self::Configure(settings) => write!(f, "c {settings}"),
            Self::ReserveClass { stream, class } => write!(f, "t {stream} {class}"),
            Self::ResetPeaks => f.write_str("k"),
            Self::ResetSums => f.write_str("z"),
            Self::RecordHistory => f.write_str("H"),
            Self::Snapshot => f.write_str("?"),
        }
    }
}

/// The whole stream, as the driver reads it.
impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.start.environment {
            writeln!(f, "env {name}={value}")?;
        }
        writeln!(f, "stream {} {}", self.start.total, self.start.capacity)?;
        for command in &self.commands {
            writeln!(f, "{command}")?;
        }
        f.write_str("end")
    }
}

/// Reads what is shown.
impl FromStr for Stream {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut stream = Self { start: Start::plain(), commands: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && *line != "end") {
            if let Some(variable) = line.strip_prefix("env ") {
                let (name, value) = variable.split_once('=').context("a variable has a value")?;
                stream.start.environment.push((name.to_owned(), value.to_owned()));
            } else if let Some(device) = line.strip_prefix("stream ") {
                let (total, capacity) = device.split_once(' ').context("a device has two sizes")?;
                (stream.start.total, stream.start.capacity) = (total.parse()?, capacity.parse()?);
            } else {
                let command = line.parse().with_context(|| format!("`{line}` is no command"))?;
                stream.commands.push(command);
            }
        }
        Ok(stream)
    }
}

impl FromStr for Command {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (letter, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split_ascii_whitespace();
        let mut number =
            || -> anyhow::Result<u64> { Ok(words.next().context("a number is missing")?.parse()?) };
        Ok(match letter {
            "a" => Self::Allocate { id: number()?, size: number()?, stream: number()? },
            "f" => Self::Free { id: number()? },
            "r" => Self::RecordStream { id: number()?, stream: number()? },
            "e" => Self::EmptyCache { pool: (number()?, number()?) },
            "d" => Self::Events { complete: number()? != 0 },
            "s" => Self::EventsOf { stream: number()? },
            "b" => Self::PoolBegin { pool: (number()?, number()?), only: number().ok() },
            "x" => Self::PoolEnd { pool: (number()?, number()?) },
            "R" => Self::PoolRelease { pool: (number()?, number()?) },
            "u" => Self::PoolUse { pool: (number()?, number()?) },
            "n" => Self::PoolNoSplit { pool: (number()?, number()?) },
            "o" => Self::PoolUseOnOom { pool: (number()?, number()?), on: number()? != 0 },
            "C" => Self::CaptureBegin { here: number()? != 0 },
            "E" => Self::CaptureEnd,
            "t" => Self::ReserveClass {
                stream: number()?,
                class: words.next().unwrap_or_default().to_owned(),
            },
            "p" => Self::Fraction(rest.parse()?),
            "c" => Self::Configure(rest.to_owned()),
            "k" => Self::ResetPeaks,
            "z" => Self::ResetSums,
            "H" => Self::RecordHistory,
            "?" => Self::Snapshot,
            _ => bail!("no command has this letter"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{self, Features};

    #[test]
    fn what_is_shown_is_read() {
        let features = Features::of(tonnage_engine::Release::NEWEST);
        for number in 0..100 {
            let stream = generate::stream(5, number, features);
            assert_eq!(stream.to_string().parse::<Stream>().unwrap(), stream, "{number}");
        }
        for wrong in ["a 1 2", "q", "p x", "stream 1", "env x", "f -1"] {
            assert!(wrong.parse::<Stream>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stream_is_shown_as_the_driver_reads_it() {
        let stream = Stream {
            start: Start {
                environment: vec![("PYTORCH_ALLOC_CONF".into(), "expandable_segments:True".into())],
                ..Start::plain()
            },
            commands: vec![
                Command::Allocate { id: 1, size: 1000, stream: 4096 },
                Command::PoolBegin { pool: (0, 5), only: Some(4096) },
                Command::Fraction(0.1),
                Command::Configure(String::new()),
                Command::CaptureBegin { here: true },
            ],
        };
        let lines = [
            "env PYTORCH_ALLOC_CONF=expandable_segments:True",
            "stream 8589934592 8589934592",
            "a 1 1000 4096",
            "b 0 5 4096",
            "p 0.1",
            "c ",
            "C 1",
            "end",
        ];
        assert_eq!(stream.to_string(), lines.join("\n"));
    }
}
