//! What a script changed among files, and how that is undone.
//!
//! In:  the journal that `hook/tonnage_files.py` writes inside the script: what was at each path before.
//! Out: files as they were before the script ran, and a list of what it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

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
    /// It was there and was opened to be changed, and is too large to be kept: what was changed stays.
    Lost,
}

impl Change {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Lost => "lost",
        }
    }
}

/// What was at a path.
#[derive(Debug)]
enum Before {
    Nothing,
    Folder,
    Link(PathBuf),
    /// A file without anything in it.
    Empty,
    /// A file that is kept there.
    File(PathBuf),
    /// A file that is not kept.
    Lost,
}

/// One undoing at a time: whoever comes second finds nothing left to undo.
static UNDOING: Mutex<()> = Mutex::new(());

/// The changes of one run.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// Where the script writes them down.
    pub(crate) file: PathBuf,
    /// Where it keeps files that it is about to replace.
    pub(crate) aside: PathBuf,
    /// The same on the disk of the folder that it runs in, in case that is another.
    pub(crate) aside_here: PathBuf,
}

impl Journal {
    /// In a folder of the run.
    pub(crate) fn new(folder: &Path) -> Self {
        let here = std::env::current_dir().unwrap_or_default();
        Self {
            file: folder.join("journal"),
            aside: folder.join("aside"),
            aside_here: here.join(format!(".tonnage-aside-{}", std::process::id())),
        }
    }

    /// What was at each path when it was first touched, and all places where files are kept.
    fn read(&self) -> (BTreeMap<PathBuf, Before>, Vec<PathBuf>) {
        let text = fs::read(&self.file).unwrap_or_default();
        let (mut paths, mut places) = (BTreeMap::new(), Vec::new());
        for line in String::from_utf8_lossy(&text).lines() {
            let words: Vec<String> = serde_json::from_str(line).unwrap_or_default();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let (path, before) = match words[..] {
                [path, "nothing"] => (path, Before::Nothing),
                [path, "folder"] => (path, Before::Folder),
                [path, "link", target] => (path, Before::Link(PathBuf::from(target))),
                [path, "empty"] => (path, Before::Empty),
                [path, "lost"] => (path, Before::Lost),
                [path, "file", place] => {
                    places.push(PathBuf::from(place));
                    (path, Before::File(PathBuf::from(place)))
                }
                // Cut off, of a script that was ended while it wrote.
                _ => continue,
            };
            paths.entry(PathBuf::from(path)).or_insert(before);
        }
        (paths, places)
    }

    /// What was written, as things stand now.
    pub(crate) fn written(&self) -> Vec<Written> {
        let what = |path: &Path, before: &Before| match (before, path.is_file()) {
            (Before::Lost, _) => Some(Change::Lost),
            (Before::Nothing, true) => Some(Change::New),
            (Before::File(place), true) if same(path, place) => None,
            (Before::Empty, true) if path.metadata().is_ok_and(|it| it.len() == 0) => None,
            (Before::File(_) | Before::Empty, true) => Some(Change::Changed),
            (Before::File(_) | Before::Empty, false) => Some(Change::Removed),
            // It came and went, or is no file.
            _ => None,
        };
        let paths = self.read().0.into_iter();
        paths
            .filter_map(|(path, before)| Some(Written { what: what(&path, &before)?, path }))
            .collect()
    }

    /// Puts everything back as it was. What cannot be put back stays where it is kept.
    pub(crate) fn undo(&self) {
        let _alone = UNDOING.lock().unwrap_or_else(PoisonError::into_inner);
        let (paths, places) = self.read();
        // What is of another kind now goes, what is in a folder before the folder; a folder only if nothing is in it.
        for (path, before) in paths.iter().rev() {
            let Ok(now) = path.symlink_metadata() else { continue };
            let _ = match before {
                Before::Folder if now.is_dir() => Ok(()),
                _ if now.is_dir() => fs::remove_dir(path),
                Before::Nothing | Before::Folder | Before::Link(_) => fs::remove_file(path),
                _ if now.is_symlink() => fs::remove_file(path),
                _ => Ok(()),
            };
        }
        for (path, before) in &paths {
            // It may be as it was.
            let _ = match before {
                Before::Folder => fs::create_dir(path),
                Before::Link(target) => std::os::unix::fs::symlink(target, path),
                Before::File(place) => put_back(path, place),
                Before::Empty => empty(path),
                Before::Nothing | Before::Lost => Ok(()),
            };
        }
        let _ = fs::remove_file(&self.file);
        for place in places.iter().filter(|place| place.starts_with(&self.aside_here)) {
            // Of files that were kept more than once.
            let _ = fs::remove_file(place);
        }
        // Only if nothing is left in it.
        let _ = fs::remove_dir(&self.aside_here);
    }
}

