//! Where the snapshots of a fleet are.
//!
//! In:  sources as people write them.
//! Out: [`Found`] files, each once, sorted by address, with their size and what tells one version of a file from the next.
//!
//! | source | means |
//! | --- | --- |
//! | a folder | every snapshot below it, by the endings of [`ENDINGS`], plain or packed |
//! | a glob, as `runs/*/rank_*.pickle` | the files that match; `**` stands for folders within folders |
//! | `@LIST` | a source on each line of the file LIST, `@-` of standard input; empty lines and those with `#` in front do not count |
//! | anything else | a file |
//!
//! A file that is named and is not there is a mistake on the command line, and one line of the result if a list names it:
//! lists are written by programs, before the files. A folder that may not be looked into, and a link that leads nowhere, are
//! lines of the result too. A file with several names, by links or by how sources are written, counts once, by the first: links
//! come last in a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use thiserror::Error;

/// Endings of snapshots in a folder; each may be followed by one of [`PACKED`].
const ENDINGS: [&str; 2] = [".pickle", ".pkl"];

/// What packing adds to a name.
const PACKED: [&str; 4] = ["", ".zst", ".gz", ".xz"];

/// Folders within folders that are walked.
const DEEPEST: usize = 64;

/// Bytes of a list: chosen, a million addresses take a tenth.
const LONGEST_LIST: u64 = 1 << 30;

/// A file of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As it is written: what the file goes by everywhere.
    pub address: String,
    /// Where to open it.
    pub path: PathBuf,
    /// Its bytes; none if that is not known, or it is not there.
    pub size: Option<u64>,
    /// What tells this version of the file from another of the same size: when it was changed. Empty if nothing does.
    pub version: String,
}

/// A source that means nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Nothing is there.
    #[error("{source_text}: {what}")]
    Nothing {
        /// As it was written.
        source_text: String,
        /// What is missing.
        what: String,
    },
    /// It cannot be looked at.
    #[error("cannot look at {source_text}: {source}")]
    Io {
        /// As it was written.
        source_text: String,
        /// Why.
        source: std::io::Error,
    },
    /// No glob.
    #[error("{source_text} is no pattern of files: {what}")]
    Glob {
        /// As it was written.
        source_text: String,
        /// Why.
        what: String,
    },
}

/// The files that sources mean, each once, by address.
///
/// # Errors
///
/// If a source means nothing, or cannot be looked at.
pub fn find<S: AsRef<str>>(sources: &[S]) -> Result<Vec<Found>, SourceError> {
    let mut found = Files::default();
    for source in sources {
        match source.as_ref().strip_prefix('@') {
            Some(list) => add_list(&mut found, list)?,
            None => add(&mut found, source.as_ref(), Absent::Refused)?,
        }
    }
    Ok(found.by_address.into_values().collect())
}

/// What to make of a file that is named and not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Refused,
    Kept,
}

/// Files that are found so far.
#[derive(Default)]
struct Files {
    by_address: BTreeMap<String, Found>,
    known: BTreeSet<FileId>,
}

/// What a file or a folder is, whatever its name.
type FileId = (u64, u64);

fn id(about: &Metadata) -> FileId {
    (about.dev(), about.ino())
}

impl Files {
    /// The first of two names of one file stays.
    fn put(&mut self, path: &Path, about: &Metadata) {
        if self.known.insert(id(about)) {
            let version = format!("{}.{:09}", about.mtime(), about.mtime_nsec());
            self.insert(path, "", Some(about.len()), version);
        }
    }

    /// What is there, or ought to be, and cannot be looked at: whoever opens it learns why.
    fn put_missing(&mut self, path: &Path, ending: &str) {
        self.insert(path, ending, None, String::new());
    }

    fn insert(&mut self, path: &Path, ending: &str, size: Option<u64>, version: String) {
        let address = path.to_string_lossy().into_owned() + ending;
        let file = Found { address: address.clone(), path: path.to_owned(), size, version };
        self.by_address.entry(address).or_insert(file);
    }

    fn put_met(&mut self, path: &Path, met: &Met<'_>) {
        match met {
            Met::File(about) => self.put(path, about),
            Met::Lost => self.put_missing(path, ""),
            Met::Shut => self.put_missing(path, "/"),
        }
    }
}

