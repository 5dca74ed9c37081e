//! Where libraries lie, and opening them.
//!
//! In:  a [`Wanted`] library, and the places where people have CUDA.
//! Out: the library, open for the life of the process; or one sentence: which, for what, where it was looked for.
//!
//! A library that the process has loaded already, as a Python with PyTorch has, is taken before any other. Python
//! environments are looked into, no Python is run.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use crate::{Error, Result};

/// The variable that names folders to look in before all others: of libraries, of a toolkit, or of a Python environment.
pub const VARIABLE: &str = "TONNAGE_CUDA_LIBRARIES";

/// Opens nothing that is not open already.
const RTLD_NOLOAD: i32 = 4;

/// A library to be found.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its name for people: `NVRTC`.
    pub name: &'static str,
    /// What it is for, as in "NVRTC, which …".
    pub purpose: &'static str,
    /// Names of its files, best first, with the CUDA that each belongs to; 0 belongs to any.
    pub files: &'static [(&'static str, u32)],
    /// How the names of files begin that it loads by itself from its own folder, and may not find there.
    pub companions: &'static [&'static str],
    /// The package on PyPI.
    pub package: &'static str,
}

/// Folders to look in, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    folders: Vec<PathBuf>,
    /// CUDA that the driver knows, as in 13: libraries of a newer one are of no use.
    newest: Option<u32>,
}

/// An open library.
#[derive(Debug)]
pub struct Found {
    library: Library,
    /// Where it was found; only its name, if the loader knew.
    pub path: PathBuf,
}

impl Search {
    /// Where people have CUDA on this machine.
    #[must_use]
    pub fn here() -> Self {
        Self::with(|name| std::env::var_os(name), Path::new("/"))
    }

    /// One folder alone, and where the loader looks.
    #[must_use]
    pub fn only(folder: impl Into<PathBuf>) -> Self {
        Self { folders: vec![folder.into()], newest: None }
    }

    /// Where people have CUDA by these variables, on a machine whose files are under `root`.
    fn with(variable: impl Fn(&str) -> Option<OsString>, root: &Path) -> Self {
        let list = |name| variable(name).into_iter().flat_map(|it| split(&it)).collect::<Vec<_>>();
        let mut folders = Folders::default();
        list(VARIABLE).iter().for_each(|it| folders.of_prefix(it));
        list("LD_LIBRARY_PATH").into_iter().for_each(|it| folders.add(it));
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            list(name).iter().for_each(|it| folders.of_prefix(it));
        }
        // The first Python on the path, by where it lies: PREFIX/bin/python3.
        let python = list("PATH").into_iter().find(|it| it.join("python3").exists());
        if let Some(prefix) = python.as_deref().and_then(Path::parent) {
            folders.of_prefix(prefix);
        }
        for name in ["CUDA_HOME", "CUDA_PATH"] {
            list(name).iter().for_each(|it| folders.of_prefix(it));
        }
        let local = root.join("usr/local");
        folders.of_prefix(&local.join("cuda"));
        let toolkits = inside(&local, |name| name.starts_with("cuda-"));
        toolkits.iter().rev().for_each(|it| folders.of_prefix(it));
        list("HOME").iter().for_each(|it| folders.of_prefix(&it.join(".local")));
        for place in inside(&root.join("opt"), |_| true) {
            for environment in [".venv", "venv"] {
                folders.of_prefix(&place.join(environment));
            }
        }
        folders.of_prefix(&local);
        folders.of_prefix(&root.join("usr"));
        Self { folders: folders.list, newest: None }
    }

    /// The same with one folder before all others.
    #[must_use]
    pub fn before(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folders.insert(0, folder.into());
        self
    }

    /// Only libraries that a driver of this version can work with: 13000 is CUDA 13.0.
    #[must_use]
    pub fn for_driver(mut self, version: u32) -> Self {
        self.newest = Some(version / 1000);
        self
    }

    /// The folders, in order.
    #[must_use]
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The files of a library that may be opened, in order.
    fn candidates<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = PathBuf> + 'a {
        let files = || wanted.files.iter().filter(|(_, cuda)| self.serves(*cuda));
        let here = move |folder: &'a PathBuf| files().map(|(name, _)| folder.join(name));
        self.folders.iter().flat_map(here).filter(|path| path.is_file())
    }

    fn serves(&self, cuda: u32) -> bool {
        self.newest.is_none_or(|newest| cuda <= newest)
    }

    /// Opens a library.
    ///
    /// # Errors
    ///
    /// If it is nowhere, or if none that was found can be opened.
    pub fn open(&self, wanted: &Wanted) -> Result<Found> {
        let mut refused = Vec::new();
        let names =
            wanted.files.iter().filter(|(_, cuda)| self.serves(*cuda)).map(|(name, _)| name);
        for name in names.clone() {
            if let Ok(library) = open(OsStr::new(name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) {
                return Ok(Found { library, path: name.into() });
            }
        }
        for path in self.candidates(wanted) {
            open_companions(wanted, &path);
            match open(path.as_os_str(), RTLD_NOW | RTLD_LOCAL) {
                Ok(library) => return Ok(Found { library, path }),
                Err(reason) => refused.push(format!("{}: {reason}", path.display())),
            }
        }
        for name in names {
            match open(OsStr::new(name), RTLD_NOW | RTLD_LOCAL) {
                Ok(library) => return Ok(Found { library, path: name.into() }),
                Err(_) => continue,
            }
        }
        Err(Error::Missing(self.missing(wanted, &refused)))
    }

    fn missing(&self, wanted: &Wanted, refused: &[String]) -> String {
        let names: Vec<_> =
            wanted.files.iter().filter(|(_, cuda)| self.serves(*cuda)).map(|it| it.0).collect();
        let folders: Vec<_> = self.folders.iter().map(|it| it.display().to_string()).collect();
        let places = if folders.is_empty() { String::new() } else { folders.join(", ") + " and " };
        let why = match refused {
            [] => "was not found".to_owned(),
            reasons => format!("cannot be opened ({})", reasons.join("; ")),
        };
        format!(
            "{} ({}), which {}, {why}: looked in {places}where the loader looks. Install the CUDA toolkit or `pip install {}`, \
             or set {VARIABLE} to the folder that has it",
            wanted.name,
            names.join(" or "),
            wanted.purpose,
            wanted.package,
        )
    }
}

