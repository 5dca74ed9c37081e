//! Where verbs get their snapshots from: a file or standard input, with progress if it takes long, and within
//! limits, since a small file can ask for any amount of memory.

use std::fs::{File, Metadata};
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use tonnage::Bytes;
use tonnage::snapshot::{self, HistoryColumns, Limits, SnapshotError, SnapshotFile};

use crate::output::{self, counted};
use crate::progress::Progress;
use crate::size::memory_size;

/// How much reading a file may take.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct ReadOptions {
    /// Memory that reading a file may take; what follows may take up to eight times that. Else half of what the machine, the container and `ulimit` leave, and of
    /// that 1 GiB and 64 times its size for a small file. Bytes, `4GiB`, `4GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    max_memory: Option<Bytes>,
}

impl ReadOptions {
    /// The limits for a file of this size, if it has one.
    pub(crate) fn limits(self, size: Option<u64>) -> Limits {
        match self.max_memory {
            Some(Bytes(memory)) => Limits::with_memory(memory),
            None => Limits::of_file(size),
        }
    }

    /// Reads the snapshot in a file; `-` is standard input.
    pub(crate) fn read_snapshot(self, path: &Path) -> anyhow::Result<Input> {
        let (name, file) = self.read_with(path, read_within)?;
        warn_of_rest(&name, &file);
        Ok(Input { name, file })
    }

    /// Reads what is in a file; `-` is standard input. Says the name it goes by.
    pub(crate) fn read_with<T>(
        self,
        path: &Path,
        read: impl FnOnce(&mut dyn Read, &Limits) -> anyhow::Result<T>,
    ) -> anyhow::Result<(String, T)> {
        let (name, length, mut input): (_, _, Box<dyn Read>) = if path == Path::new("-") {
            let stdin = std::io::stdin();
            if stdin.is_terminal() {
                bail!("`-` reads from a pipe, but standard input is the terminal");
            }
            ("standard input".to_owned(), None, Box::new(stdin.lock()))
        } else {
            let name = path.display().to_string();
            let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
            let length = file.metadata().ok().filter(Metadata::is_file).map(|it| it.len());
            (name, length, Box::new(file))
        };
        let limits = self.limits(length);
        let progress = Progress::bytes(format!("reading {name}"), length);
        let value =
            read(&mut progress.reader(&mut input), &limits).with_context(|| name.clone())?;
        Ok((name, value))
    }
}

/// A snapshot and the name it goes by.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) file: SnapshotFile,
}

/// Reads a snapshot, and says how to allow more where it takes more than it may.
pub(crate) fn read_within(input: &mut dyn Read, limits: &Limits) -> anyhow::Result<SnapshotFile> {
    snapshot::read(input, limits).map_err(|error| beyond(error, limits))
}

/// Reads a snapshot in the same way, with the histories of its devices apart, by columns.
///
/// # Errors
///
/// The reader's, with what to do on the command line.
pub fn read_columns_within(
    input: &mut dyn Read,
    limits: &Limits,
) -> anyhow::Result<(SnapshotFile, Vec<HistoryColumns>)> {
    snapshot::read_columns(input, limits).map_err(|error| beyond(error, limits))
}

/// An error of the reader, with what to do about what takes too much.
fn beyond(error: SnapshotError, limits: &Limits) -> anyhow::Error {
    match error {
        SnapshotError::Limit { limit: "memory", offset, .. } => {
            let what = format!("at byte {offset} reading it takes more than");
            TooMuch(too_much(limits, &what)).into()
        }
        SnapshotError::Limit { limit: "pickle_bytes", allowed, .. } => {
            let what = format!("it unpacks to more than {}, which is too much for", Bytes(allowed));
            TooMuch(too_much(limits, &what)).into()
        }
        other => other.into(),
    }
}

/// A snapshot that takes more memory to read than it may.
#[derive(Debug)]
pub struct TooMuch(String);

impl std::fmt::Display for TooMuch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TooMuch {}

/// What is too much, and what to do about it.
pub(crate) fn too_much(limits: &Limits, what: &str) -> String {
    let (allowed, more) = (Bytes(limits.memory), limits.memory.saturating_mul(2) >> 20);
    format!(
        "{what} the {allowed} of memory that it may take here: if you trust the file, allow more, as in \
         --max-memory {}MiB",
        more.max(1)
    )
}

/// What is known of a file that is read; nothing if it cannot be looked at.
pub(crate) fn about_input(path: &Path) -> Option<Metadata> {
    if path == Path::new("-") {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
        return File::from(stdin).metadata().ok();
    }
    std::fs::metadata(path).ok()
}

/// Says so if there is something behind the snapshot, which nobody reads.
pub(crate) fn warn_of_rest(name: &str, file: &SnapshotFile) {
    if file.trailing > 0 {
        output::warning(&format!(
            "{name}: the snapshot ends {} before the file does; what follows is left out. If the file was \
             written twice, only the first snapshot is read",
            counted(file.trailing, "byte")
        ));
    }
}
