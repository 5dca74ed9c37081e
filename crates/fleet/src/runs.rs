//! What a dataset keeps of simulated ranks, which left no file anywhere else.
//!
//! ```text
//! FOLDER/snapshots/NAME.pickle.zst  the history of a run, as PyTorch wrote it
//! FOLDER/snapshots/NAME.json        what else is known of it, in the words of whoever ran it
//! ```
//!
//! The second says that the first is ours, if it has what every run has ([`Ours`]). It is written first, when an older first is
//! gone: where both are there, they are of one run, whenever a run was killed. Any other file is somebody else's, whatever it is
//! called, and so is one that has no such companion: they are left alone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use tonnage_snapshot::{OutputFile, pack};

use crate::dataset::DatasetError;
use crate::source::Found;

/// The folder.
const SNAPSHOTS: &str = "snapshots";

const SNAPSHOT: &str = "pickle.zst";
const ABOUT: &str = "json";

/// What is known of a run takes less: chosen. The guesses of a long program are many.
const LONGEST: u64 = 64 << 20;

/// What is known of every run: what it is asked for again by, and how it ended.
#[derive(Deserialize)]
struct Ours {
    #[serde(rename = "key")]
    _key: IgnoredAny,
    #[serde(rename = "verdict")]
    _verdict: IgnoredAny,
}

/// Whose a file beside a snapshot is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    /// It ends too soon, as a machine leaves it that stops while it is written: another run takes its place.
    Half,
    Theirs,
    Nobodys,
}

/// Runs of simulated ranks.
#[derive(Clone, Debug)]
pub struct Runs {
    folder: PathBuf,
}

impl Runs {
    /// Of a dataset's folder.
    pub(crate) fn of(folder: &Path) -> Self {
        Self { folder: folder.join(SNAPSHOTS) }
    }

    fn path(&self, name: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{name}.{ending}"))
    }

    /// What the snapshot of a run goes by, there or not.
    #[must_use]
    pub fn address(&self, name: &str) -> String {
        self.path(name, SNAPSHOT).to_string_lossy().into_owned()
    }

    /// The snapshot of a run, if there is one.
    #[must_use]
    pub fn found(&self, name: &str) -> Option<Found> {
        Found::file(&self.path(name, SNAPSHOT)).ok()
    }

    /// What is known of a run beside its snapshot; none if nothing is kept, or it cannot be read.
    #[must_use]
    pub fn about(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        let file = File::open(self.path(name, ABOUT)).ok()?;
        file.take(LONGEST).read_to_string(&mut text).ok().map(|_| text)
    }

    /// Whose the file of this name is.
    fn whose(&self, name: &str) -> Whose {
        match self.about(name).map(|text| serde_json::from_str::<Ours>(&text)) {
            Some(Ok(_)) => Whose::Ours,
            Some(Err(error)) if error.is_eof() => Whose::Half,
            Some(Err(_)) => Whose::Theirs,
            None if self.path(name, ABOUT).exists() => Whose::Theirs,
            None => Whose::Nobodys,
        }
    }

    /// Keeps a run in the place of an older one: what is known of it, and its snapshot, if it has one.
    ///
    /// # Errors
    ///
    /// If it cannot be written, a file of this name is somebody else's, or more is known of it than is read again.
    pub fn keep(
        &self,
        name: &str,
        about: &str,
        snapshot: Option<&Path>,
    ) -> Result<(), DatasetError> {
        let (to, beside) = (self.path(name, SNAPSHOT), self.path(name, ABOUT));
        if about.len() as u64 > LONGEST {
            let why =
                format!("{} bytes, and no more than {LONGEST} are kept of a run", about.len());
            return Err(io(&beside)(std::io::Error::new(ErrorKind::InvalidData, why)));
        }
        std::fs::create_dir_all(&self.folder).map_err(io(&self.folder))?;
        match self.whose(name) {
            Whose::Ours | Whose::Half => remove(&to)?,
            Whose::Theirs => return Err(DatasetError::NotOurs(beside)),
            Whose::Nobodys if to.exists() => return Err(DatasetError::NotOurs(to)),
            Whose::Nobodys => {}
        }
        OutputFile::at(&beside)?
            .write(|out| out.write_all(about.as_bytes()).map_err(io(&beside)))?;
        match snapshot {
            // As it was kept elsewhere.
            Some(from) if from.extension().is_some_and(|it| it == "zst") => {
                let mut input = File::open(from).map_err(io(from))?;
                OutputFile::at(&to)?
                    .write(|out| std::io::copy(&mut input, out).map(drop).map_err(io(&to)))
            }
            Some(from) => Ok(pack(from, &to)?),
            None => Ok(()),
        }
    }

