//! Where the snapshots of a fleet are.
//!
//! In:  sources as people write them.
//! Out: [`Found`] files, each once, sorted by address, with their size and what tells one version of a file from the next.
//!
//! | source | means |
//! | --- | --- |
//! | a folder | every snapshot below it, by the endings of [`ENDINGS`], plain or packed |
//! | a glob, as `runs/*/rank_*.pickle` | the files that match; `**` stands for folders within folders |
//! | `s3://…`, `gs://…`, `az://…`, `abfss://…` | the same in object storage: folders are the beginnings of names |
//! | `https://…` | a file of a web server |
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
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use thiserror::Error;
use tonnage_replay::Until;

use crate::address::{Address, has_scheme, shown, with_usual_scheme};
use crate::storage::{Object, Storage, StorageError};

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
    /// Where to open it: of a file in storage all of its address, with what lets it be read.
    pub path: PathBuf,
    /// Its bytes; none if that is not known, or it is not there.
    pub size: Option<u64>,
    /// What tells this version of the file from another of the same size: when it was changed; in storage its ETag. Empty if
    /// nothing does.
    pub version: String,
}

/// What each of several addresses means, or why nothing; or which of them ends it all, and why.
pub(crate) type FoundAll = Result<Vec<Result<Vec<Found>, StorageError>>, (String, StorageError)>;

/// A file that is being read.
pub(crate) enum Input {
    File(std::fs::File),
    Object(Box<Object>),
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Object(object) => object.read(buffer),
        }
    }
}

impl Found {
    /// A file by its address, of which nothing else is known.
    #[must_use]
    pub fn at(address: &str) -> Self {
        Self { address: shown(address), path: address.into(), size: None, version: String::new() }
    }

    /// A file of this machine, as it is now.
    ///
    /// # Errors
    ///
    /// If it cannot be looked at.
    pub fn file(path: &Path) -> std::io::Result<Self> {
        let about = std::fs::metadata(path)?;
        let address = path.to_string_lossy().into_owned();
        Ok(Self {
            address,
            path: path.to_owned(),
            size: Some(about.len()),
            version: version(&about),
        })
    }

    /// Opens it, wherever it is.
    ///
    /// # Errors
    ///
    /// Why it cannot be opened, in a sentence.
    pub fn open(&self) -> Result<Box<dyn Read + Send>, String> {
        let input = self.input(&Until::default()).map_err(|error| error.to_string())?;
        Ok(match input {
            Input::File(file) => Box::new(file),
            Input::Object(object) => object,
        })
    }

    /// What reads it; an object stops when the work is to.
    pub(crate) fn input(&self, until: &Until) -> Result<Input, Closed> {
        match self.in_storage() {
            Some(address) => {
                let opened = Storage::own().and_then(|storage| storage.open(address, until));
                Ok(Input::Object(Box::new(opened.map_err(Closed::Object)?)))
            }
            None => Ok(Input::File(std::fs::File::open(&self.path).map_err(Closed::File)?)),
        }
    }

    /// Whether it lies in storage, and not among the files of this machine.
    #[must_use]
    pub fn is_in_storage(&self) -> bool {
        self.in_storage().is_some()
    }

    /// The storage that it lies in, as `s3://BUCKET`; none of a file of this machine.
    pub(crate) fn storage(&self) -> Option<&str> {
        Some(Address::parse(self.in_storage()?)?.base)
    }

    /// Its whole address, if it is not a file of this machine.
    pub(crate) fn in_storage(&self) -> Option<&str> {
        self.path.to_str().filter(|path| Address::parse(path).is_some())
    }
}

/// A file that cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum Closed {
    #[error("cannot open it: {0}")]
    File(std::io::Error),
    #[error("{0}")]
    Object(StorageError),
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
    /// Storage does not tell.
    #[error("{source_text}: {what}")]
    Storage {
        /// As it was written.
        source_text: String,
        /// Why, and what to do.
        what: String,
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
    find_until(sources, &Until::default())
}

