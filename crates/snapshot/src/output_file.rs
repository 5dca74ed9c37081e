//! Files that are written whole or not at all, whatever lies at their path.
//!
//! In:  a path as a person gave it, and something that fills the file.
//! Out: the file on the disk, or an error and whatever was there before.
//!
//! | at the path | what is done |
//! | --- | --- |
//! | nothing | the file appears once it is whole |
//! | a regular file | the new one takes its place once it is whole, with its owner and permissions |
//! | a link | it stays; what it leads to, there or not, is treated as above |
//! | a device, a pipe | written to: a file in its place is not what anyone wants |
//! | a folder | refused |
//!
//! A whole file is written under another name in the same folder, flushed to the disk and renamed: a crash leaves
//! the old contents or the new ones.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::per_process::PerProcess;

/// Links that are followed one after the other: as many as Linux follows.
const MOST_LINKS: usize = 40;

/// A file that could not be written. What was at the path before still is.
#[derive(Debug, Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct OutputError {
    /// Where it should have gone.
    pub path: PathBuf,
    /// Why it did not.
    pub source: io::Error,
}

/// A place that a file can go to.
#[derive(Debug)]
pub struct OutputFile {
    /// As it was given.
    path: PathBuf,
    place: Place,
    only_new: bool,
}

#[derive(Debug)]
enum Place {
    /// What is there is written to, and stays what it is.
    Stream(Metadata),
    /// A file is put there.
    File {
        /// Its own path: no link.
        path: PathBuf,
        /// What is there now.
        there: Option<Metadata>,
    },
}

impl OutputFile {
    /// Looks at what lies at a path, and changes nothing.
    ///
    /// # Errors
    ///
    /// If it is a folder, or cannot be looked at.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, OutputError> {
        let path = path.into();
        match Place::of(&path) {
            Ok(place) => Ok(Self { path, place, only_new: false }),
            Err(source) => Err(OutputError { path, source }),
        }
    }

    /// Leaves a file alone that is there already, also one that comes while the new one is written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] if there is something.
    pub fn only_if_new(mut self) -> Result<Self, OutputError> {
        match self.place {
            Place::File { there: None, .. } => {
                self.only_new = true;
                Ok(self)
            }
            _ => Err(self.error(ErrorKind::AlreadyExists.into())),
        }
    }

    /// Refuses to be a file that is read, by whatever name it goes.
    ///
    /// # Errors
    ///
    /// If it is that file.
    pub fn apart_from(self, input: &Metadata) -> Result<Self, OutputError> {
        if self.is(input) {
            let why = "it is the file that is read: name another one";
            return Err(self.error(io::Error::new(ErrorKind::InvalidInput, why)));
        }
        Ok(self)
    }

    /// Whether a file is what lies at the path.
    #[must_use]
    pub fn is(&self, file: &Metadata) -> bool {
        match &self.place {
            Place::Stream(there) | Place::File { there: Some(there), .. } => same_file(there, file),
            Place::File { there: None, .. } => false,
        }
    }

    /// Whether a file could be written here, as far as that shows before it is: one is made beside it, and
    /// removed. What lies at the path is not touched.
    ///
    /// # Errors
    ///
    /// If none can be made.
    pub fn try_out(&self) -> Result<(), OutputError> {
        match &self.place {
            // Only opening them would tell, and that may wait for a reader or begin something.
            Place::Stream(_) => Ok(()),
            Place::File { path, .. } => {
                Unfinished::beside(path).map(drop).map_err(|source| self.error(source))
            }
        }
    }

    /// Lets `fill` write the file. If it fails, what was there stays.
    ///
    /// # Errors
    ///
    /// What `fill` says, or why the file cannot be written.
    pub fn write<T, E: From<OutputError>>(
        &self,
        fill: impl FnOnce(&mut BufWriter<File>) -> Result<T, E>,
    ) -> Result<T, E> {
        let cannot = |source| self.error(source);
        match &self.place {
            Place::Stream(_) => {
                let file = OpenOptions::new().write(true).open(&self.path).map_err(cannot)?;
                let mut out = BufWriter::new(file);
                let done = fill(&mut out)?;
                out.flush().map_err(cannot)?;
                Ok(done)
            }
            Place::File { path, there } => {
                let (unfinished, file) = Unfinished::beside(path).map_err(cannot)?;
                if let Some(there) = there {
                    take_after(&file, there).map_err(cannot)?;
                }
                let mut out = BufWriter::new(file);
                let done = fill(&mut out)?;
                let file = out.into_inner().map_err(|error| cannot(error.into_error()))?;
                // On the disk before it has the name: else a crash could leave the name without the contents.
                file.sync_all().map_err(cannot)?;
                unfinished.finish(path, self.only_new).map_err(cannot)?;
                Ok(done)
            }
        }
    }

    fn error(&self, source: io::Error) -> OutputError {
        OutputError { path: self.path.clone(), source }
    }
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let is_folder =
            || io::Error::new(ErrorKind::IsADirectory, "it is a folder: name a file in it");
        let there = match fs::metadata(path) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if there.as_ref().is_some_and(Metadata::is_dir)
            || path.as_os_str().as_encoded_bytes().ends_with(b"/")
        {
            return Err(is_folder());
        }
        if path.file_name().is_none() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the path names no file"));
        }
        match there {
            Some(there) if !there.is_file() => Ok(Self::Stream(there)),
            there => {
                let path = followed(path)?;
                // An open file that was removed since has a link in /proc, and no place of its own.
                match (fs::metadata(&path), there) {
                    (Ok(found), Some(there)) if !same_file(&found, &there) => {
                        Ok(Self::Stream(there))
                    }
                    (Err(_), Some(there)) => Ok(Self::Stream(there)),
                    (_, there) => Ok(Self::File { path, there }),
                }
            }
        }
    }
}