impl Found {
    /// The function of this name, as a `T`.
    ///
    /// # Errors
    ///
    /// If the library has none.
    ///
    /// # Safety
    ///
    /// `T` is the type of the pointer to that function, as the library's manual states it.
    pub(crate) unsafe fn function<T: Copy>(&self, name: &'static str) -> Result<T> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.library.get::<T>(name) };
        let missing = |error: libloading::Error| {
            Error::Missing(format!(
                "{} has no {name}: it is another library, or too old ({})",
                self.path.display(),
                reason(&error)
            ))
        };
        found.map(|it| *it).map_err(missing)
    }

    /// Keeps the library for the life of the process: functions of it are known, and it may have threads of its own.
    pub(crate) fn keep(self) -> PathBuf {
        std::mem::forget(self.library);
        self.path
    }
}

/// Opens the files beside a library that it will ask the loader for by name.
fn open_companions(wanted: &Wanted, path: &Path) {
    let Some(folder) = path.parent() else { return };
    for start in wanted.companions {
        for companion in inside(folder, |name| name.starts_with(start) && !name.contains(".alt.")) {
            if let Ok(library) = open(companion.as_os_str(), RTLD_NOW | RTLD_GLOBAL) {
                // As for the library itself.
                std::mem::forget(library);
            }
        }
    }
}

fn open(name: &OsStr, flags: i32) -> Result<Library, String> {
    // SAFETY: the file has the name of a library of NVIDIA's, in a folder that the user or the system has named; its
    // initialisers may be run once, from any thread.
    unsafe { Library::open(Some(name), flags) }.map_err(|error| reason(&error))
}

/// The loader's own words, which the error keeps behind its own.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

fn split(list: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(list).filter(|it| it.is_absolute()).collect()
}

/// The entries of a folder whose names are wanted, in order of their names.
fn inside(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(&wanted);
    let mut list: Vec<_> = entries.filter(named).map(|entry| entry.path()).collect();
    list.sort();
    list
}

/// Folders that exist, each once.
#[derive(Default)]
struct Folders {
    list: Vec<PathBuf>,
    known: BTreeSet<PathBuf>,
}

impl Folders {
    fn add(&mut self, folder: PathBuf) {
        let Ok(real) = folder.canonicalize() else { return };
        if real.is_dir() && self.known.insert(real) {
            self.list.push(folder);
        }
    }

    /// Whatever a folder can be: one of libraries, a toolkit, or a Python environment.
    fn of_prefix(&mut self, prefix: &Path) {
        if has_libraries(prefix) {
            self.add(prefix.to_owned());
        }
        for libraries in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"] {
            let folder = prefix.join(libraries);
            if has_libraries(&folder) {
                self.add(folder);
            }
        }
        let packages = inside(&prefix.join("lib"), |name| name.starts_with("python3"))
            .into_iter()
            .flat_map(|it| ["site-packages", "dist-packages"].map(|packages| it.join(packages)));
        for wheels in packages.flat_map(|it| inside(&it.join("nvidia"), |_| true)) {
            let folder = wheels.join("lib");
            if has_libraries(&folder) {
                self.add(folder);
            }
        }
    }
}

