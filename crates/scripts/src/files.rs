//! What a script wrote among files.
//!
//! In:  the journal that `hook/tonnage_files.py` writes inside the script: what was at each path before.
//! Out: a list of what it wrote. Nothing is changed: a script really runs, and what it writes is really written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file that a script wrote or removed, or a folder that it made.
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

/// What the hook says of a file that an earlier run wrote.
const MET: &str = "met";

/// The changes of one run.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// Where the script writes them down.
    pub(crate) file: PathBuf,
    /// When the run began, since the epoch.
    began: Duration,
}

impl Journal {
    /// In a folder of the run.
    pub(crate) fn new(folder: &Path) -> Self {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { file: folder.join("journal"), began }
    }

    /// Its lines, each a path and what is said of it.
    fn lines(&self) -> Vec<Vec<String>> {
        let text = fs::read(&self.file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_default()).collect()
    }

    /// Files of an earlier run that the script read before any process of it wrote them itself, each with the line that did.
    pub(crate) fn met(&self) -> Vec<(PathBuf, String)> {
        let mut seen = BTreeSet::new();
        let mut met = Vec::new();
        for words in self.lines() {
            let [path, what, rest @ ..] = &words[..] else { continue };
            let is_first = seen.insert(path.clone());
            if let ([line], MET, true) = (rest, &what[..], is_first) {
                met.push((PathBuf::from(path), line.clone()));
            }
        }
        met
    }

    /// What was at each path when it was first touched.
    fn read(&self) -> BTreeMap<PathBuf, Before> {
        let mut paths = BTreeMap::new();
        for words in self.lines() {
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
            (Before::Nothing, None) if path.is_dir() => Some(Change::New),
            (Before::File(then), Some(now)) if *then == now => None,
            (Before::File(_), Some(_)) => Some(Change::Changed),
            (Before::File(then), None) if !self.is_passing(path, then) => Some(Change::Removed),
            // It came and went, or is neither a file nor a new folder.
            _ => None,
        };
        let paths = self.read().into_iter();
        paths
            .filter_map(|(path, before)| Some(Written { what: what(&path, &before)?, path }))
            .collect()
    }
}

impl Journal {
    /// Whether something else than Python, such as a compiler, wrote a temporary file while the script ran.
    fn is_passing(&self, path: &Path, mark: &str) -> bool {
        // Paths are told without links.
        let temporary = std::env::temp_dir();
        if !path.starts_with(temporary.canonicalize().unwrap_or(temporary)) {
            return false;
        }
        let mut words = mark.split(' ').skip(1).map(str::parse::<u64>);
        let (Some(Ok(seconds)), Some(Ok(rest))) = (words.next(), words.next()) else {
            return false;
        };
        Duration::from_secs(seconds).saturating_add(Duration::from_nanos(rest)) > self.began
    }
}

/// What tells whether a file is as it was, in the words of the hook; nothing of what is no file.
fn mark(path: &Path) -> Option<String> {
    let found = path.metadata().ok().filter(fs::Metadata::is_file)?;
    Some(format!("{} {} {}", found.size(), found.mtime(), found.mtime_nsec()))
}

/// What several runs wrote, one after the other: of each file what the first did.
#[must_use]
pub fn joined(first: Vec<Written>, second: Vec<Written>) -> Vec<Written> {
    let mut all = BTreeMap::new();
    for written in first.into_iter().chain(second) {
        all.entry(written.path).or_insert(written.what);
    }
    all.into_iter().map(|(path, what)| Written { path, what }).collect()
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
    fn what_others_made_meanwhile_and_python_removed_is_no_news() {
        let (_folder, here, journal) = place();
        let script = "import os\nassert os.system('echo x > part.o') == 0\nos.remove('part.o')\nos.remove('a')\n";
        run_python(script, &here, &journal);
        let path = here.canonicalize().unwrap().join("a");
        // What lay there was written a moment before the run began, as far as clocks tell.
        let earlier = Journal { began: journal.began + Duration::from_secs(9), ..journal.clone() };
        assert!(earlier.written().contains(&Written { path, what: Change::Removed }));
        assert_eq!(journal.written().iter().filter(|it| it.path.ends_with("part.o")).count(), 0);
    }

    #[test]
    fn folders_that_were_made_are_told() {
        let (_folder, here, journal) = place();
        let script = "import os\nos.mkdir('made')\nos.makedirs('deep/er')\nos.makedirs('out', exist_ok=True)\n\
                      os.mkdir('gone')\nos.rmdir('gone')\n";
        run_python(script, &here, &journal);
        let here = here.canonicalize().unwrap();
        let told = |name: &str| Written { path: here.join(name), what: Change::New };
        assert_eq!(journal.written(), ["deep", "deep/er", "made"].map(told));
    }

    #[test]
    fn what_an_earlier_run_wrote_is_noticed_when_it_is_read() {
        let (folder, here, journal) = place();
        let here = here.canonicalize().unwrap();
        let before = folder.path().join("before");
        let paths = ["a", "b", "out/a", "sub/a"].map(|name| here.join(name));
        fs::write(&before, serde_json::to_string(&paths).unwrap()).unwrap();
        let script = format!(
            "import os, pathlib\ntonnage_files.KEEPER.wrote_before({:?})\nopen('a').read()\nopen('a').read()\nopen('b', 'w').close()\n\
             open('b').read()\npathlib.Path('out/a').read_text()\nopen('sub/a', 'a').close()\n",
            before.display().to_string()
        );
        run_python(&script, &here, &journal);
        let told = |name: &str, line: &str| (here.join(name), line.to_owned());
        assert_eq!(journal.met(), [told("a", "<string>:5"), told("out/a", "<string>:9")]);
    }

    #[test]
    fn what_a_process_wrote_is_not_met_by_another_and_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::new(folder.path());
        let lines = [
            r#"["/ours", "nothing"]"#,
            r#"["/ours", "met", "a.py:1"]"#,
            r#"["/theirs", "met", "b.py:2"]"#,
            r#"["/theirs", "met", "c.py:3"]"#,
            r#"["/cut"#,
        ];
        fs::write(&journal.file, lines.join("\n")).unwrap();
        assert_eq!(journal.met(), [(PathBuf::from("/theirs"), "b.py:2".to_owned())]);
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
