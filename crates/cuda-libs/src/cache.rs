//! Compiled kernels on disk.
//!
//! In:  the parts that decide an image (compiler, architecture, options, texts).
//! Out: the image, if an equal compilation was kept; otherwise it is compiled and kept.
//!
//! An entry is a file named by the hash of its parts: a line that says what it is, the hash of the image, the image. It
//! comes into being whole (written beside, then renamed), so that any number of processes may share a folder; one that is
//! not whole is compiled anew. The least recently used go when there are too many bytes or files. A folder that cannot be
//! read or written costs time and nothing else.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

/// The variable that names another folder.
pub const VARIABLE: &str = "TONNAGE_CACHE_DIR";

/// What the folder may hold, in bytes and in files; what is left after a clearing.
const BYTES_MOST: u64 = 512 << 20;
const FILES_MOST: usize = 4096;

/// How long an entry counts as used without being marked again.
const FRESH: Duration = Duration::from_secs(3600);

/// How an entry begins.
const MAGIC: &[u8] = b"tonnage kernel 1\n";

const ENDING: &str = "image";

/// A folder of compiled kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: Option<PathBuf>,
    bytes_most: u64,
    files_most: usize,
}

impl Cache {
    /// The user's own: `TONNAGE_CACHE_DIR`, or `tonnage/kernels` in `XDG_CACHE_HOME` or `~/.cache`.
    #[must_use]
    pub fn of_user() -> Self {
        Self::with(|name| std::env::var_os(name))
    }

    fn with(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| variable(name).map(PathBuf::from).filter(|it| it.is_absolute());
        let folder = path(VARIABLE)
            .or_else(|| path("XDG_CACHE_HOME").map(|it| it.join("tonnage/kernels")))
            .or_else(|| path("HOME").map(|it| it.join(".cache/tonnage/kernels")));
        Self { folder, bytes_most: BYTES_MOST, files_most: FILES_MOST }
    }

    /// A folder of its own.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), bytes_most: BYTES_MOST, files_most: FILES_MOST }
    }

    /// None: everything is compiled.
    #[must_use]
    pub fn none() -> Self {
        Self { folder: None, bytes_most: 0, files_most: 0 }
    }

    /// The same with other bounds.
    #[must_use]
    pub fn bounded(self, bytes_most: u64, files_most: usize) -> Self {
        Self { bytes_most, files_most, ..self }
    }

    /// The image of these parts: the one that was kept, or what `make` gives, which is kept.
    ///
    /// # Errors
    ///
    /// What `make` returns.
    pub fn get_or<E>(
        &self,
        parts: &[String],
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let Some(folder) = &self.folder else { return make() };
        let path = folder.join(format!("{}.{ENDING}", key(parts)));
        if let Some(image) = read(&path) {
            return Ok(image);
        }
        let image = make()?;
        // A folder that cannot be written costs the next compilation, and nothing else.
        if self.write(folder, &path, &image).is_ok() {
            self.clear(folder);
        }
        Ok(image)
    }

    fn write(&self, folder: &Path, path: &Path, image: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(image))?;
        file.write_all(image)?;
        file.persist(path)?;
        Ok(())
    }

    /// Removes the least recently used down to three quarters, if there is too much.
    fn clear(&self, folder: &Path) {
        let mut entries = entries(folder);
        let (mut bytes, mut files) = (entries.iter().map(|it| it.size).sum::<u64>(), entries.len());
        if bytes <= self.bytes_most && files <= self.files_most {
            return;
        }
        entries.sort_by_key(|it| it.used);
        for entry in entries {
            if bytes <= self.bytes_most / 4 * 3 && files <= self.files_most / 4 * 3 {
                return;
            }
            // Another process may have removed it.
            let _ = fs::remove_file(&entry.path);
            bytes -= entry.size;
            files -= 1;
        }
    }
}

struct Entry {
    path: PathBuf,
    size: u64,
    used: SystemTime,
}

/// The entries, and files that a process which died was writing.
fn entries(folder: &Path) -> Vec<Entry> {
    let entry = |file: fs::DirEntry| {
        let path = file.path();
        let data = file.metadata().ok()?;
        let is_ours = path.extension().is_some_and(|it| it == ENDING)
            || path.file_name()?.to_str()?.starts_with(".new-");
        let used = data.modified().ok()?;
        (data.is_file() && is_ours).then_some(Entry { path, size: data.len(), used })
    };
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(entry).collect()
}