/// Makes a file empty; one of several names of a file becomes a file by itself.
fn empty(path: &Path) -> std::io::Result<()> {
    if path.metadata().is_ok_and(|now| now.nlink() > 1) {
        fs::remove_file(path)?;
    }
    fs::File::create(path).map(drop)
}

/// Whether two names are of one file.
fn same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| path.metadata().map(|it| (it.dev(), it.ino())).ok();
    of(one).is_some() && of(one) == of(other)
}

/// Moves a file back to where it was, over what is there now.
fn put_back(path: &Path, place: &Path) -> std::io::Result<()> {
    if same(path, place) {
        return fs::remove_file(place);
    }
    match fs::rename(place, path) {
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
            // Beside it first, so that it is whole or not there.
            let mut beside = path.as_os_str().to_owned();
            beside.push(".tonnage-part");
            fs::copy(place, &beside)?;
            fs::rename(&beside, path)
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Random changes among a few files and folders, by seed; the script may fail on its way.
    const CHANGES: &str = r#"
import os, pathlib, random, shutil, sqlite3, sys, tempfile
random.seed(int(sys.argv[1]))
names = ["a", "b", "c", "d", "out", "out/a", "out/b", "out/deep", "out/deep/a", "link", "sub/a"]
def write(path): open(path, "w").write("new" * random.randrange(3))
def append(path): open(path, "a").write("more")
def change(path):
    with open(path, "r+b") as file: file.write(b"XX")
def replace(path):
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file: file.write(b"replaced")
    os.replace(file.name, path)
def descriptor(path): os.close(os.open(path, os.O_WRONLY | os.O_CREAT | random.choice([0, os.O_TRUNC])))
def move(path): os.rename(path, random.choice(names))
def copy(path): shutil.copyfile(path, random.choice(names))
def link(path): os.symlink("a", path)
def hard(path): os.link("a", path)
def table(path): sqlite3.connect(path).execute("create table t (x)")
def relative(path):
    folder = os.open("out", os.O_RDONLY)
    try: os.unlink(os.path.basename(path), dir_fd=folder)
    finally: os.close(folder)
changes = [write, append, change, replace, descriptor, move, copy, link, hard, table, relative, os.remove, os.mkdir, os.rmdir,
    os.makedirs, shutil.rmtree, lambda path: os.truncate(path, 1), lambda path: pathlib.Path(path).write_text("text")]
for _ in range(40):
    try: random.choice(changes)(random.choice(names))
    except (OSError, shutil.Error, sqlite3.Error): pass
"#;

    fn tree(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let what = if kind.is_dir() {
                tree(&path, found);
                "a folder".to_owned()
            } else if kind.is_symlink() {
                format!("to {}", fs::read_link(&path).unwrap().display())
            } else {
                format!("holds {:?}", String::from_utf8_lossy(&fs::read(&path).unwrap()))
            };
            found.insert(path, what);
        }
    }

    fn state(folder: &Path) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        tree(folder, &mut found);
        found
    }

    fn run_python(script: &str, arguments: &[&str], here: &Path, journal: &Journal) {
        let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hook");
        let script = format!("import tonnage_files\ntonnage_files.install()\n{script}");
        let done = Command::new("python3")
            .args(["-c", &script])
            .args(arguments)
            .current_dir(here)
            .env("PYTHONPATH", hook)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TONNAGE_JOURNAL", &journal.file)
            .env("TONNAGE_ASIDE", &journal.aside)
            .env("TONNAGE_ASIDE_HERE", &journal.aside_here)
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
        std::os::unix::fs::symlink("out", here.join("d")).unwrap();
        let journal = Journal {
            file: folder.path().join("journal"),
            aside: folder.path().join("aside"),
            aside_here: here.join(".aside"),
        };
        (folder, here, journal)
    }

    #[test]
    fn whatever_a_script_changes_is_put_back() {
        let mut changed = 0;
        for seed in 0..60 {
            let (_folder, here, journal) = place();
            let before = state(&here);
            run_python(CHANGES, &[&seed.to_string()], &here, &journal);
            changed += usize::from(state(&here) != before);
            journal.undo();
            assert_eq!(state(&here), before, "seed {seed}");
            journal.undo();
            assert_eq!(state(&here), before, "seed {seed}: a second time changes nothing");
        }
        assert!(changed > 40, "{changed} of 60 changed something");
    }

    #[test]
    fn what_was_written_is_told() {
        let (_folder, here, journal) = place();
        let script = "import os\nopen('new', 'w').write('x')\nopen('a', 'w').write('y')\nos.remove('sub/a')\n\
                      open('part', 'w').write('z')\nos.replace('part', 'out/a')\nopen('b')\n\
                      open('gone', 'w')\nos.remove('gone')\n";
        run_python(script, &[], &here, &journal);
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
}