/// Where a chain of links leads, whether there is something or not.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            // Taken from the folder that the link is in, unless it begins at the root.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            // No link, or nothing.
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("more links lead on than are followed"))
}

/// Whether two descriptions are of one file, by whatever names it was found.
#[cfg(unix)]
#[must_use]
pub fn same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Whether two descriptions are of one file, as far as sizes and times tell.
#[cfg(not(unix))]
#[must_use]
pub fn same_file(a: &Metadata, b: &Metadata) -> bool {
    let about = |it: &Metadata| (it.len(), it.modified().ok(), it.created().ok());
    about(a) == about(b)
}

/// Gives a file the owner, where that is allowed, and the permissions of the one that it will replace.
fn take_after(file: &File, there: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (there.uid(), there.gid()) {
            // Only root may; others replace files by their own, as ever.
            let _ = fchown(file, Some(there.uid()), Some(there.gid()));
        }
    }
    file.set_permissions(there.permissions())
}

/// Paths of files that are not finished: those of this process. A fork has none, and does not wait for what a thread of
/// its parent held.
static UNFINISHED: PerProcess<Mutex<Vec<PathBuf>>> = PerProcess::new();

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what is unfinished of all files that are being written, for whoever ends the program while they are.
/// From then on no file is begun or finished: threads that try wait for the end.
pub fn abandon_unfinished() {
    let list = unfinished();
    for path in list.iter() {
        // What cannot be removed stays behind.
        let _ = fs::remove_file(path);
    }
    std::mem::forget(list);
}

