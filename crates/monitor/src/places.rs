//! Folders in which sheets lie: memory that processes share, and where only their user writes.
//!
//! In:  the environment.
//! Out: folders that were looked at and are safe, or what is wrong with them.
//!
//! A publisher takes the first folder that it can have; a reader looks into all, since a process that
//! was started by a service or a container may have another environment than the terminal.

use std::fs::{DirBuilder, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use thiserror::Error;

/// A folder that cannot be used for sheets.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct PlaceError {
    /// The folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: PlaceProblem,
}

/// What is wrong with a folder.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlaceProblem {
    /// It is a link or a file.
    #[error("it is no folder: remove it, or name another with TONNAGE_MONITOR_DIR")]
    NoFolder,
    /// It belongs to this user, and not to the one who asks.
    #[error(
        "it belongs to user {0}, who could change what is published there: name another folder with TONNAGE_MONITOR_DIR"
    )]
    Owner(u32),
    /// Others may write to it.
    #[error(
        "others may write to it: chmod 700 it, or name another folder with TONNAGE_MONITOR_DIR"
    )]
    Open,
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PlaceProblem {
    fn of(self, folder: &Path) -> PlaceError {
        PlaceError { path: folder.to_owned(), problem: self }
    }
}

/// Folders in which sheets may lie, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    folders: Vec<PathBuf>,
    /// Where a publisher may write: that many of the first.
    to_publish: usize,
}

impl Places {
    /// One folder and no other. It is made if it is not there; what it lies in must be.
    #[must_use]
    pub fn only(folder: impl Into<PathBuf>) -> Self {
        Self { folders: vec![folder.into()], to_publish: 1 }
    }

    /// What `TONNAGE_MONITOR_DIR` names; otherwise `tonnage` in `$XDG_RUNTIME_DIR`, and `tonnage-UID` in
    /// `/dev/shm` and in the folder for temporary files.
    #[must_use]
    pub fn from_env() -> Self {
        let set = |name| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        match set("TONNAGE_MONITOR_DIR") {
            Some(folder) => Self::only(folder),
            None => Self::usual(set("XDG_RUNTIME_DIR"), geteuid().as_raw()),
        }
    }

    fn usual(runtime: Option<PathBuf>, user: u32) -> Self {
        let own = format!("tonnage-{user}");
        let runtime = runtime.map(|it| it.join("tonnage"));
        let mut folders: Vec<_> = runtime.into_iter().collect();
        folders.push(Path::new("/dev/shm").join(&own));
        folders.push(std::env::temp_dir().join(&own));
        let to_publish = folders.len();
        // Of processes that have what this one lacks.
        let seldom =
            [PathBuf::from(format!("/run/user/{user}/tonnage")), Path::new("/tmp").join(&own)];
        for folder in seldom {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        Self { folders, to_publish }
    }

    /// The first folder that can be had, made if need be.
    pub(crate) fn to_publish(&self) -> Result<&Path, Vec<PlaceError>> {
        let mut refused = Vec::new();
        for folder in &self.folders[..self.to_publish] {
            match make(folder).and_then(|()| check(folder)) {
                Ok(()) => return Ok(folder),
                Err(problem) => refused.push(problem.of(folder)),
            }
        }
        Err(refused)
    }

    /// The folders that are there, each or what is wrong with it.
    pub(crate) fn to_read(&self) -> impl Iterator<Item = Result<&Path, PlaceError>> {
        self.folders.iter().filter_map(|folder| match check(folder) {
            Ok(()) => Some(Ok(folder.as_path())),
            Err(PlaceProblem::Io(error)) if error.kind() == ErrorKind::NotFound => None,
            Err(problem) => Some(Err(problem.of(folder))),
        })
    }
}

fn make(folder: &Path) -> Result<(), PlaceProblem> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

/// What the folder lies in keeps others from putting another in its place: runtime folders belong to
/// their user, and from `/dev/shm` and `/tmp` only the owner removes.
fn check(folder: &Path) -> Result<(), PlaceProblem> {
    // A link is not followed: it would be someone else's say where files go.
    let found = folder.symlink_metadata()?;
    if !found.is_dir() {
        return Err(PlaceProblem::NoFolder);
    }
    if !is_ours(&found) {
        return Err(PlaceProblem::Owner(found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(PlaceProblem::Open);
    }
    Ok(())
}

/// Whether a file belongs to the user who asks.
pub(crate) fn is_ours(file: &Metadata) -> bool {
    file.uid() == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_is_made_for_its_user_alone() {
        let home = tempfile::tempdir().unwrap();
        let places = Places::only(home.path().join("tonnage"));
        assert_eq!(places.to_read().count(), 0, "there is none yet, and that is no error");
        let folder = places.to_publish().unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(places.to_publish().unwrap(), folder, "one that is there is taken");
        assert_eq!(places.to_read().count(), 1);
    }

    #[test]
    fn links_files_and_folders_that_others_write_to_are_refused_with_a_remedy() {
        let home = tempfile::tempdir().unwrap();
        let (own, link) = (home.path().join("own"), home.path().join("link"));
        std::fs::create_dir(&own).unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let file = home.path().join("file");
        std::fs::write(&file, "").unwrap();
        let open = home.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        for (path, text) in [(link, "no folder"), (file, "no folder"), (open, "others may write")] {
            let places = Places::only(&path);
            let refused = places.to_publish().unwrap_err();
            assert!(refused[0].to_string().contains(text), "{}", refused[0]);
            assert!(refused[0].to_string().contains("TONNAGE_MONITOR_DIR"), "{}", refused[0]);
            assert!(places.to_read().all(|it| it.is_err()));
        }
    }

    #[test]
    fn a_folder_of_someone_else_is_refused() {
        if geteuid().as_raw() == 0 {
            let home = tempfile::tempdir().unwrap();
            let folder = home.path().join("theirs");
            std::fs::create_dir(&folder).unwrap();
            std::os::unix::fs::chown(&folder, Some(12_345), None).unwrap();
            let error = check(&folder).unwrap_err();
            assert!(error.to_string().contains("belongs to user 12345"), "{error}");
        } else {
            // Only root gives folders away; those of root are there already.
            assert!(matches!(check(Path::new("/")), Err(PlaceProblem::Owner(0))));
        }
    }

    #[test]
    fn the_runtime_folder_comes_first_and_no_folder_twice() {
        let places = Places::usual(Some("/run/user/7".into()), 7);
        assert_eq!(places.folders[0], Path::new("/run/user/7/tonnage"));
        assert_eq!(places.folders[1], Path::new("/dev/shm/tonnage-7"));
        let mut once = places.folders.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), places.folders.len());
        let without = Places::usual(None, 7);
        assert_eq!(without.folders[0], Path::new("/dev/shm/tonnage-7"));
        // A reader looks where it would not publish.
        assert!(without.folders[without.to_publish..].contains(&"/run/user/7/tonnage".into()));
    }

    #[test]
    fn the_next_folder_serves_where_the_first_cannot_be_had() {
        let home = tempfile::tempdir().unwrap();
        let folders = vec![home.path().join("no/such/folder"), home.path().join("second")];
        let places = Places { folders, to_publish: 2 };
        assert!(places.to_publish().unwrap().ends_with("second"));
    }
}
