//! The end that tells: a file that holds one sheet, for as long as its process lives.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::figures::FigureSheet;
use crate::names::Named;
use crate::places::{PlaceError, Places};
use crate::reader::sweep;

/// Figures that cannot be published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// There is no folder for them.
    #[error("there is no folder to publish in: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Places(Vec<PlaceError>),
    /// The file cannot be made or written.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is no thread to look at the figures.
    #[error("cannot start a thread that looks at the figures: {0}")]
    Thread(io::Error),
}

/// A file with the sheet of this process. Dropping it removes the file.
#[derive(Debug)]
pub struct Publisher {
    /// Locked for as long as it is open.
    file: File,
    path: PathBuf,
    /// The process that made it: a child that was forked off has a copy, and must not remove the file.
    process: u32,
    /// Sheets written.
    written: u64,
}

impl Publisher {
    /// Makes the file, readable by its user alone, with a sheet that has no devices yet. Files of
    /// processes that are gone are removed.
    ///
    /// # Errors
    ///
    /// If no folder can be had, or no file made in it.
    pub fn create(places: &Places) -> Result<Self, PublishError> {
        let folder = places.to_publish().map_err(PublishError::Places)?;
        sweep(folder);
        let process = std::process::id();
        // No other publisher ever had the name: a reader that removes a dead one's file removes no
        // live one's.
        let moment = crate::now_us();
        let path = folder.join(Named::Sheet.of(process, moment));
        let unfinished = folder.join(Named::Unfinished.of(process, moment));
        let made = make(&unfinished, &path, |file| {
            file.write_all_at(&FigureSheet::of_this_process().encode(1), 0)
        });
        match made {
            Ok(file) => Ok(Self { file, path, process, written: 1 }),
            Err(error) => Err(PublishError::Io { path, error }),
        }
    }

    /// Replaces the sheet.
    ///
    /// # Errors
    ///
    /// If the system refuses: readers may find the sheet torn then, until the next one.
    pub fn publish(&mut self, sheet: &FigureSheet) -> Result<(), PublishError> {
        self.written += 1;
        let written = self.file.write_all_at(&sheet.encode(self.written), 0);
        written.map_err(|error| PublishError::Io { path: self.path.clone(), error })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // If it stays, it is no longer locked, and whoever comes next removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a file that has its lock and its contents before it has its name, so that no reader takes it
/// for a dead process's.
fn make(
    unfinished: &Path,
    path: &Path,
    fill: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<File> {
    // `create_new` follows no link and opens nothing that is there.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(unfinished)?;
    let locked = file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => io::Error::other("someone else has locked it"),
    });
    let done = locked.and_then(|()| fill(&file)).and_then(|()| std::fs::rename(unfinished, path));
    if let Err(error) = done {
        // What cannot be removed either is swept later.
        let _ = std::fs::remove_file(unfinished);
        return Err(error);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_file_is_for_its_user_alone_and_goes_with_the_publisher() {
        let home = tempfile::tempdir().unwrap();
        let places = Places::only(home.path().join("tonnage"));
        let publisher = Publisher::create(&places).unwrap();
        let path = publisher.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        drop(publisher);
        assert!(!path.exists());
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn several_publishers_of_one_process_do_not_share_a_file() {
        let home = tempfile::tempdir().unwrap();
        let places = Places::only(home.path().join("tonnage"));
        let all: Vec<_> = (0..3).map(|_| Publisher::create(&places).unwrap()).collect();
        assert_eq!(home.path().join("tonnage").read_dir().unwrap().count(), all.len());
    }

    #[test]
    fn a_file_that_cannot_be_filled_is_not_left_behind() {
        let home = tempfile::tempdir().unwrap();
        let (unfinished, path) = (home.path().join("a.new"), home.path().join("a.sheet"));
        let error = make(&unfinished, &path, |_| Err(io::Error::other("full"))).unwrap_err();
        assert_eq!(error.to_string(), "full");
        assert_eq!(home.path().read_dir().unwrap().count(), 0);
    }
}