/// A file that is not finished: dropping it removes it.
struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// A new file in the folder of `path`, since a file cannot be renamed from one file system to another.
    fn beside(path: &Path) -> io::Result<(Self, File)> {
        // Held until the file is on the list, so that none is left behind in between.
        let mut list = unfinished();
        let process = std::process::id();
        for attempt in 0_u32.. {
            let hidden = path.with_file_name(format!(".tonnage-{process}-{attempt}.part"));
            match OpenOptions::new().write(true).create_new(true).open(&hidden) {
                Ok(file) => {
                    list.push(hidden.clone());
                    return Ok((Self { path: hidden }, file));
                }
                // Another thread writes to the same folder, or one that was killed did.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Gives it its name.
    fn finish(self, path: &Path, only_new: bool) -> io::Result<()> {
        // Held until it is done: what has its name is not to be removed.
        let mut list = unfinished();
        if only_new {
            link_new(&self.path, path)?;
        } else {
            fs::rename(&self.path, path)?;
        }
        list.retain(|other| *other != self.path);
        drop(list);
        std::mem::forget(self);
        sync_folder(path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut list = unfinished();
        // The error that counts is the one that led here.
        let _ = fs::remove_file(&self.path);
        list.retain(|other| *other != self.path);
    }
}

/// Moves a file to a name that nothing has.
fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // Some file systems have no second names.
        Err(_) if to.symlink_metadata().is_ok() => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

/// Flushes the name too. Folders that cannot be opened or flushed have none to lose, or no way to tell.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn put(path: &Path, text: &str) -> Result<(), OutputError> {
        OutputFile::at(path)?.write(|out| {
            out.write_all(text.as_bytes())
                .map_err(|source| OutputError { path: path.to_owned(), source })
        })
    }

    #[test]
    fn a_failure_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for there in [true, false] {
            let path = folder.path().join("out");
            if there {
                fs::write(&path, "before").unwrap();
            }
            let failed: Result<(), OutputError> = OutputFile::at(&path).unwrap().write(|out| {
                out.write_all(b"half").unwrap();
                Err(OutputError {
                    path: path.clone(),
                    source: io::Error::other("the disk is full"),
                })
            });
            assert!(failed.unwrap_err().to_string().contains("the disk is full"));
            assert_eq!(names(folder.path()), if there { vec!["out"] } else { vec![] });
            if there {
                assert_eq!(fs::read(&path).unwrap(), b"before");
                fs::remove_file(&path).unwrap();
            }
        }
    }

    #[test]
    fn a_file_is_replaced_and_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "a longer text than the new one").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        put(&path, "new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["secret"]);
    }

    #[test]
    fn links_stay_and_what_they_lead_to_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        fs::create_dir(home.join("deep")).unwrap();
        fs::write(home.join("deep/file"), "before").unwrap();
        symlink("deep/file", home.join("one")).unwrap();
        symlink(home.join("one"), home.join("two")).unwrap();
        put(&home.join("two"), "after").unwrap();
        assert_eq!(fs::read(home.join("deep/file")).unwrap(), b"after");
        // One that leads to nothing yet.
        symlink("deep/other", home.join("three")).unwrap();
        put(&home.join("three"), "new").unwrap();
        assert_eq!(fs::read(home.join("deep/other")).unwrap(), b"new");
        for link in ["one", "two", "three"] {
            assert!(home.join(link).symlink_metadata().unwrap().is_symlink(), "{link}");
        }
        symlink("circle", home.join("circle")).unwrap();
        OutputFile::at(home.join("circle")).unwrap_err();
        assert_eq!(names(&home.join("deep")), ["file", "other"]);
    }

    #[test]
    fn a_pipe_is_written_to_and_stays_a_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink(&pipe, &link).unwrap();
        for path in [&pipe, &link] {
            OutputFile::at(path).unwrap().try_out().unwrap();
            let reader = std::thread::spawn({
                let pipe = pipe.clone();
                move || {
                    let mut text = String::new();
                    File::open(pipe).unwrap().read_to_string(&mut text).unwrap();
                    text
                }
            });
            put(path, "through the pipe").unwrap();
            assert_eq!(reader.join().unwrap(), "through the pipe");
            assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        }
        assert_eq!(names(folder.path()), ["link", "pipe"]);
    }

    #[test]
    fn a_device_is_written_to_and_stays_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("null");
        let made = Command::new("mknod").arg(&node).args(["c", "1", "3"]).output().unwrap();
        // Only root makes nodes, and not in every container; elsewhere they cannot be opened.
        if !made.status.success() || OpenOptions::new().write(true).open(&node).is_err() {
            return;
        }
        put(&node, "gone").unwrap();
        assert!(fs::symlink_metadata(&node).unwrap().file_type().is_char_device());
        assert_eq!(names(folder.path()), ["null"]);
    }

    #[test]
    fn folders_are_refused_with_their_path() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new/");
        for path in [folder.path(), Path::new("/"), &new, Path::new("..")] {
            let message = OutputFile::at(path).unwrap_err().to_string();
            assert!(message.contains("it is a folder"), "{message}");
            assert!(message.contains(&path.display().to_string()), "{message}");
        }
        OutputFile::at("").unwrap_err();
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn what_is_read_is_not_written_by_any_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        let input = home.join("input");
        fs::write(&input, "precious").unwrap();
        symlink(&input, home.join("soft")).unwrap();
        fs::hard_link(&input, home.join("hard")).unwrap();
        let about = fs::metadata(&input).unwrap();
        let around = home.join("..").join(home.file_name().unwrap()).join("input");
        for path in [input.clone(), home.join("soft"), home.join("hard"), around] {
            let refused = OutputFile::at(&path).unwrap().apart_from(&about).unwrap_err();
            assert!(refused.to_string().contains("is read"), "{refused}");
        }
        OutputFile::at(home.join("other")).unwrap().apart_from(&about).unwrap();
        assert_eq!(fs::read(&input).unwrap(), b"precious");
    }

    #[test]
    fn only_a_new_file_is_put_where_nothing_may_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let new = || OutputFile::at(&path).and_then(OutputFile::only_if_new);
        // One that comes while it is written is seen too.
        let raced: Result<(), OutputError> = new().unwrap().write(|out| {
            fs::write(&path, "faster").unwrap();
            out.write_all(b"slower").unwrap();
            Ok(())
        });
        assert_eq!(raced.unwrap_err().source.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"faster");
        assert_eq!(new().unwrap_err().source.kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(folder.path()), ["out"]);
        fs::remove_file(&path).unwrap();
        new()
            .unwrap()
            .write(|out| out.write_all(b"new").map_err(|_| unreachable!()))
            .unwrap_or_else(|error: OutputError| panic!("{error}"));
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn to_try_out_touches_nothing_and_finds_what_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "before").unwrap();
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        OutputFile::at(&path).unwrap().try_out().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), changed);
        assert_eq!(names(folder.path()), ["out"]);
        let message = OutputFile::at(folder.path().join("no/out"))
            .unwrap()
            .try_out()
            .unwrap_err()
            .to_string();
        assert!(message.contains("no/out") && message.contains("No such file"), "{message}");
    }

    #[test]
    fn an_open_file_without_a_name_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let open = std::os::fd::AsRawFd::as_raw_fd(&file);
        let link = PathBuf::from(format!("/proc/self/fd/{open}"));
        if !link.exists() {
            return;
        }
        put(&link, "kept").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
        assert!(names(folder.path()).is_empty());
    }
}
