//! The end that listens: the sheets of all processes that are alive.
//!
//! In:  folders with files that anyone of this user may have written.
//! Out: sheets, and what was passed over and why. Bounded in files, bytes and tries; opens no link, waits
//!      for no pipe, and believes no file that belongs to someone else.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::encoding::{LONGEST_SHEET, SheetError, begins_as_sheet};
use crate::figures::FigureSheet;
use crate::names::Named;
use crate::places::{Places, is_ours};

/// Making a sheet takes microseconds; one that is unfinished for so long has no one to finish it.
const UNFINISHED_FOR: Duration = Duration::from_secs(60);

/// Most files of a folder that are looked at.
const MOST_FILES: usize = 4096;

/// Times a sheet is read before it counts as torn: a write takes microseconds, and comes ten times a
/// second.
const TRIES: u32 = 8;

/// The processes that publish.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// What each tells, by ascending number.
    pub sheets: Vec<FigureSheet>,
    /// Files and folders that were passed over.
    pub skipped: Vec<Skipped>,
}

/// A file or a folder that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Where it is.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// The processes of this user that publish in one of these places. Files of processes that are gone
/// are removed.
#[must_use]
pub fn processes(places: &Places) -> Processes {
    let mut found = Processes::default();
    for folder in places.to_read() {
        match folder {
            Ok(folder) => read_folder(folder, &mut found),
            Err(error) => found.skip(&error.path, error.problem.to_string()),
        }
    }
    found.sheets.sort_by_key(|sheet| sheet.pid);
    found
}

impl Processes {
    fn skip(&mut self, path: &Path, reason: impl Into<String>) {
        self.skipped.push(Skipped { path: path.to_owned(), reason: reason.into() });
    }
}

fn read_folder(folder: &Path, found: &mut Processes) {
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(error) => return found.skip(folder, error.to_string()),
    };
    for (number, entry) in entries.enumerate() {
        if number == MOST_FILES {
            return found.skip(folder, format!("it has more than {MOST_FILES} files"));
        }
        // A file that goes while it is looked at is no concern of anyone's.
        let Ok(path) = entry.map(|entry| entry.path()) else { continue };
        match path.file_name().and_then(Named::read) {
            Some(Named::Sheet) => match read(&path) {
                Ok(Some(sheet)) => found.sheets.push(sheet),
                Ok(None) => remove(&path),
                Err(Refused::Gone) => {}
                Err(Refused::Because(reason)) => found.skip(&path, reason),
            },
            // Whoever is asked for what is being made need not hear of what it is not.
            Some(Named::Unfinished) if is_abandoned(&path).unwrap_or(false) => remove(&path),
            _ => {}
        }
    }
}

/// Removes the files of processes that are gone.
pub(crate) fn sweep(folder: &Path) {
    read_folder(folder, &mut Processes::default());
}

fn remove(path: &Path) {
    // Someone else may have been faster.
    let _ = std::fs::remove_file(path);
}

/// Whether a sheet that was being made has no one to finish it any more.
fn is_abandoned(path: &Path) -> Result<bool, Refused> {
    let file = open(path)?;
    let changed = file.metadata()?.modified()?;
    let is_old = changed.elapsed().is_ok_and(|age| age > UNFINISHED_FOR);
    Ok(is_old && !is_held(&file)? && was_made_as_sheet(&file)?)
}

/// Whether a file began as sheets do, or was not begun.
fn was_made_as_sheet(file: &File) -> io::Result<bool> {
    let mut beginning = [0; 8];
    let read = file.read_at(&mut beginning, 0)?;
    Ok(begins_as_sheet(&beginning[..read]))
}

/// Why there is no sheet.
enum Refused {
    /// There is no file any more.
    Gone,
    Because(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            _ => Self::Because(error.to_string()),
        }
    }
}

/// Opens a file of this user.
fn open(path: &Path) -> Result<File, Refused> {
    // A pipe opens at once, and is no file then.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = flags.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(Refused::Because("it is no file".to_owned()));
    }
    if !is_ours(&about) {
        return Err(Refused::Because("it belongs to someone else".to_owned()));
    }
    Ok(file)
}

/// The sheet in a file; none if the process is gone.
fn read(path: &Path) -> Result<Option<FigureSheet>, Refused> {
    let mut file = open(path)?;
    if !is_held(&file)? {
        if was_made_as_sheet(&file)? {
            return Ok(None);
        }
        return Err(Refused::Because(SheetError::NotASheet.to_string()));
    }
    let mut bytes = Vec::with_capacity(4096);
    for _ in 0..TRIES {
        bytes.clear();
        io::Seek::rewind(&mut file)?;
        Read::by_ref(&mut file).take(LONGEST_SHEET as u64).read_to_end(&mut bytes)?;
        match FigureSheet::decode(&bytes) {
            Ok(sheet) => return Ok(Some(sheet)),
            Err(SheetError::Torn) => std::thread::sleep(Duration::from_micros(50)),
            Err(other) => return Err(Refused::Because(other.to_string())),
        }
    }
    Err(Refused::Because(SheetError::Torn.to_string()))
}