/// Whether a folder has any of NVIDIA's libraries that are looked for.
fn has_libraries(folder: &Path) -> bool {
    const STARTS: [&str; 3] = ["libnvrtc.so", "libcublasLt.so", "libcudnn.so"];
    let wanted = |name: &str| STARTS.iter().any(|start| name.starts_with(start));
    !inside(folder, wanted).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NVRTC: Wanted = Wanted {
        name: "NVRTC",
        purpose: "compiles kernels",
        files: &[("libnvrtc.so.13", 13), ("libnvrtc.so.12", 12)],
        companions: &[],
        package: "nvidia-cuda-nvrtc",
    };

    /// A machine with these files under `root`.
    fn machine(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "no library").unwrap();
        }
        root
    }

    fn search(root: &Path, variables: &[(&str, &str)]) -> Search {
        let under = |value: &str| {
            let parts = value.split(':').map(|it| root.join(it.trim_start_matches('/')));
            std::env::join_paths(parts).unwrap()
        };
        Search::with(|name| variables.iter().find(|it| it.0 == name).map(|it| under(it.1)), root)
    }

    fn candidates(root: &Path, search: &Search) -> Vec<String> {
        let of = |path: PathBuf| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        search.candidates(&NVRTC).map(of).collect()
    }

    #[test]
    fn places_come_in_order_and_once() {
        let wheel = "lib/python3.12/site-packages/nvidia";
        let files = [
            "usr/local/cuda-12.8/lib64/libnvrtc.so.12".to_owned(),
            "usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so.13".to_owned(),
            format!("home/me/project/.venv/{wheel}/cuda_nvrtc/lib/libnvrtc.so.12"),
            format!("opt/torch/.venv/{wheel}/cu13/lib/libnvrtc.so.13"),
            "my/libs/libnvrtc.so.13".to_owned(),
            "my/libs/libnvrtc.so.12".to_owned(),
            format!("env/{wheel}/cu13/lib/libnvrtc.so.13"),
            "env/bin/python3".to_owned(),
            "usr/lib/x86_64-linux-gnu/libnvrtc.so.13".to_owned(),
        ];
        let root = machine(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let root = root.path();
        let search = search(
            root,
            &[
                ("LD_LIBRARY_PATH", "/nowhere:/my/libs"),
                ("VIRTUAL_ENV", "/home/me/project/.venv"),
                ("PATH", "/usr/bin:/env/bin:/other/bin"),
                (VARIABLE, "/opt/torch/.venv"),
            ],
        );
        let order = [&files[3], &files[4], &files[5], &files[2], &files[6], &files[1], &files[0]];
        assert_eq!(candidates(root, &search), order.map(String::clone));
        assert_eq!(search.folders().len(), 6, "each once: {search:?}");
        let old = search.for_driver(12_080);
        assert_eq!(candidates(root, &old), [&files[5], &files[2], &files[0]].map(String::clone));
    }

    #[test]
    fn a_missing_library_gives_one_sentence() {
        let root = machine(&["usr/local/cuda/lib64/libcudnn.so.9"]);
        let none = Wanted { files: &[("libtonnage-none.so.13", 13)], ..NVRTC };
        let Error::Missing(text) = search(root.path(), &[]).open(&none).unwrap_err() else {
            panic!("another error");
        };
        let place = root.path().join("usr/local/cuda/lib64");
        assert_eq!(
            text,
            format!(
                "NVRTC (libtonnage-none.so.13), which compiles kernels, was not found: looked in {} and where the loader looks. \
                 Install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, or set TONNAGE_CUDA_LIBRARIES to the folder that has it",
                place.display()
            )
        );
    }

    #[test]
    fn a_file_that_is_no_library_is_named_with_the_reason() {
        let root = machine(&[
            "usr/local/cuda/lib64/libnvrtc.so.9",
            "usr/local/cuda/lib64/libtonnage-none.so",
        ]);
        let none = Wanted { files: &[("libtonnage-none.so", 0)], ..NVRTC };
        let Error::Missing(text) = search(root.path(), &[]).open(&none).unwrap_err() else {
            panic!("another error");
        };
        assert!(
            text.contains("cannot be opened (") && text.contains("libtonnage-none.so: "),
            "{text}"
        );
    }
}
