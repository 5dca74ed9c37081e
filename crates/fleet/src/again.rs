//! One file of a fleet, read again: for whoever wants to see all of it.
//!
//! In:  its [`Row`], and where it lies.
//! Out: the snapshot, if it is still the file that the row is about; else what has become of it, in a sentence.
//!
//! Nothing is concluded from it here: the row stays as it is.

use std::path::Path;

use tonnage_replay::Until;
use tonnage_snapshot::SnapshotFile;

use crate::facts::Row;
use crate::look::{LookOptions, read_whole};
use crate::source::{Found, version};

/// Reads the file of a row; `found` is where it was found, if the row is not of an earlier run.
///
/// # Errors
///
/// If the file is gone, is another one by now, or cannot be read.
pub fn read_again(
    row: &Row,
    found: Option<&Found>,
    options: &LookOptions,
    until: &Until,
) -> Result<SnapshotFile, String> {
    let by_address = Found::at(&row.address);
    let file = found.unwrap_or(&by_address);
    if !file.is_in_storage() {
        check(row, &file.path)?;
    }
    let (read_as, snapshot) = read_whole(file, options, until);
    // What was looked at may have been told by nothing.
    match read_as {
        Some(read_as) if !row.version.is_empty() && is_other(row, &read_as.0, read_as.1) => {
            Err(changed())
        }
        _ => snapshot.map_err(|unread| unread.why),
    }
}

/// Whether a file of this machine is there, and is the one that was looked at.
fn check(row: &Row, path: &Path) -> Result<(), String> {
    let about = std::fs::metadata(path).map_err(|error| {
        let from = if path.is_relative() {
            "; its address is relative to the folder in which it was looked at: start the command there"
        } else {
            ""
        };
        format!("cannot open it: {error}{from}")
    })?;
    // Reading a pipe would never end.
    if !about.is_file() {
        return Err("this is no file any more".to_owned());
    }
    match !row.version.is_empty() && is_other(row, &version(&about), about.len()) {
        true => Err(changed()),
        false => Ok(()),
    }
}

fn is_other(row: &Row, version: &str, size: u64) -> bool {
    row.version != version || row.size.is_some_and(|it| it != size)
}

fn changed() -> String {
    "it has changed since it was looked at: start the command again on the files to look at it anew"
        .to_owned()
}