    /// Removes a run, if there is one.
    ///
    /// # Errors
    ///
    /// If it cannot be removed.
    pub fn forget(&self, name: &str) -> Result<(), DatasetError> {
        if self.whose(name) != Whose::Ours {
            return Ok(());
        }
        remove(&self.path(name, SNAPSHOT))?;
        remove(&self.path(name, ABOUT))
    }

    /// Whether there ever was a run.
    #[must_use]
    pub fn are_there(&self) -> bool {
        self.folder.is_dir()
    }

    /// Names of the runs that there are.
    ///
    /// # Errors
    ///
    /// If the folder cannot be looked into.
    pub fn names(&self) -> Result<BTreeSet<String>, DatasetError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(io(&self.folder)(error)),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            let entry = entry.map_err(io(&self.folder))?.file_name();
            let name = entry.to_str().and_then(|it| it.strip_suffix(&format!(".{ABOUT}")));
            let is_ours = |name: &&str| is_rank_name(name) && self.whose(name) == Whose::Ours;
            names.extend(name.filter(is_ours).map(str::to_owned));
        }
        Ok(names)
    }

    /// Removes runs of other names.
    ///
    /// # Errors
    ///
    /// If one cannot be removed.
    pub fn leave_only(&self, names: &BTreeSet<String>) -> Result<(), DatasetError> {
        self.names()?.difference(names).try_for_each(|name| self.forget(name))
    }
}

