//! Saving a snapshot to a file, whole or not at all.
//!
//! In:  a path and what the file shall hold; the path's ending says how it is compressed.
//! Out: the file, or an error and whatever was there before.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use thiserror::Error;

use crate::output_file::{OutputError, OutputFile};
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

impl From<OutputError> for SaveError {
    fn from(OutputError { path, source }: OutputError) -> Self {
        Self { path, source }
    }
}

/// Saves a snapshot: compressed if the name ends in `.zst` or `.gz`, else plain, as Python and
/// PyTorch's page read it.
///
/// The file appears whole, as an [`OutputFile`] does.
///
/// # Errors
///
/// If it cannot be written there, or the name ends in `.xz`, which is read but not written.
pub fn save(path: &Path, file: &SnapshotFile) -> Result<(), SaveError> {
    let failed = |source| SaveError { path: path.to_owned(), source };
    let packing = Packing::of(path).map_err(failed)?;
    OutputFile::at(path)?.write(|out| packing.pack(out, |out| write(out, file)).map_err(failed))
}

/// As [`save`], but never in the place of another file.
///
/// # Errors
///
/// As [`save`], and if something is there already.
pub fn save_new(path: &Path, file: &SnapshotFile) -> Result<(), SaveError> {
    let failed = |source| SaveError { path: path.to_owned(), source };
    let packing = Packing::of(path).map_err(failed)?;
    let out = OutputFile::at(path)?.only_if_new()?;
    out.write(|out| packing.pack(out, |out| write(out, file)).map_err(failed))
}

/// Copies a snapshot that PyTorch has written, byte for byte, compressed as [`save`] does.
///
/// # Errors
///
/// As [`save`], and if it cannot be read.
pub fn pack(from: &Path, to: &Path) -> Result<(), SaveError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| SaveError { path, source }
    };
    let packing = Packing::of(to).map_err(failed(to))?;
    let mut input = File::open(from).map_err(failed(from))?;
    OutputFile::at(to)?.write(|out| {
        packing.pack(out, |out| io::copy(&mut input, out).map(drop)).map_err(failed(to))
    })
}

/// Whether a snapshot could be saved there, as far as that shows before there is one. What lies at the path is not
/// touched.
///
/// # Errors
///
/// As [`save`].
pub fn check_save(path: &Path) -> Result<(), SaveError> {
    Packing::of(path).map_err(|source| SaveError { path: path.to_owned(), source })?;
    Ok(OutputFile::at(path)?.try_out()?)
}

/// How a file is compressed.
enum Packing {
    Plain,
    Zstd,
    Gzip,
}

impl Packing {
    /// The one that the path asks for.
    fn of(path: &Path) -> io::Result<Self> {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        match ending.to_str() {
            Some("zst") => Ok(Self::Zstd),
            Some("gz") => Ok(Self::Gzip),
            Some("xz") => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "xz is read but not written; let the name end in .zst, .gz or .pickle",
            )),
            _ => Ok(Self::Plain),
        }
    }

    /// Lets `fill` write what is compressed on the way.
    fn pack(
        &self,
        mut out: impl Write,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Plain => fill(&mut out),
            Self::Zstd => {
                let mut packed =
                    zstd::stream::write::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                packed.include_checksum(true)?;
                fill(&mut packed)?;
                packed.finish().map(drop)
            }
            Self::Gzip => {
                let mut packed = GzEncoder::new(out, flate2::Compression::default());
                fill(&mut packed)?;
                packed.finish().map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_error_names_the_path_and_comes_before_the_work_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = SnapshotFile::default();
        for (name, part) in
            [("none/at/all.pickle", "No such file"), ("a.xz", "not written"), ("", "folder")]
        {
            let path = folder.path().join(name);
            for error in [save(&path, &file), check_save(&path)] {
                let error = error.unwrap_err().to_string();
                assert!(error.contains(name) && error.contains(part), "{error}");
            }
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_checked_is_not_touched_and_what_is_saved_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.pickle");
        fs::write(&path, "precious").unwrap();
        check_save(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        save(&path, &SnapshotFile::default()).unwrap();
        assert_eq!(crate::open(&path).unwrap(), SnapshotFile::default());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
