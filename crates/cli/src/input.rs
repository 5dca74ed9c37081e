//! Where verbs get their snapshots from: a file or standard input, with progress if it takes long.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};
use tonnage::snapshot::{self, Limits, SnapshotFile};

use crate::output::{self, grouped};
use crate::progress::Progress;

/// A snapshot and the name it goes by.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) file: SnapshotFile,
}

/// Reads the snapshot in a file; `-` is standard input.
pub(crate) fn read_snapshot(path: &Path) -> anyhow::Result<Input> {
    let (name, file) = read_with(path, |input| Ok(snapshot::read(input, &Limits::default())?))?;
    warn_of_rest(&name, &file);
    Ok(Input { name, file })
}

/// Says so if there is something behind the snapshot, which nobody reads.
pub(crate) fn warn_of_rest(name: &str, file: &SnapshotFile) {
    if file.trailing > 0 {
        output::warning(&format!(
            "{name}: the snapshot ends {} bytes before the file does; what follows is left out. If the file was \
             written twice, only the first snapshot is read",
            grouped(usize::try_from(file.trailing).unwrap_or(usize::MAX))
        ));
    }
}

/// Reads what is in a file; `-` is standard input. Says the name it goes by.
pub(crate) fn read_with<T>(
    path: &Path,
    read: impl FnOnce(&mut dyn Read) -> anyhow::Result<T>,
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
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|it| it.len());
        (name, length, Box::new(file))
    };
    let progress = Progress::bytes(format!("reading {name}"), length);
    let value = read(&mut progress.reader(&mut input)).with_context(|| name.clone())?;
    Ok((name, value))
}
