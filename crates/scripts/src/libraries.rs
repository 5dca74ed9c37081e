//! The libraries that a script loads instead of CUDA's.
//!
//! In:  the CUDA libraries beside the user's PyTorch, of which only names are read.
//! Out: a folder with a library for each, and one for the driver, which the user does not have.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use object::read::ReadCache;
use object::read::elf::{ElfFile64, FileHeader as _, Sym as _};
use object::{Endianness, elf};

use crate::Error;
use crate::stub::Stub;

/// The library with behaviour, as cargo names it.
const CORE: &str = "libtonnage_fake_cudart.so";

/// Where else it may lie.
const FOLDER_VARIABLE: &str = "TONNAGE_LIBRARIES";

/// Libraries of CUDA that nothing may be computed with, nor a GPU watched. Others are the user's own: cuDNN answers without a device,
/// NVRTC compiles without one.
const REPLACED: [&str; 8] = [
    "libcublas.so.",
    "libcublasLt.so.",
    "libcudart.so.",
    "libcufft.so.",
    "libcupti.so.",
    "libcusolver.so.",
    "libcusparse.so.",
    "libnccl.so.",
];

/// Libraries of the driver, by what they export.
const OF_THE_DRIVER: [(&str, &str); 2] =
    [("libcuda.so.1", include_str!("../data/names/libcuda.so.1.txt")), ("libnvidia-ml.so.1", "")];

/// A folder of libraries, ready to be loaded.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// The library with behaviour.
    pub(crate) core: PathBuf,
    /// All, in the order in which they are to be loaded.
    pub(crate) preload: Vec<PathBuf>,
}

impl Libraries {
    /// Writes them into a folder.
    pub(crate) fn write(folder: &Path, installed: &[PathBuf]) -> Result<Self, Error> {
        if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
            return Err(Error::Platform);
        }
        let behaving_file = core()?;
        let behaving = exports(&behaving_file)?.names;
        // By a path of ours: where programs are installed, paths may have spaces, which part a list of libraries.
        let core = folder.join(CORE);
        std::os::unix::fs::symlink(&behaving_file, &core).map_err(Error::of(&core))?;
        let mut preload = vec![core.clone()];
        let mut write = |file: &str, version: &str, names: BTreeSet<String>| {
            let names: Vec<String> =
                names.into_iter().filter(|name| !behaving.contains(name)).collect();
            let path = folder.join(file);
            let core = core.to_string_lossy();
            let bytes = Stub { file, version, names: &names, core: &core }.to_bytes();
            fs::write(&path, bytes).map_err(Error::of(&path))?;
            preload.push(path);
            Ok::<(), Error>(())
        };
        for path in installed {
            let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if REPLACED.iter().any(|replaced| file.starts_with(replaced)) {
                let Exports { names, version } = exports(path)?;
                write(file, &version, names)?;
            }
        }
        for (file, names) in OF_THE_DRIVER {
            write(file, "", names.lines().map(str::to_owned).collect())?;
        }
        // Some ask for the driver by the name that programs are linked with.
        let link = folder.join("libcuda.so");
        std::os::unix::fs::symlink("libcuda.so.1", &link).map_err(Error::of(&link))?;
        Ok(Self { core, preload })
    }
}

/// Where a program that is not ours has it.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Says where the libraries lie, for a program that they do not lie beside: a Python with this in it.
pub fn libraries_in(folder: PathBuf) {
    // Said twice, it is the same.
    let _ = FOLDER.set(folder);
}

/// The library with behaviour: beside this program, or where a build keeps it.
fn core() -> Result<PathBuf, Error> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let named = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
    let folders = [
        named,
        FOLDER.get().cloned(),
        Some(beside.to_owned()),
        Some(beside.join("deps")),
        beside.parent().map(Path::to_owned),
    ];
    let mut paths = folders.into_iter().flatten().map(|folder| folder.join(CORE));
    let path = paths.find(|path| path.is_file());
    path.ok_or(Error::NoLibraries { file: CORE, program })
}

/// What a library exports.
struct Exports {
    names: BTreeSet<String>,
    /// The version that its symbols carry: all the same, or none.
    version: String,
}

fn exports(path: &Path) -> Result<Exports, Error> {
    let file = fs::File::open(path).map_err(Error::of(path))?;
    // Only what is looked at is read: these libraries have hundreds of megabytes.
    let cache = ReadCache::new(file);
    read_exports(&cache).map_err(|error| Error::File {
        path: path.to_owned(),
        error: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}

fn read_exports<'a>(data: impl object::ReadRef<'a>) -> object::Result<Exports> {
    let file = ElfFile64::<Endianness, _>::parse(data)?;
    let (endian, header) = (file.endian(), file.elf_header());
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    let versions = sections.versions(endian, data)?;
    let mut exports = Exports { names: BTreeSet::new(), version: String::new() };
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.st_type() != elf::STT_FUNC {
            continue;
        }
        let name = symbol.name(endian, symbols.strings())?;
        exports.names.insert(String::from_utf8_lossy(name).into_owned());
        if let Some(versions) = &versions
            && let Some(version) =
                versions.version(versions.version_index(endian, index).index())?
        {
            exports.version = String::from_utf8_lossy(version.name()).into_owned();
        }
    }
    Ok(exports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_has_every_name_once() {
        for (file, names) in OF_THE_DRIVER {
            let list: Vec<_> = names.lines().collect();
            assert!(list.is_sorted(), "{file}");
            assert_eq!(list.len(), list.iter().collect::<BTreeSet<_>>().len(), "{file}");
            assert!(list.iter().all(|name| name.starts_with("cu")), "{file}");
        }
    }

    #[test]
    fn what_a_library_exports_is_read_from_it() {
        let program = std::env::current_exe().unwrap();
        let core = core().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let names = exports(&core).unwrap().names;
        for name in ["cudaMalloc", "cuMemCreate", "ncclAllGather", "tonnage_fake_unknown"] {
            assert!(names.contains(name), "{name}");
        }
        assert!(!names.contains("malloc"), "what it asks of others is not among it");
        let folder = tempfile::tempdir().unwrap();
        let written = Libraries::write(folder.path(), &[]).unwrap();
        assert!(written.preload.iter().all(|path| path.starts_with(folder.path())), "{written:?}");
        assert_eq!(written.core.canonicalize().unwrap(), core.canonicalize().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcudart.so.13");
        fs::write(&path, "not a library").unwrap();
        let error = Libraries::write(folder.path(), &[path]).unwrap_err().to_string();
        assert!(error.contains("libcudart.so.13"), "{error}");
    }
}
