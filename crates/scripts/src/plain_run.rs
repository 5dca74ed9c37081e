//! A command on the fake libraries, once and as it is, for programs that compare allocators: no values are computed, nothing
//! runs in the script that it does not bring itself.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tonnage_fake_cudart::notes::NOTES_VARIABLE;
use tonnage_fake_cudart::profile::PROFILE_VARIABLE;

use crate::libraries::Libraries;
use crate::place::Folder;
use crate::{Environment, Error, Gpu};

/// What a process needs to have a GPU that computes nothing.
pub(crate) type FakeGpu = (PathBuf, Vec<(&'static str, OsString)>);

/// The folder and the variables by which a process of this Python has the GPU of this name. The folder stays: whoever starts
/// the process removes it once that has ended.
///
/// # Errors
///
/// If there is no such GPU, no PyTorch for CUDA in the Python, or the libraries cannot be written.
pub fn fake_gpu(python: &str, gpu: &str) -> Result<FakeGpu, Error> {
    let gpu = Gpu::find(gpu)?;
    let environment = Environment::of(&[python.to_owned()])?;
    let folder = Folder::new()?;
    let variables = plain_run(folder.path(), &gpu, None, &environment)?;
    Ok((folder.keep(), variables))
}

/// Writes the libraries into a folder, and says which variables let a process use them. What variables of these names say
/// now is added to.
///
/// # Errors
///
/// If they cannot be written.
pub fn plain_run(
    folder: &Path,
    gpu: &Gpu,
    limit: Option<u64>,
    environment: &Environment,
) -> Result<Vec<(&'static str, OsString)>, Error> {
    let version = i32::try_from(environment.cuda).unwrap_or(13) * 1000;
    let profile = folder.join("profile");
    fs::write(&profile, gpu.profile(limit, version, 1)?.to_lines()).map_err(Error::of(&profile))?;
    let make = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(&path).map_err(Error::of(&path)).map(|()| path)
    };
    let (lib, notes) = (make("lib")?, make("notes")?);
    let libraries = Libraries::write(&lib, &environment.libraries)?;
    let join = |variable: &str, paths: &[PathBuf]| {
        let mut joined = OsString::new();
        let before = std::env::var_os(variable).filter(|it| !it.is_empty());
        for path in paths.iter().map(|it| it.as_os_str()).chain(before.as_deref()) {
            if !joined.is_empty() {
                joined.push(":");
            }
            joined.push(path);
        }
        joined
    };
    Ok(vec![
        ("LD_PRELOAD", join("LD_PRELOAD", &libraries.preload)),
        ("LD_LIBRARY_PATH", join("LD_LIBRARY_PATH", &[lib])),
        (PROFILE_VARIABLE, profile.into()),
        (NOTES_VARIABLE, notes.into()),
        ("TONNAGE_CORE", libraries.core.into()),
    ])
}