fn add(found: &mut Files, source: &str, absent: Absent) -> Result<(), SourceError> {
    let nothing =
        |what: &str| SourceError::Nothing { source_text: source.to_owned(), what: what.to_owned() };
    let path = Path::new(source);
    let about = std::fs::metadata(path);
    match &about {
        Ok(about) if about.is_dir() => {
            let mut any = false;
            let mut take = |path: &Path, met: Met<'_>| {
                if matches!(met, Met::Shut) || is_snapshot(path) {
                    any = true;
                    found.put_met(path, &met);
                }
            };
            let mut walk = Walk { entered: BTreeSet::new(), again: false, take: &mut take };
            walk.within(path, DEEPEST).map_err(|error| io(source, error))?;
            let endings = ENDINGS.join(" or ");
            if !any {
                return Err(nothing(&format!(
                    "no file below this folder ends in {endings}, plain or packed (.zst, .gz, .xz); name others by a \
                     glob, as '{source}/*'"
                )));
            }
        }
        Ok(about) => found.put(path, about),
        Err(_) if is_url(source) => {
            return Err(nothing(
                "object storage is not read yet: name files that this machine sees",
            ));
        }
        // A file may have any name: only what is not there is a pattern.
        Err(_) if is_glob(source) => {
            if !add_glob(found, source)? {
                return Err(nothing("no file matches this pattern"));
            }
        }
        Err(_) if absent == Absent::Kept => found.put_missing(path, ""),
        Err(_) => {
            return Err(io(source, about.map(drop).unwrap_err()));
        }
    }
    Ok(())
}

fn io(source: &str, error: std::io::Error) -> SourceError {
    SourceError::Io { source_text: source.to_owned(), source: error }
}

fn add_list(found: &mut Files, list: &str) -> Result<(), SourceError> {
    let mut text = String::new();
    let read = if list == "-" {
        std::io::stdin().lock().take(LONGEST_LIST).read_to_string(&mut text)
    } else {
        std::fs::File::open(list).and_then(|file| file.take(LONGEST_LIST).read_to_string(&mut text))
    };
    read.map_err(|error| io(&format!("@{list}"), error))?;
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        let what = "this list names no file".to_owned();
        return Err(SourceError::Nothing { source_text: format!("@{list}"), what });
    }
    lines.try_for_each(|line| add(found, line, Absent::Kept))
}

fn is_snapshot(path: &Path) -> bool {
    let name = path.file_name().map(|it| it.to_string_lossy().to_ascii_lowercase());
    let name = name.unwrap_or_default();
    let endings =
        ENDINGS.iter().flat_map(|ending| PACKED.map(|packed| format!("{ending}{packed}")));
    !name.starts_with('.') && endings.into_iter().any(|ending| name.ends_with(&ending))
}

/// Whether it is an address as `s3://bucket/key`.
fn is_url(source: &str) -> bool {
    source.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|it| it.is_ascii_alphanumeric())
    })
}

fn is_glob(source: &str) -> bool {
    source.contains(['*', '?', '[', '{'])
}

/// Adds what matches; whether anything did.
fn add_glob(found: &mut Files, source: &str) -> Result<bool, SourceError> {
    let matcher = |pattern: &Path| -> Result<GlobMatcher, SourceError> {
        let glob = GlobBuilder::new(&pattern.to_string_lossy()).literal_separator(true).build();
        let glob = glob.map_err(|error| SourceError::Glob {
            source_text: source.to_owned(),
            what: error.kind().to_string(),
        })?;
        Ok(glob.compile_matcher())
    };
    // As paths are written that are walked: `a//b` and `a/./b` are `a/b`.
    let pattern: PathBuf = Path::new(source).components().collect();
    let files = matcher(&pattern)?;
    let fixed: PathBuf = pattern
        .components()
        .take_while(|part| !is_glob(&part.as_os_str().to_string_lossy()))
        .collect();
    // How deep a pattern reaches is known but for `**`.
    let deep = pattern.components().count() - fixed.components().count();
    let deep = if source.contains("**") { DEEPEST } else { deep };
    // Whether a folder could have a file that matches; not known of `**`, and of `{`, which may stand for several folders.
    let may_hold = |folder: &Path| {
        let leading: PathBuf = pattern.components().take(folder.components().count()).collect();
        source.contains("**")
            || source.contains('{')
            || matcher(&leading).is_ok_and(|it| it.is_match(folder))
    };
    let from = if fixed.as_os_str().is_empty() { Path::new(".") } else { &fixed };
    let bare = fixed.as_os_str().is_empty();
    let mut any = false;
    let mut take = |path: &Path, met: Met<'_>| {
        let path = if bare { path.strip_prefix(Component::CurDir).unwrap_or(path) } else { path };
        let counts = if matches!(met, Met::Shut) { may_hold(path) } else { files.is_match(path) };
        if counts {
            any = true;
            found.put_met(path, &met);
        }
    };
    // A pattern may mean a folder by the name of a link to it.
    let mut walk = Walk { entered: BTreeSet::new(), again: true, take: &mut take };
    walk.within(from, deep).map_err(|error| io(source, error))?;
    Ok(any)
}

