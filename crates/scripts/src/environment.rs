//! The user's Python, and PyTorch in it.
//!
//! In:  the command that is to be predicted.
//! Out: which PyTorch it will use, and the CUDA libraries beside it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Error;

/// Asks a Python where its PyTorch is.
const PROBE: &str = include_str!("probe.py");

/// A Python with PyTorch for CUDA.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The interpreter.
    pub python: PathBuf,
    /// PyTorch's version.
    pub torch: String,
    /// The first number of the CUDA runtime that PyTorch was built with.
    pub cuda: u32,
    /// Shared libraries of PyTorch and of CUDA.
    pub(crate) libraries: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Answer {
    python: PathBuf,
    folder: Option<PathBuf>,
    version: Option<String>,
    libraries: Vec<PathBuf>,
}

impl Environment {
    /// Of a command: the Python that it names, or that the script which it names is for.
    ///
    /// # Errors
    ///
    /// If there is no Python, or no PyTorch for CUDA in it.
    pub fn of(command: &[String]) -> Result<Self, Error> {
        let program = command.first().map_or("python3", String::as_str);
        let python = interpreter(program);
        let output = Command::new(&python)
            .args(["-c", PROBE])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Error::Program { program: python.clone(), error })?;
        let none =
            |reason: &str| Error::NoTorch { python: python.clone(), reason: reason.to_owned() };
        let text = String::from_utf8_lossy(&output.stdout);
        // What a Python runs when it starts may print too.
        let last = text.trim().lines().last().unwrap_or_default();
        let answer: Answer = serde_json::from_str(last).map_err(|_| {
            let said = String::from_utf8_lossy(&output.stderr);
            none(said.lines().last().unwrap_or("it is no Python"))
        })?;
        if answer.folder.is_none() {
            return Err(none("there is no torch: pip install torch"));
        }
        let cuda = answer.libraries.iter().find_map(|path| runtime_major(path));
        let cuda = cuda
            .ok_or_else(|| none("this torch has no libcudart beside it, so it is for the CPU"))?;
        Ok(Self {
            python: answer.python,
            torch: answer.version.unwrap_or_default(),
            cuda,
            libraries: answer.libraries,
        })
    }
}

/// The first number of the runtime, if this is one.
fn runtime_major(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("libcudart.so.")?.split('.').next()?.parse().ok()
}

/// The Python of a program: itself, or the one in its first line.
fn interpreter(program: &str) -> String {
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program);
    if name.starts_with("python") {
        return program.to_owned();
    }
    find(program).and_then(|path| shebang(&path)).unwrap_or_else(|| "python3".to_owned())
}

/// Where the shell would find it.
fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The Python that a script's first line names.
fn shebang(path: &Path) -> Option<String> {
    let mut line = Vec::new();
    // A first line is short, whatever the file.
    BufReader::new(fs::File::open(path).ok()?.take(4096)).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let words = line.strip_prefix("#!")?.split_whitespace();
    words
        .into_iter()
        .find(|word| word.rsplit('/').next().is_some_and(|name| name.starts_with("python")))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_of_a_program_is_itself_or_in_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        assert_eq!(interpreter("/opt/env/bin/python3.12"), "/opt/env/bin/python3.12");
        assert_eq!(
            interpreter(&write("torchrun", "#!/opt/env/bin/python3\nimport x\n")),
            "/opt/env/bin/python3"
        );
        assert_eq!(interpreter(&write("train", "#!/usr/bin/env python3.11\n")), "python3.11");
        assert_eq!(interpreter(&write("run.sh", "#!/bin/sh\npython train.py\n")), "python3");
        assert_eq!(interpreter(&write("binary", "\u{7f}ELF\0\0")), "python3");
        assert_eq!(interpreter("no-such-program-anywhere"), "python3");
    }

    #[test]
    fn the_runtime_is_told_from_its_file() {
        assert_eq!(runtime_major(Path::new("/x/libcudart.so.13")), Some(13));
        assert_eq!(runtime_major(Path::new("/x/libcudart.so.12.8.90")), Some(12));
        assert_eq!(runtime_major(Path::new("/x/libcublas.so.13")), None);
    }

    #[test]
    fn no_python_and_no_torch_are_told() {
        let error = Environment::of(&["/nowhere/python".to_owned()]).unwrap_err();
        assert!(matches!(error, Error::Program { .. }), "{error}");
        let error = Environment::of(&["python3".to_owned(), "-c".to_owned()]);
        // This Python may have PyTorch; without, it is told.
        if let Err(error) = error {
            assert!(matches!(error, Error::NoTorch { .. }), "{error}");
        }
    }
}
