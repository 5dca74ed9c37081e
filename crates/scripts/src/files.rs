//! What a script wrote among files.
//!
//! In:  the journal that `hook/tonnage_files.py` writes inside the script: what was at each path before.
//! Out: a list of what it wrote. Nothing is changed: a script really runs, and what it writes is really written.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file that a script wrote or removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Written {
    /// Where.
    pub path: PathBuf,
    /// What it did.
    pub what: Change,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Change {
    /// It was not there before.
    New,
    /// It was there, and was changed or replaced.
    Changed,
    /// It was there, and is gone.
    Removed,
}

impl Change {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
            Self::Removed => "removed",
        }
    }
}

/// What was at a path.
#[derive(Debug)]
enum Before {
    Nothing,
    /// A folder, or something else that is no file.
    Other,
    /// A file, told from others that have been there by its size and when it was written.
    File(String),
}

/// The changes of one run.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// Where the script writes them down.
    pub(crate) file: PathBuf,
}

impl Journal {
    /// In a folder of the run.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { file: folder.join("journal") }
    }

    /// What was at each path when it was first touched.
    fn read(&self) -> BTreeMap<PathBuf, Before> {
        let text = fs::read(&self.file).unwrap_or_default();
        let mut paths = BTreeMap::new();
        for line in String::from_utf8_lossy(&text).lines() {
            let words: Vec<String> = serde_json::from_str(line).unwrap_or_default();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let (path, before) = match words[..] {
                [path, "nothing"] => (path, Before::Nothing),
                [path, "other"] => (path, Before::Other),
                [path, "file", mark] => (path, Before::File(mark.to_owned())),
                // Cut off, of a script that was ended while it wrote.
                _ => continue,
            };
            paths.entry(PathBuf::from(path)).or_insert(before);
        }
        paths
    }

    /// What was written, as things stand now.
    pub(crate) fn written(&self) -> Vec<Written> {
        let what = |path: &Path, before: &Before| match (before, mark(path)) {
            (Before::Nothing, Some(_)) => Some(Change::New),
            (Before::File(then), Some(now)) if *then == now => None,
            (Before::File(_), Some(_)) => Some(Change::Changed),
            (Before::File(_), None) => Some(Change::Removed),
            // It came and went, or is no file.
            _ => None,
        };
        let paths = self.read().into_iter();
        paths
            .filter_map(|(path, before)| Some(Written { what: what(&path, &before)?, path }))
            .collect()
    }
}

/// What tells whether a file is as it was, in the words of the hook; nothing of what is no file.
fn mark(path: &Path) -> Option<String> {
    let found = path.metadata().ok().filter(fs::Metadata::is_file)?;
    Some(format!("{} {} {}", found.size(), found.mtime(), found.mtime_nsec()))
}

/// What several runs wrote, one after the other: of each file what the first did.
pub(crate) fn joined(mut first: Vec<Written>, second: Vec<Written>) -> Vec<Written> {
    for written in second {
        if !first.iter().any(|it| it.path == written.path) {
            first.push(written);
        }
    }
    first.sort();
    first
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn run_python(script: &str, here: &Path, journal: &Journal) {
        let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hook");
        let script = format!("import tonnage_files\ntonnage_files.install()\n{script}");
        let done = Command::new("python3")
            .args(["-c", &script])
            .current_dir(here)
            .env("PYTHONPATH", hook)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TONNAGE_JOURNAL", &journal.file)
            .output()
            .expect("the tests need python3");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// A folder with something in it, and the journal of a run there.
    fn place() -> (tempfile::TempDir, PathBuf, Journal) {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().join("here");
        for (name, text) in [("a", "first"), ("b", ""), ("out/a", "third"), ("sub/a", "fourth")] {
            let path = here.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let journal = Journal::new(folder.path());
        (folder, here, journal)
    }

    #[test]
    fn what_was_written_is_told() {
        let (_folder, here, journal) = place();
        let script = "import os\nopen('new', 'w').write('x')\nopen('a', 'w').write('other')\nos.remove('sub/a')\n\
                      open('part', 'w').write('z')\nos.replace('part', 'out/a')\nopen('b', 'r+').close()\n\
                      open('gone', 'w')\nos.remove('gone')\n";
        run_python(script, &here, &journal);
        let here = here.canonicalize().unwrap();
        let told = |name: &str, what| Written { path: here.join(name), what };
        let expected = [
            told("a", Change::Changed),
            told("new", Change::New),
            told("out/a", Change::Changed),
            told("sub/a", Change::Removed),
        ];
        assert_eq!(journal.written(), expected);
    }

    #[test]
    fn of_two_runs_the_first_tells_whether_a_file_was_there() {
        let written = |path: &str, what| Written { path: PathBuf::from(path), what };
        let first = vec![written("b", Change::New)];
        let second = vec![written("a", Change::New), written("b", Change::Changed)];
        let both = [written("a", Change::New), written("b", Change::New)];
        assert_eq!(joined(first, second), both);
    }
}
