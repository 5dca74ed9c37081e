//! What the program that started a script is told: lines in files, written at once, so that they are there if the
//! script crashes.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folder of the files.
pub const NOTES_VARIABLE: &str = "TONNAGE_FAKE_NOTES";

/// Functions that were called and have no behaviour, in the order of their first calls.
pub const UNKNOWN_FILE: &str = "unknown";

/// What figures rest on that is not known.
pub const GUESSES_FILE: &str = "guesses";

/// What went wrong with reads.
pub const READS_FILE: &str = "reads";

/// Functions by which others than PyTorch asked how much memory there is.
pub const ASKED_FILE: &str = "asked";

/// Processes that obtained memory.
pub const USED_FILE: &str = "used";

static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Lines that were told, as long as nobody else may look.
pub(crate) type Told = MutexGuard<'static, BTreeSet<String>>;

pub(crate) fn told() -> Told {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a line to a file, unless it is there.
pub(crate) fn note(file: &str, line: &str) {
    let Some(folder) = std::env::var_os(NOTES_VARIABLE).map(PathBuf::from) else { return };
    let mut told = told();
    if !told.insert(format!("{file} {line}")) {
        return;
    }
    let opened = OpenOptions::new().create(true).append(true).open(folder.join(file));
    if let Ok(mut opened) = opened {
        // Nobody could be told that nobody can be told.
        let _ = opened.write_all(format!("{line}\n").as_bytes());
    }
}
