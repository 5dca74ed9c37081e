//! Where verbs get their snapshots from: a file or standard input, with progress if it takes long.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};
use tonnage::snapshot::{self, Limits, SnapshotFile};

use crate::progress::Progress;

/// A snapshot and the name it goes by.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) file: SnapshotFile,
}

/// Reads the snapshot in a file; `-` is standard input.
pub(crate) fn read_snapshot(path: &Path) -> anyhow::Result<Input> {
    if path == Path::new("-") {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            bail!("`-` reads a snapshot from a pipe, but standard input is the terminal");
        }
        return read("standard input".to_owned(), None, stdin.lock());
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|it| it.len());
    read(name, length, file)
}

fn read(name: String, length: Option<u64>, input: impl Read) -> anyhow::Result<Input> {
    let progress = Progress::bytes(format!("reading {name}"), length);
    let file = snapshot::read(progress.reader(input), &Limits::default());
    let file = file.with_context(|| name.clone())?;
    Ok(Input { name, file })
}