/// Whether a publisher has this file locked. The lock that a look takes is gone with the file's
/// closing, and keeps other readers from nothing.
fn is_held(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::Publisher;

    fn here() -> (tempfile::TempDir, Places) {
        let home = tempfile::tempdir().unwrap();
        let places = Places::only(home.path());
        (home, places)
    }

    #[test]
    fn a_published_sheet_is_read_as_it_was_written() {
        let (_home, places) = here();
        let mut publisher = Publisher::create(&places).unwrap();
        let mut sheet = FigureSheet::of_this_process();
        sheet.sampled_us = 77;
        publisher.publish(&sheet).unwrap();
        let found = processes(&places);
        assert_eq!(found.sheets, [sheet]);
        assert!(found.skipped.is_empty(), "{:?}", found.skipped);
    }

    #[test]
    fn a_sheet_that_no_one_holds_is_removed() {
        let (home, places) = here();
        let path = home.path().join("1-1.sheet");
        std::fs::write(&path, FigureSheet::of_this_process().encode(1)).unwrap();
        assert!(processes(&places).sheets.is_empty());
        assert!(!path.exists());
        // Publishers do so too, so that files do not gather where no one ever looks.
        std::fs::write(&path, FigureSheet::of_this_process().encode(1)).unwrap();
        let _publisher = Publisher::create(&places).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_sheet_is_passed_over_with_its_reason() {
        let (home, places) = here();
        let held = |name: &str, bytes: &[u8]| {
            let path = home.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.try_lock().unwrap();
            file
        };
        let mut torn = FigureSheet::of_this_process().encode(1);
        torn[40] ^= 1;
        let files = [
            held("1-1.sheet", b"hello"),
            held("2-1.sheet", &torn),
            held("3-1.sheet", b"TONNAGE\x09 and twenty more bytes"),
            held("4-1.sheet", b""),
            held("5.other", b"not looked at"),
        ];
        symlink("/etc/passwd", home.path().join("6-1.sheet")).unwrap();
        std::fs::create_dir(home.path().join("7-1.sheet")).unwrap();
        let pipe = home.path().join("8-1.sheet");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let found = processes(&places);
        assert!(found.sheets.is_empty());
        let mut reasons: Vec<_> =
            found.skipped.iter().map(|it| (it.path.file_name().unwrap(), &*it.reason)).collect();
        reasons.sort_unstable();
        for (number, text) in [
            (0, "does not begin"),
            (1, "checksum"),
            (2, "version is 9"),
            (3, "does not begin"),
            (4, "symbolic link"),
            (5, "no file"),
            (6, "no file"),
        ] {
            assert!(reasons[number].1.contains(text), "{reasons:?}");
        }
        assert_eq!(reasons.len(), 7);
        drop(files);
    }

    #[test]
    fn an_endless_file_is_read_to_the_bound() {
        let (home, places) = here();
        let path = home.path().join("1-1.sheet");
        let file = File::create(&path).unwrap();
        file.try_lock().unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&FigureSheet::of_this_process().encode(1), 0).unwrap();
        assert_eq!(processes(&places).sheets.len(), 1);
    }

    #[test]
    fn an_unfinished_sheet_is_left_alone_until_it_is_old() {
        let (home, places) = here();
        let path = home.path().join("1-1.new");
        let file = File::create(&path).unwrap();
        assert!(processes(&places).sheets.is_empty() && path.exists());
        let long_ago = std::time::SystemTime::now() - 2 * UNFINISHED_FOR;
        file.set_modified(long_ago).unwrap();
        assert!(processes(&places).sheets.is_empty() && !path.exists());
    }

    #[test]
    fn files_of_others_stay_however_old_and_whoever_looks() {
        let (home, places) = here();
        let long_ago = std::time::SystemTime::now() - 2 * UNFINISHED_FOR;
        let put = |name: &str, bytes: &[u8]| {
            let path = home.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
            path
        };
        let sheet = FigureSheet::of_this_process().encode(1);
        let kept = [
            // Another's name, whatever is inside.
            put("thesis.sheet", b"my thesis"),
            put("thesis.page", b"my thesis"),
            put("nginx.conf.new", b"conf"),
            put("1-1.sheet.new", &sheet),
            put("copy.sheet", &sheet),
            // A name as ours, and something else inside.
            put("1-1.sheet", b"hello"),
            put("1-1.new", b"hello"),
        ];
        let link = home.path().join("2-2.new");
        symlink(&kept[0], &link).unwrap();
        // Of someone who is slow.
        let slow = put("3-3.new", b"");
        let lock = File::options().write(true).open(&slow).unwrap();
        lock.try_lock().unwrap();
        let _publisher = Publisher::create(&places).unwrap();
        let found = processes(&places);
        assert_eq!(found.sheets.len(), 1);
        for path in kept.iter().chain([&link, &slow]) {
            assert!(path.symlink_metadata().is_ok(), "{} was removed", path.display());
        }
        drop(lock);
        let ours = [put("4-4.new", b""), put("5-5.new", &sheet[..5]), put("6-6.sheet", &sheet)];
        // A process that another test starts has the lock too, from its beginning until it runs its own program.
        let begun = std::time::Instant::now();
        while let Some(left) = ours.iter().chain([&slow]).find(|path| path.exists()) {
            assert!(begun.elapsed().as_secs() < 60, "{} was left", left.display());
            let _ = processes(&places);
        }
    }

    #[test]
    fn files_of_another_user_stay() {
        let (home, places) = here();
        let path = home.path().join("1-1.sheet");
        std::fs::write(&path, FigureSheet::of_this_process().encode(1)).unwrap();
        // Only root gives files away.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            return;
        }
        let found = processes(&places);
        assert!(found.skipped[0].reason.contains("someone else"), "{:?}", found.skipped);
        assert!(path.exists());
    }

    #[test]
    fn more_files_than_are_looked_at_are_told() {
        let (home, places) = here();
        for number in 0..=MOST_FILES {
            File::create(home.path().join(format!("{number}.other"))).unwrap();
        }
        let found = processes(&places);
        assert!(found.skipped[0].reason.contains("more than"), "{:?}", found.skipped);
    }
}
