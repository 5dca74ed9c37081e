//! The file that a verb is given, and which part of it.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use tonnage::replay::Outcome;
use tonnage::replay::job::Job;
use tonnage::replay::recording::RecordingOptions;
use tonnage::replay::stream::Stream;
use tonnage::snapshot::{Limits, SnapshotFile};
use tonnage::{Bytes, Release};

use crate::input::{ReadOptions, read_within, too_much, warn_of_rest};
use crate::progress::Progress;
use crate::release;
use crate::size::memory_size;

/// What is taken without a FILE: GPT-2 training with sequences of varying length, PyTorch 2.11 on
/// an H200.
const EMBEDDED: &[u8] = include_bytes!("../recordings/gpt2_varlen.pickle.zst");

/// The name it goes by.
const EMBEDDED_NAME: &str = "gpt2_varlen (embedded)";

/// Which recording, and what its file does not say.
#[derive(Args)]
pub(crate) struct Source {
    /// A snapshot (`.pickle`, also compressed); `replay` takes command streams (`.jsonl`) too. `-` reads
    /// standard input. Without it, a recording inside this program is taken
    pub(crate) file: Option<PathBuf>,

    /// The memory of the device it was recorded on. A limit is then read as PyTorch sets it, as a
    /// fraction of this
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(crate) total: Option<Bytes>,

    /// The release whose rules to follow, from 2.8 to 2.15; later ones get those of 2.15. Else it is told from the
    /// file
    #[arg(long, value_name = "RELEASE", value_parser = release::nearest)]
    pub(crate) pytorch: Option<Release>,

    /// The device to take, if the file has several. Else the one with most entries
    #[arg(long, value_name = "N")]
    pub(crate) ordinal: Option<usize>,

    #[command(flatten)]
    read: ReadOptions,
}

/// A file with memory history.
pub(crate) enum Recording {
    Snapshot(Box<SnapshotFile>),
    Stream(Box<Stream>),
}

impl Source {
    /// Reads the file, and says what to call it.
    pub(crate) fn read(&self) -> anyhow::Result<(String, Recording)> {
        read_file(self.file.as_deref(), self.read)
    }

    /// How to replay it, if this limit was in force.
    pub(crate) fn options(&self, limit: Option<u64>) -> RecordingOptions {
        RecordingOptions {
            limit,
            total: self.total.map(|total| total.0),
            release: self.pytorch,
            ordinal: self.ordinal,
        }
    }

    /// What the recorded program asked for. The limit that it had is not in the file; if the recording
    /// cannot be read without one, the one that is asked about may be it.
    pub(crate) fn read_job(
        &self,
        file: &SnapshotFile,
        limit: Option<u64>,
    ) -> anyhow::Result<(Outcome, Job)> {
        let _progress = Progress::unmeasured("replaying");
        let (outcome, job) = Job::read(file, &self.options(None))?;
        if !outcome.exact() && limit.is_some() {
            let (other, with_limit) = Job::read(file, &self.options(limit))?;
            if other.exact() {
                return Ok((other, with_limit));
            }
        }
        Ok((outcome, job))
    }
}

/// Reads a file, or without one the recording inside this program, and says what to call it.
pub(crate) fn read_file(
    path: Option<&Path>,
    options: ReadOptions,
) -> anyhow::Result<(String, Recording)> {
    let Some(path) = path else {
        let limits = options.limits(Some(EMBEDDED.len() as u64));
        return Ok((EMBEDDED_NAME.to_owned(), read(&mut &*EMBEDDED, &limits)?));
    };
    let (name, recording) = options.read_with(path, read)?;
    if let Recording::Snapshot(file) = &recording {
        warn_of_rest(&name, file);
    }
    Ok((name, recording))
}

/// Tells the two kinds of file apart by their first byte: a stream is JSON, a pickle is not.
fn read(input: &mut dyn Read, limits: &Limits) -> anyhow::Result<Recording> {
    let mut input = BufReader::new(input);
    let first = input.fill_buf().context("cannot read")?.first().copied();
    Ok(if first == Some(b'{') {
        Recording::Stream(Box::new(Stream::read(BufReader::new(Capped::new(input, limits)))?))
    } else {
        Recording::Snapshot(Box::new(read_within(&mut input, limits)?))
    })
}

/// Memory that a command stream takes for each of its bytes, at most: the shortest command has 20.
const STREAM_COST: u64 = 8;

/// A command stream that ends with an error where it would take more memory than it may.
struct Capped<'a, R> {
    inner: R,
    left: u64,
    limits: &'a Limits,
}

impl<'a, R> Capped<'a, R> {
    fn new(inner: R, limits: &'a Limits) -> Self {
        Self { inner, left: limits.memory / STREAM_COST, limits }
    }
}

impl<R: Read> Read for Capped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or_else(|| io::Error::other(too_much(self.limits, "the stream is too long for")))?;
        Ok(read)
    }
}
