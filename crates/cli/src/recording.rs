//! The file that a verb is given, and which part of it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use tonnage::replay::Outcome;
use tonnage::replay::job::Job;
use tonnage::replay::recording::RecordingOptions;
use tonnage::replay::stream::Stream;
use tonnage::snapshot::{self, Limits, SnapshotFile};
use tonnage::{Bytes, Release};

use crate::input::{read_with, warn_of_rest};
use crate::progress::Progress;

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
    #[arg(long, value_name = "SIZE")]
    pub(crate) total: Option<Bytes>,

    /// The release whose rules to follow, from 2.8 to 2.15. Else it is told from the file
    #[arg(long, value_name = "RELEASE")]
    pub(crate) pytorch: Option<Release>,

    /// The device to take, if the file has several. Else the one with most entries
    #[arg(long, value_name = "N")]
    pub(crate) ordinal: Option<usize>,
}

/// A file with memory history.
pub(crate) enum Recording {
    Snapshot(Box<SnapshotFile>),
    Stream(Box<Stream>),
}

impl Source {
    /// Reads the file, and says what to call it.
    pub(crate) fn read(&self) -> anyhow::Result<(String, Recording)> {
        read_file(self.file.as_deref())
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
pub(crate) fn read_file(path: Option<&Path>) -> anyhow::Result<(String, Recording)> {
    let Some(path) = path else { return Ok((EMBEDDED_NAME.to_owned(), read(EMBEDDED)?)) };
    let (name, recording) = read_with(path, |input| read(input))?;
    if let Recording::Snapshot(file) = &recording {
        warn_of_rest(&name, file);
    }
    Ok((name, recording))
}

/// Tells the two kinds of file apart by their first byte: a stream is JSON, a pickle is not.
fn read(input: impl Read) -> anyhow::Result<Recording> {
    let mut input = BufReader::new(input);
    let first = input.fill_buf().context("cannot read")?.first().copied();
    Ok(if first == Some(b'{') {
        Recording::Stream(Box::new(Stream::read(input)?))
    } else {
        Recording::Snapshot(Box::new(snapshot::read(input, &Limits::default())?))
    })
}
