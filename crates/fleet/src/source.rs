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
//! lists are written by programs, before the files.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use thiserror::Error;

/// Endings of snapshots in a folder; each may be followed by one of [`PACKED`].
const ENDINGS: [&str; 2] = [".pickle", ".pkl"];

/// What packing adds to a name.
const PACKED: [&str; 4] = ["", ".zst", ".gz", ".xz"];

/// Folders within folders that are walked: a link may lead in a circle.
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
    let mut found = BTreeMap::new();
    for source in sources {
        match source.as_ref().strip_prefix('@') {
            Some(list) => add_list(&mut found, list)?,
            None => add(&mut found, source.as_ref(), Absent::Refused)?,
        }
    }
    Ok(found.into_values().collect())
}

/// What to make of a file that is named and not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Refused,
    Kept,
}

type ByAddress = BTreeMap<String, Found>;

fn add(found: &mut ByAddress, source: &str, absent: Absent) -> Result<(), SourceError> {
    let before = found.len();
    let nothing =
        |what: &str| SourceError::Nothing { source_text: source.to_owned(), what: what.to_owned() };
    let path = Path::new(source);
    let about = std::fs::metadata(path);
    match &about {
        Ok(about) if about.is_dir() => {
            walk(path, DEEPEST, &mut |path, about| {
                if is_snapshot(path) {
                    put(found, path, about);
                }
            })
            .map_err(|error| io(source, error))?;
            let endings = ENDINGS.join(" or ");
            if found.len() == before {
                return Err(nothing(&format!(
                    "no file below this folder ends in {endings}, plain or packed (.zst, .gz, .xz); name others by a \
                     glob, as '{source}/*'"
                )));
            }
        }
        Ok(about) => put(found, path, about),
        // A file may have any name: only what is not there is a pattern.
        Err(_) if is_glob(source) => {
            add_glob(found, source)?;
            if found.len() == before {
                return Err(nothing("no file matches this pattern"));
            }
        }
        Err(_) if absent == Absent::Kept => {
            let missing = Found {
                address: source.to_owned(),
                path: path.to_owned(),
                size: None,
                version: String::new(),
            };
            found.entry(source.to_owned()).or_insert(missing);
        }
        Err(_) => {
            return Err(io(source, about.map(drop).unwrap_err()));
        }
    }
    Ok(())
}

fn io(source: &str, error: std::io::Error) -> SourceError {
    SourceError::Io { source_text: source.to_owned(), source: error }
}

fn add_list(found: &mut ByAddress, list: &str) -> Result<(), SourceError> {
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

/// The first of two names of one file stays.
fn put(found: &mut ByAddress, path: &Path, about: &Metadata) {
    let address = path.to_string_lossy().into_owned();
    let version = format!("{}.{:09}", about.mtime(), about.mtime_nsec());
    let file =
        Found { address: address.clone(), path: path.to_owned(), size: Some(about.len()), version };
    found.entry(address).or_insert(file);
}

fn is_snapshot(path: &Path) -> bool {
    let name = path.file_name().map(|it| it.to_string_lossy().to_ascii_lowercase());
    let name = name.unwrap_or_default();
    let endings =
        ENDINGS.iter().flat_map(|ending| PACKED.map(|packed| format!("{ending}{packed}")));
    !name.starts_with('.') && endings.into_iter().any(|ending| name.ends_with(&ending))
}

fn is_glob(source: &str) -> bool {
    source.contains(['*', '?', '[', '{'])
}

fn add_glob(found: &mut ByAddress, source: &str) -> Result<(), SourceError> {
    let mut glob = GlobBuilder::new(source);
    let matcher: GlobMatcher = glob
        .literal_separator(true)
        .build()
        .map_err(|error| SourceError::Glob {
            source_text: source.to_owned(),
            what: error.kind().to_string(),
        })?
        .compile_matcher();
    let fixed: PathBuf = Path::new(source)
        .components()
        .take_while(|part| !is_glob(&part.as_os_str().to_string_lossy()))
        .collect();
    // How deep a pattern reaches is known but for `**`.
    let deep = Path::new(source).components().count() - fixed.components().count();
    let deep = if source.contains("**") { DEEPEST } else { deep };
    let from = if fixed.as_os_str().is_empty() { Path::new(".") } else { &fixed };
    let bare = fixed.as_os_str().is_empty();
    walk(from, deep, &mut |path, about| {
        let path = if bare { path.strip_prefix(Component::CurDir).unwrap_or(path) } else { path };
        if matcher.is_match(path) {
            put(found, path, about);
        }
    })
    .map_err(|error| io(source, error))
}

/// Every file below a folder. Folders within it that may not be looked into are passed over.
fn walk(folder: &Path, deep: usize, take: &mut dyn FnMut(&Path, &Metadata)) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // What went away meanwhile is no file of the fleet.
        let Ok(about) = std::fs::metadata(&path) else { continue };
        if about.is_file() {
            take(&path, &about);
        } else if about.is_dir() && deep > 1 {
            let _ = walk(&path, deep - 1, take);
        }
    }
    Ok(())
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