/// What is met on a walk.
enum Met<'a> {
    File(&'a Metadata),
    /// Something that cannot be looked at, as a link that leads nowhere.
    Lost,
    /// A folder that cannot be looked into.
    Shut,
}

/// A walk through folders.
struct Walk<'a> {
    /// Folders that are not entered: a link may lead in a circle.
    entered: BTreeSet<FileId>,
    /// Whether a folder that was left may be entered by another name.
    again: bool,
    take: &'a mut dyn FnMut(&Path, Met<'_>),
}

impl Walk<'_> {
    /// Every file below a folder, in the order of names, links last.
    fn within(&mut self, folder: &Path, deep: usize) -> std::io::Result<()> {
        let own = id(&std::fs::metadata(folder)?);
        if !self.entered.insert(own) {
            return Ok(());
        }
        let entry = |it: std::io::Result<std::fs::DirEntry>| {
            let it = it?;
            Ok((it.file_type().is_ok_and(|it| it.is_symlink()), it.path()))
        };
        let entries = std::fs::read_dir(folder)?.map(entry).collect::<std::io::Result<Vec<_>>>();
        let mut entries = entries?;
        entries.sort();
        for (is_link, path) in entries {
            match std::fs::metadata(&path) {
                Ok(about) if about.is_file() => (self.take)(&path, Met::File(&about)),
                Ok(about) if about.is_dir() && deep > 1 => {
                    let looked = self.within(&path, deep - 1);
                    if looked.is_err_and(|error| error.kind() != ErrorKind::NotFound) {
                        (self.take)(&path, Met::Shut);
                    }
                }
                Ok(_) => {}
                // What went away meanwhile is no file of the fleet, and no folder.
                Err(error) if error.kind() == ErrorKind::NotFound && !is_link => {}
                Err(_) => (self.take)(&path, Met::Lost),
            }
        }
        if self.again {
            self.entered.remove(&own);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file).unwrap();
        }
        folder
    }

    fn names(folder: &tempfile::TempDir, sources: &[&str]) -> Result<Vec<String>, String> {
        let root = folder.path().to_str().unwrap().to_owned() + "/";
        let sources: Vec<_> = sources
            .iter()
            .map(|it| match it.strip_prefix('@') {
                Some(list) => format!("@{root}{list}"),
                None => format!("{root}{it}"),
            })
            .collect();
        let found = find(&sources).map_err(|error| error.to_string().replace(&root, ""))?;
        Ok(found.into_iter().map(|it| it.address.replace(&root, "")).collect())
    }

    #[test]
    fn a_folder_is_every_snapshot_below_it_sorted_and_each_once() {
        let files =
            ["b/rank_1.pickle.zst", "a/rank_0.pkl", "a/rank_0.json", ".hidden.pickle", "c.PICKLE"];
        let folder = folder(&files);
        let all = ["a/rank_0.pkl", "b/rank_1.pickle.zst", "c.PICKLE"];
        assert_eq!(
            names(&folder, &[""])
                .unwrap()
                .iter()
                .map(|it| it.trim_start_matches('/'))
                .collect::<Vec<_>>(),
            all
        );
        assert_eq!(
            names(&folder, &["a", "a/rank_0.pkl", "a/*"]).unwrap(),
            ["a/rank_0.json", "a/rank_0.pkl"]
        );
        let none = names(&folder, &["a", "no"]).unwrap_err();
        assert!(none.contains("cannot look at no"), "{none}");
    }

    #[test]
    fn a_glob_stays_within_its_folders_but_for_two_stars() {
        let folder = folder(&["r/0/x.pickle", "r/1/x.pickle", "r/1/deep/x.pickle", "r/y.pickle"]);
        assert_eq!(names(&folder, &["r/*/x.pickle"]).unwrap(), ["r/0/x.pickle", "r/1/x.pickle"]);
        assert_eq!(names(&folder, &["r/[1-9]/*"]).unwrap(), ["r/1/x.pickle"]);
        let all = ["r/0/x.pickle", "r/1/deep/x.pickle", "r/1/x.pickle"];
        assert_eq!(names(&folder, &["r/**/x.pickle"]).unwrap(), all);
        assert!(names(&folder, &["r/*.npz"]).unwrap_err().contains("no file matches"));
        assert!(names(&folder, &["r/[1"]).unwrap_err().contains("no pattern of files"));
        assert!(names(&folder, &["r/0/x.pickle", "r/empty"]).is_err());
    }

    #[test]
    fn a_list_names_files_that_may_not_be_there() {
        let folder = folder(&["a.pickle", "b.pickle"]);
        let root = folder.path().to_str().unwrap();
        let list = format!("# ranks\n\n{root}/b.pickle\n  {root}/gone.pickle\n{root}/a*\n");
        std::fs::write(folder.path().join("list"), list).unwrap();
        assert_eq!(names(&folder, &["@list"]).unwrap(), ["a.pickle", "b.pickle", "gone.pickle"]);
        std::fs::write(folder.path().join("list"), "# none\n").unwrap();
        assert!(names(&folder, &["@list"]).unwrap_err().contains("names no file"));
        assert!(names(&folder, &["@nolist"]).unwrap_err().contains("cannot look at"));
    }

    #[test]
    fn a_file_counts_once_whatever_it_is_called() {
        use std::os::unix::fs::symlink;
        let folder = folder(&["runs/b/r0.pickle", "runs/b/r1.pickle"]);
        let runs = folder.path().join("runs");
        for (to, link) in
            [("b", "a_latest"), (".", "one"), ("..", "two"), ("b/r0.pickle", "c.pickle")]
        {
            symlink(to, runs.join(link)).unwrap();
        }
        let all = ["runs/b/r0.pickle", "runs/b/r1.pickle"];
        assert_eq!(names(&folder, &["runs"]).unwrap(), all);
        assert_eq!(
            names(&folder, &["runs", "runs/./b", "runs/b/r*", "runs/c.pickle"]).unwrap(),
            all
        );
        assert_eq!(names(&folder, &["runs/**/*.pickle"]).unwrap(), all);
        // A link may be what a pattern means.
        let linked = ["runs/a_latest/r0.pickle", "runs/a_latest/r1.pickle"];
        assert_eq!(names(&folder, &["runs/a_*/r*"]).unwrap(), linked);
        assert_eq!(names(&folder, &["runs//b/./r*"]).unwrap(), all);
        symlink("gone", runs.join("r9.pickle")).unwrap();
        let lost = ["runs/b/r0.pickle", "runs/b/r1.pickle", "runs/r9.pickle"];
        assert_eq!(names(&folder, &["runs"]).unwrap(), lost);
    }

    #[test]
    fn folders_that_may_not_be_looked_into_are_said() {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder(&["node0/r0.pickle", "node1/r1.pickle", "other/r2.pickle"]);
        let may = |mode| {
            for name in ["node1", "other"] {
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(folder.path().join(name), mode).unwrap();
            }
        };
        may(0o000);
        // Root may look into everything.
        if std::fs::read_dir(folder.path().join("node1")).is_err() {
            let all = ["node0/r0.pickle", "node1/", "other/"];
            let below = names(&folder, &[""]).unwrap();
            let below: Vec<_> = below.iter().map(|it| it.trim_start_matches('/')).collect();
            assert_eq!(below, all);
            assert_eq!(names(&folder, &["node*/*"]).unwrap(), all[..2]);
            assert!(names(&folder, &["node1"]).unwrap_err().contains("cannot look at node1"));
        }
        may(0o700);
    }

    #[test]
    fn object_storage_is_not_read_yet() {
        for source in ["s3://bucket/rank_0.pickle", "gs://bucket/*.pickle"] {
            let told = find(&[source]).unwrap_err().to_string();
            assert!(told.contains("not read yet"), "{told}");
        }
    }

    #[test]
    fn what_changed_has_another_version() {
        let folder = folder(&["a.pickle"]);
        let path = folder.path().join("a.pickle");
        let source = [path.to_str().unwrap()];
        let before = find(&source).unwrap();
        assert_eq!(before, find(&source).unwrap());
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_ne!(before, find(&source).unwrap());
        assert_eq!(before[0].size, Some(8));
    }
}
