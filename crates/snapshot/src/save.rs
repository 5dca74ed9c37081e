//! Saving a snapshot to a file, whole or not at all.
//!
//! In:  a path and what the file shall hold; the path's ending says how it is compressed.
//! Out: the file, or an error and whatever was there before.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use thiserror::Error;

use crate::snapshot_file::SnapshotFile;
use crate::write::write;

/// A snapshot that could not be saved. What was at the path before still is.
#[derive(Debug, Error)]
#[error("cannot save the snapshot as {}: {source}", path.display())]
pub struct SaveError {
    /// Where it should have gone.
    pub path: PathBuf,
    /// Why it did not.
    pub source: io::Error,
}

/// Saves a snapshot: compressed if the name ends in `.zst` or `.gz`, else plain, as Python and
/// PyTorch's page read it.
///
/// The file appears whole: it is written under another name beside its place, and then renamed.
///
/// # Errors
///
/// If it cannot be written there, or the name ends in `.xz`, which is read but not written.
pub fn save(path: &Path, file: &SnapshotFile) -> Result<(), SaveError> {
    replace(path, |out| compress(path, out, file))
        .map_err(|source| SaveError { path: path.to_owned(), source })
}

/// Writes the snapshot in the form that the path asks for.
fn compress(path: &Path, out: &File, file: &SnapshotFile) -> io::Result<()> {
    let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
    match ending.to_str() {
        Some("zst") => {
            let mut packed =
                zstd::stream::write::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
            packed.include_checksum(true)?;
            write(&mut packed, file)?;
            packed.finish().map(drop)
        }
        Some("gz") => {
            let mut packed = GzEncoder::new(out, flate2::Compression::default());
            write(&mut packed, file)?;
            packed.finish().map(drop)
        }
        Some("xz") => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "xz is read but not written; let the name end in .zst, .gz or .pickle",
        )),
        _ => write(out, file),
    }
}

/// Replaces the file at `path` by what `fill` writes; leaves it alone if that fails.
fn replace(path: &Path, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    // A link stays, and what it leads to is replaced.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // Pipes and terminals are written to: a file in their place is not what anyone wants.
    if fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        let mut out = OpenOptions::new().write(true).open(path)?;
        return fill(&out).and_then(|()| out.flush());
    }
    let (temporary, out) = beside(path)?;
    // On the disk before it has the name: else a crash could leave the name without the contents.
    let done = fill(&out).and_then(|()| out.sync_all());
    let done = done.and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        // The error that counts is the first one.
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// A new file in the same folder, since a file cannot be renamed from one file system to another.
fn beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
    };
    let process = std::process::id();
    for attempt in 0_u32.. {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{process}-{attempt}.part"));
        let temporary = path.with_file_name(hidden);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            // Another thread saves to the same place, or one that was killed did.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_failure_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.pickle");
        fs::write(&path, "before").unwrap();
        let failed = replace(&path, |mut out| {
            out.write_all(b"half")?;
            Err(io::Error::other("the disk is full"))
        });
        assert!(failed.unwrap_err().to_string().contains("the disk is full"));
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(names(folder.path()), ["snapshot.pickle"]);
    }

    #[test]
    fn a_file_is_replaced_and_a_link_to_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, "before").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, |mut out| out.write_all(b"after")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn what_is_no_file_is_written_to_and_stays_what_it_is() {
        replace(Path::new("/dev/null"), |mut out| out.write_all(b"gone")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn an_error_names_the_path() {
        let folder = tempfile::tempdir().unwrap();
        for (name, part) in [("none/at/all.pickle", "No such file"), ("a.xz", "not written")] {
            let path = folder.path().join(name);
            let error = save(&path, &SnapshotFile::default()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(part), "{error}");
        }
        assert!(save(folder.path(), &SnapshotFile::default()).is_err());
        assert!(names(folder.path()).is_empty());
    }
}