/// The same, until the work is to end: storage may have many names.
///
/// # Errors
///
/// As [`find`], and if the work is to end.
pub fn find_until<S: AsRef<str>>(sources: &[S], until: &Until) -> Result<Vec<Found>, SourceError> {
    let mut found = Files { until: until.clone(), ..Files::default() };
    for source in sources {
        match source.as_ref().strip_prefix('@') {
            Some(list) => add_list(&mut found, list)?,
            None => add_all(&mut found, &[source.as_ref()], Absent::Refused)?,
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
    /// Objects, by the usual scheme of their protocol.
    known_objects: BTreeSet<String>,
    until: Until,
}

/// What a file or a folder is, whatever its name.
type FileId = (u64, u64);

fn id(about: &Metadata) -> FileId {
    (about.dev(), about.ino())
}

/// What tells a version of a file from another of the same size.
pub(crate) fn version(about: &Metadata) -> String {
    format!("{}.{:09}", about.mtime(), about.mtime_nsec())
}

impl Files {
    /// The first of two names of one file stays.
    fn put(&mut self, path: &Path, about: &Metadata) {
        if self.known.insert(id(about)) {
            self.insert(path, "", Some(about.len()), version(about));
        }
    }

    /// What is there, or ought to be, and cannot be looked at: whoever opens it learns why.
    fn put_missing(&mut self, path: &Path, ending: &str) {
        self.insert(path, ending, None, String::new());
    }

    /// An object counts once, by the first of its addresses. Two that go by the same, since what tells them apart is not
    /// shown, cannot both be told of.
    fn put_object(&mut self, file: Found) -> Result<(), SourceError> {
        let object = file.in_storage().and_then(with_usual_scheme);
        if object.is_some_and(|object| !self.known_objects.insert(object)) {
            return Ok(());
        }
        let known = self.by_address.entry(file.address.clone()).or_insert_with(|| file.clone());
        if known.path == file.path {
            return Ok(());
        }
        let what = "several addresses are this one but for signatures and keys, which are not shown; add to each what tells it \
                    from the others, as `#rank_3`, which no server is sent";
        Err(SourceError::Storage { source_text: file.address, what: what.to_owned() })
    }

    fn insert(&mut self, path: &Path, ending: &str, size: Option<u64>, version: String) {
        let mut address = path.to_string_lossy().into_owned() + ending;
        // Names that are not UTF-8 may look the same.
        if self.by_address.get(&address).is_some_and(|known| known.path != path) {
            address = path.as_os_str().as_bytes().escape_ascii().to_string() + ending;
        }
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

/// Adds what each of these means; storage is asked about many at once.
fn add_all(found: &mut Files, sources: &[&str], absent: Absent) -> Result<(), SourceError> {
    let (stored, here): (Vec<&str>, Vec<&str>) =
        sources.iter().partition(|it| Address::parse(it).is_some());
    here.into_iter().try_for_each(|source| add(found, source, absent))?;
    if stored.is_empty() {
        return Ok(());
    }
    let no = |source: &str, what: &StorageError| SourceError::Storage {
        source_text: shown(source),
        what: what.to_string(),
    };
    let storage = Storage::own().map_err(|error| no(stored[0], &error))?;
    let told = storage.find(stored.iter().map(|&it| it.to_owned()).collect(), &found.until);
    let told = told.map_err(|(source, error)| no(&source, &error))?;
    for (source, files) in stored.into_iter().zip(told) {
        match files {
            Ok(files) if files.is_empty() => {
                let what = match is_glob(source) {
                    true => "no object matches this pattern".to_owned(),
                    false => format!(
                        "no object below this {}; name others by a pattern, as '{source}/*'",
                        no_ending()
                    ),
                };
                return Err(SourceError::Nothing { source_text: shown(source), what });
            }
            Ok(files) => files.into_iter().try_for_each(|file| found.put_object(file))?,
            // Whoever opens it learns why.
            Err(_) if absent == Absent::Kept => found.put_object(Found::at(source))?,
            Err(error) => return Err(no(source, &error)),
        }
    }
    Ok(())
}

fn no_ending() -> String {
    format!("ends in {}, plain or packed (.zst, .gz, .xz)", ENDINGS.join(" or "))
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
            let mut walk = Walk::new(Again::Never, &mut take);
            walk.within(path, DEEPEST, None).map_err(|error| io(source, error))?;
            if !any {
                return Err(nothing(&format!(
                    "no file below this folder {}; name others by a glob, as '{source}/*'",
                    no_ending()
                )));
            }
        }
        Ok(about) => found.put(path, about),
        Err(_) if has_scheme(source) => {
            return Err(nothing(
                "this storage is not read: there are s3://, gs://, az://, abfss:// and https://",
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
    add_all(found, &lines.collect::<Vec<_>>(), Absent::Kept)
}

pub(crate) fn is_snapshot(path: &Path) -> bool {
    let name = path.file_name().map(|it| it.to_string_lossy().to_ascii_lowercase());
    let name = name.unwrap_or_default();
    let endings =
        ENDINGS.iter().flat_map(|ending| PACKED.map(|packed| format!("{ending}{packed}")));
    !name.starts_with('.') && endings.into_iter().any(|ending| name.ends_with(&ending))
}

pub(crate) fn is_glob(source: &str) -> bool {
    source.contains(['*', '?', '[', '{'])
}

/// A pattern of names, in which only `**` stands for several folders.
pub(crate) fn matcher(pattern: &str) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    Ok(glob.map_err(|error| error.kind().to_string())?.compile_matcher())
}

/// Adds what matches; whether anything did.
fn add_glob(found: &mut Files, source: &str) -> Result<bool, SourceError> {
    // As paths are written that are walked: `a//b` and `a/./b` are `a/b`.
    let pattern: PathBuf = Path::new(source).components().collect();
    let files = matcher(&pattern.to_string_lossy())
        .map_err(|what| SourceError::Glob { source_text: source.to_owned(), what })?;
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
            || matcher(&leading.to_string_lossy()).is_ok_and(|it| it.is_match(folder))
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
    let again = if source.contains("**") { Again::ByEachLink } else { Again::Always };
    let mut walk = Walk::new(again, &mut take);
    walk.within(from, deep, None).map_err(|error| io(source, error))?;
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

/// When a folder that was left is entered by another name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Never,
    /// Once by its own path, and once behind each link: folders that are linked to each other have more names than can be tried.
    ByEachLink,
    Always,
}

/// A walk through folders.
struct Walk<'a> {
    /// Folders that are being walked, in which a link may lead in a circle.
    within: BTreeSet<FileId>,
    /// Folders that were entered, each with the last link on the way there.
    entered: BTreeSet<(FileId, Option<FileId>)>,
    again: Again,
    take: &'a mut dyn FnMut(&Path, Met<'_>),
}

impl<'a> Walk<'a> {
    fn new(again: Again, take: &'a mut dyn FnMut(&Path, Met<'_>)) -> Self {
        Self { within: BTreeSet::new(), entered: BTreeSet::new(), again, take }
    }

    /// Every file below a folder, in the order of names, links last.
    fn within(&mut self, folder: &Path, deep: usize, link: Option<FileId>) -> std::io::Result<()> {
        let own = id(&std::fs::metadata(folder)?);
        if self.within.contains(&own) {
            return Ok(());
        }
        let is_new = match self.again {
            Again::Never => self.entered.insert((own, None)),
            Again::ByEachLink => self.entered.insert((own, link)),
            Again::Always => true,
        };
        if !is_new {
            return Ok(());
        }
        self.within.insert(own);
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
                    let last = std::fs::symlink_metadata(&path).ok().filter(|_| is_link);
                    let looked = self.within(&path, deep - 1, last.map(|it| id(&it)).or(link));
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
        self.within.remove(&own);
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
        // Also behind two stars.
        assert_eq!(names(&folder, &["**/a_latest/r*"]).unwrap(), linked);
    }

    #[test]
    fn names_that_are_not_utf_8_stay_apart() {
        use std::ffi::OsStr;
        let folder = folder(&["rank_1.pickle"]);
        for name in [b"rank_2\xfe.pickle", b"rank_2\xff.pickle"] {
            std::fs::write(folder.path().join(OsStr::from_bytes(name)), name).unwrap();
        }
        let root = folder.path().to_str().unwrap();
        let found = find(&[root, &format!("{root}/*")]).unwrap();
        let mut names: Vec<_> =
            found.iter().map(|it| it.address.replace(root, "").replace('/', "")).collect();
        names.sort();
        assert_eq!(names, ["rank_1.pickle", "rank_2\\xff.pickle", "rank_2\u{fffd}.pickle"]);
        let mut read: Vec<_> = found.iter().map(|it| std::fs::read(&it.path).unwrap()).collect();
        read.sort();
        assert_eq!(read[1..], [b"rank_2\xfe.pickle", b"rank_2\xff.pickle"]);
    }

    #[test]
    fn folders_that_are_linked_to_each_other_are_walked_in_no_time() {
        let many = 16;
        let files: Vec<_> = (0..many).map(|it| format!("n{it:02}/r{it:02}.pickle")).collect();
        let folder = folder(&files.iter().map(String::as_str).collect::<Vec<_>>());
        for (from, to) in (0..many).flat_map(|from| (0..many).map(move |to| (from, to))) {
            let link = folder.path().join(format!("n{from:02}/to{to:02}"));
            std::os::unix::fs::symlink(format!("../n{to:02}"), link).unwrap();
        }
        let found = names(&folder, &["**/*.pickle"]).unwrap();
        assert_eq!(found.len(), many);
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
    fn storage_that_is_not_read_is_told() {
        for source in ["hdfs://node/rank_0.pickle", "ftp://host/*.pickle"] {
            let told = find(&[source]).unwrap_err().to_string();
            assert!(told.contains("this storage is not read: there are s3://"), "{told}");
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