/// The image of a whole entry, which counts as used from now on.
fn read(path: &Path) -> Option<Vec<u8>> {
    let whole = fs::read(path).ok()?;
    let rest = whole.strip_prefix(MAGIC)?;
    let (hash, image) = rest.split_at_checked(32)?;
    if Sha256::digest(image).as_slice() != hash {
        return None;
    }
    let file = fs::File::options().append(true).open(path);
    if let Ok(file) = file
        && let Ok(used) = file.metadata().and_then(|it| it.modified())
        && used.elapsed().is_ok_and(|it| it > FRESH)
    {
        // Who may read but not write leaves it older than it is.
        let _ = file.set_modified(SystemTime::now());
    }
    Some(image.to_vec())
}

/// The hash of the parts and where each ends, in sixteens.
fn key(parts: &[String]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parts(text: &str) -> Vec<String> {
        vec!["13.0".into(), text.into()]
    }

    /// The image of a text, and whether it was made.
    fn get(cache: &Cache, text: &str) -> (Vec<u8>, bool) {
        let mut made = false;
        let image = cache.get_or(&parts(text), || {
            made = true;
            Ok::<_, Infallible>(text.repeat(100).into_bytes())
        });
        (image.unwrap(), made)
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut list: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
        list.sort();
        list
    }

    #[test]
    fn an_image_is_made_once_for_equal_parts() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("deep/er"));
        assert_eq!(get(&cache, "a"), ("a".repeat(100).into_bytes(), true));
        assert_eq!(get(&cache, "a"), ("a".repeat(100).into_bytes(), false));
        assert!(get(&cache, "b").1);
        assert_eq!(files(&folder.path().join("deep/er")).len(), 2);
        assert_ne!(key(&["ab".into(), "c".into()]), key(&["a".into(), "bc".into()]));
    }

    #[test]
    fn a_damaged_entry_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        get(&cache, "a");
        let file = files(folder.path()).remove(0);
        let whole = fs::read(&file).unwrap();
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        for damaged in
            [&b""[..], b"tonnage", &whole[..MAGIC.len() + 20], &whole[..whole.len() - 1], &changed]
        {
            fs::write(&file, damaged).unwrap();
            assert_eq!(get(&cache, "a"), ("a".repeat(100).into_bytes(), true));
            assert_eq!(fs::read(&file).unwrap(), whole);
        }
    }

    #[test]
    fn the_least_recently_used_go() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).bounded(u64::MAX, 4);
        let now = SystemTime::now();
        for (age, text) in ["a", "b", "c", "d"].iter().enumerate() {
            get(&cache, text);
            let file = folder.path().join(format!("{}.image", key(&parts(text))));
            let time = now - Duration::from_secs(40_000 - 1000 * age as u64);
            fs::File::options().append(true).open(file).unwrap().set_modified(time).unwrap();
        }
        assert!(!get(&cache, "a").1, "the oldest is used, and so the newest");
        get(&cache, "e");
        assert_eq!(files(folder.path()).len(), 3);
        assert!(!get(&cache, "a").1 && !get(&cache, "d").1 && !get(&cache, "e").1);
        assert!(get(&cache, "b").1);
        let small = Cache::at(folder.path()).bounded(400, 100);
        get(&small, "f");
        let bytes: u64 = entries(folder.path()).iter().map(|it| it.size).sum();
        assert!(bytes <= 300, "{bytes}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_time_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = Cache::at(file.join("below"));
        assert!(get(&cache, "a").1 && get(&cache, "a").1);
        let locked = folder.path().join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
        assert!(get(&Cache::at(locked.join("below")), "a").1);
        assert!(get(&Cache::none(), "a").1);
    }

    #[test]
    fn many_at_once_see_whole_images() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).bounded(u64::MAX, 6);
        std::thread::scope(|scope| {
            for start in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..50 {
                        let text = ((start + round) % 10).to_string();
                        assert_eq!(get(cache, &text).0, text.repeat(100).into_bytes());
                    }
                });
            }
        });
        assert!(files(folder.path()).len() <= 10);
    }

    #[test]
    fn the_folder_is_the_users_unless_told() {
        let with = |variables: &[(&str, &str)]| {
            Cache::with(|name| variables.iter().find(|it| it.0 == name).map(|it| it.1.into()))
                .folder
        };
        let all = [(VARIABLE, "/x"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h")];
        assert_eq!(with(&all), Some("/x".into()));
        assert_eq!(with(&all[1..]), Some("/c/tonnage/kernels".into()));
        assert_eq!(with(&all[2..]), Some("/h/.cache/tonnage/kernels".into()));
        assert_eq!(with(&[(VARIABLE, "relative")]), None);
    }
}