/// Whether runs have such names: `dp3_pp1_rank_00013`.
fn is_rank_name(name: &str) -> bool {
    let rank = name.rsplit_once("rank_").filter(|it| it.0.is_empty() || it.0.ends_with('_'));
    rank.is_some_and(|(_, rank)| rank.len() >= 5 && rank.bytes().all(|it| it.is_ascii_digit()))
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> DatasetError {
    let path = path.to_owned();
    move |source| DatasetError::Io { path: path.clone(), source }
}

/// A file that is gone is as wanted.
fn remove(path: &Path) -> Result<(), DatasetError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of a run that ended so.
    fn about(verdict: &str) -> String {
        format!(r#"{{"key": "k", "verdict": "{verdict}", "text": ""}}"#)
    }

    fn kept(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder.join(SNAPSHOTS)).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_run_takes_the_place_of_an_older_one_and_of_nobody_elses_file() {
        let folder = tempfile::tempdir().unwrap();
        let (runs, from) = (Runs::of(folder.path()), folder.path().join("dump.pickle"));
        std::fs::write(&from, "history").unwrap();
        runs.keep("rank_00001", &about("one"), Some(&from)).unwrap();
        assert_eq!(kept(folder.path()), ["rank_00001.json", "rank_00001.pickle.zst"]);
        assert_eq!(runs.about("rank_00001").unwrap(), about("one"));
        let found = runs.found("rank_00001").unwrap();
        assert_eq!(found.address, runs.address("rank_00001"));
        // What is packed already stays as it is.
        runs.keep("rank_00002", &about("two"), Some(&found.path)).unwrap();
        let bytes = |name: &str| std::fs::read(runs.found(name).unwrap().path).unwrap();
        assert_eq!(bytes("rank_00001"), bytes("rank_00002"));
        // A run without a history has none of an older one.
        runs.keep("rank_00001", &about("failed"), None).unwrap();
        assert!(runs.found("rank_00001").is_none());
        let theirs = folder.path().join("snapshots/rank_00003.pickle.zst");
        std::fs::write(&theirs, "mine").unwrap();
        let error = runs.keep("rank_00003", &about("three"), Some(&from)).unwrap_err().to_string();
        assert!(error.contains("rank_00003.pickle.zst is no file of a simulated rank"), "{error}");
        assert_eq!(std::fs::read(&theirs).unwrap(), b"mine");
    }

    #[test]
    fn what_would_not_be_read_again_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Runs::of(folder.path());
        let longest = usize::try_from(LONGEST).unwrap();
        runs.keep("rank_00001", &" ".repeat(longest), None).unwrap();
        assert_eq!(runs.about("rank_00001").unwrap().len(), longest);
        let error = runs.keep("rank_00002", &" ".repeat(longest + 1), None).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("rank_00002.json: 67108865 bytes, and no more than"), "{said}");
        assert_eq!(kept(folder.path()), ["rank_00001.json"]);
    }

    #[test]
    fn runs_of_other_names_go_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let (runs, from) = (Runs::of(folder.path()), folder.path().join("dump.pickle"));
        runs.leave_only(&BTreeSet::new()).unwrap();
        assert!(!runs.are_there());
        std::fs::write(&from, "history").unwrap();
        for name in ["dp0_rank_00000", "dp1_rank_00001"] {
            runs.keep(name, &about("fits"), Some(&from)).unwrap();
        }
        for theirs in ["notes.json", "rank_00007.pickle.zst", "rank_1.json"] {
            std::fs::write(folder.path().join("snapshots").join(theirs), "mine").unwrap();
        }
        let names = ["dp0_rank_00000", "dp1_rank_00001"].map(str::to_owned);
        assert_eq!((runs.are_there(), runs.names().unwrap()), (true, names.into()));
        runs.leave_only(&["dp1_rank_00001".to_owned()].into()).unwrap();
        let left = [
            "dp1_rank_00001.json",
            "dp1_rank_00001.pickle.zst",
            "notes.json",
            "rank_00007.pickle.zst",
            "rank_1.json",
        ];
        assert_eq!(kept(folder.path()), left);
    }

    #[test]
    fn what_is_called_as_a_run_and_is_none_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (runs, from) = (Runs::of(folder.path()), folder.path().join("dump.pickle"));
        std::fs::write(&from, "history").unwrap();
        let snapshots = folder.path().join("snapshots");
        std::fs::create_dir(&snapshots).unwrap();
        let theirs = [r#"{"loss": 2.5}"#, "rank 1", "[1]", r#"{"key": "k"}"#];
        for (rank, text) in theirs.iter().enumerate() {
            std::fs::write(snapshots.join(format!("rank_0000{rank}.json")), text).unwrap();
            std::fs::write(snapshots.join(format!("rank_0000{rank}.pickle.zst")), text).unwrap();
        }
        let before = kept(folder.path());
        assert!(runs.names().unwrap().is_empty());
        runs.leave_only(&BTreeSet::new()).unwrap();
        for rank in 0..theirs.len() {
            let name = format!("rank_0000{rank}");
            runs.forget(&name).unwrap();
            let error = runs.keep(&name, &about("fits"), Some(&from)).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}.json is no file of a simulated")), "{error}");
        }
        assert_eq!(kept(folder.path()), before);
        for (rank, text) in theirs.iter().enumerate() {
            let name = snapshots.join(format!("rank_0000{rank}.json"));
            assert_eq!(std::fs::read_to_string(name).unwrap(), *text);
        }
        // Half of a run gives way to a whole one.
        std::fs::write(snapshots.join("rank_00000.json"), r#"{"key": "#).unwrap();
        runs.keep("rank_00000", &about("fits"), Some(&from)).unwrap();
        assert_eq!(runs.about("rank_00000").unwrap(), about("fits"));
    }
}
