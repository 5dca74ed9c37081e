//! The user's Python, and PyTorch in it.
//!
//! In:  the command that is to be predicted.
//! Out: which PyTorch it will use, and the CUDA libraries beside it.

use std::collections::BTreeMap;
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
    /// Releases of CUDA's libraries, by the names of their packages without what says for which CUDA; of those that were
    /// installed as packages.
    pub releases: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Answer {
    python: PathBuf,
    folder: Option<PathBuf>,
    version: Option<String>,
    libraries: Vec<PathBuf>,
    releases: BTreeMap<String, String>,
}

impl Environment {
    /// Of a command: the Python that it names, or that the script which it names is for.
    ///
    /// # Errors
    ///
    /// If there is no Python, or no PyTorch for CUDA in it.
    pub fn of(command: &[String]) -> Result<Self, Error> {
        let words = interpreter(command);
        let python = words.join(" ");
        let output = Command::new(&words[0])
            .args(&words[1..])
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
            releases: answer.releases,
        })
    }
}

/// The first number of the runtime, if this is one.
fn runtime_major(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("libcudart.so.")?.split('.').next()?.parse().ok()
}

/// Programs that begin another one, which their arguments name.
const BEGINNING_OTHERS: [&str; 14] = [
    "conda",
    "env",
    "hatch",
    "micromamba",
    "nice",
    "nohup",
    "numactl",
    "pdm",
    "pixi",
    "poetry",
    "rye",
    "taskset",
    "time",
    "uv",
];

/// Their options before a word that is a name, and no program.
const BEFORE_NAMES: [&str; 11] = [
    "--env",
    "--environment",
    "--extra",
    "--group",
    "--name",
    "--prefix",
    "--python",
    "--with",
    "-e",
    "-n",
    "-p",
];

/// Whether a word is a Python, by the file's name: `python`, with a version or without, free of the global lock (`t`) or not.
fn is_python(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    let Some(version) = name.strip_prefix("python") else { return false };
    let version = version.strip_suffix('t').unwrap_or(version);
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    version.is_empty() || version.split('.').all(is_number)
}

/// Where the Python is in the words of a program that begins another one: neither an option or a variable with its value, nor what
/// comes behind an option.
fn place_of_python(words: &[String]) -> Option<usize> {
    let is_program = |at: usize| {
        let word = &words[at];
        let has_value = word.split('/').next().is_some_and(|start| start.contains('='));
        let is_name = at > 0 && BEFORE_NAMES.contains(&&words[at - 1][..]);
        is_python(word) && !word.starts_with('-') && !has_value && !is_name
    };
    (0..words.len()).find(|at| is_program(*at))
}

/// How the Python of a command is begun: itself, or by the program before it, or the one in a program's first line.
fn interpreter(command: &[String]) -> Vec<String> {
    let program = command.first().map_or("python3", String::as_str);
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program);
    if BEGINNING_OTHERS.contains(&name)
        && let Some(last) = place_of_python(command)
    {
        return command[..=last].to_vec();
    }
    if is_python(program) || (name.starts_with("python") && find(program).is_some_and(is_binary)) {
        return vec![program.to_owned()];
    }
    vec![find(program).and_then(|path| shebang(&path)).unwrap_or_else(|| "python3".to_owned())]
}

/// Where the shell would find it.
fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Whether it is a program of the machine's own code, as a Python with whatever ending is, and `python3-config` is not.
fn is_binary(path: PathBuf) -> bool {
    let mut start = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"\x7fELF"
}

/// The Python that a script's first line names.
fn shebang(path: &Path) -> Option<String> {
    let mut line = Vec::new();
    // A first line is short, whatever the file.
    BufReader::new(fs::File::open(path).ok()?.take(4096)).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let words = line.strip_prefix("#!")?.split_whitespace();
    words.into_iter().find(|word| is_python(word)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_python_of_a_program_is_itself_or_in_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let interpreter = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            super::interpreter(&words).join(" ")
        };
        assert_eq!(interpreter("/opt/env/bin/python3.12"), "/opt/env/bin/python3.12");
        assert_eq!(interpreter("uv run python train.py -v"), "uv run python");
        assert_eq!(interpreter("env X=1 /opt/bin/python3 -c x"), "env X=1 /opt/bin/python3");
        for line in [
            "conda run -n python311 python train.py",
            "conda run --prefix /envs/python python3.12 train.py",
            "conda run --prefix=/envs/python python train.py",
            "env HOME=/home/python python train.py",
            "pixi run -e python3 python train.py",
            "uv run --with python-dotenv python train.py",
            "uv run --python python3.12 --extra python python3.13t train.py",
        ] {
            let (all, _) = line.rsplit_once(' ').unwrap();
            assert_eq!(interpreter(line), all);
        }
        // No program is named that is a Python.
        assert_eq!(interpreter("uv run --python python3.12 train.py"), "python3");
        assert_eq!(
            interpreter(&write("torchrun", "#!/opt/env/bin/python3\nimport x\n")),
            "/opt/env/bin/python3"
        );
        assert_eq!(interpreter(&write("train", "#!/usr/bin/env python3.11\n")), "python3.11");
        assert_eq!(interpreter(&write("run.sh", "#!/bin/sh\npython train.py\n")), "python3");
        assert_eq!(interpreter(&write("binary", "\u{7f}ELF\0\0")), "python3");
        let debug = write("python3-dbg", "\u{7f}ELF\0\0");
        assert_eq!(interpreter(&debug), debug);
        assert_eq!(interpreter(&write("python3-config", "#!/bin/sh\n")), "python3");
        assert_eq!(interpreter("no-such-program-anywhere"), "python3");
    }

    #[test]
    fn a_python_is_told_by_its_name() {
        let all = ["python", "/a/python3", "python3.12", "python3.13t", "pythont", "python311"];
        let none = ["python-dotenv", "python3-config", "python3.", "python.", "ipython", "python/"];
        assert!(all.into_iter().all(is_python) && !none.into_iter().any(is_python));
    }

    #[test]
    fn of_packages_the_first_counts_that_is_for_this_cuda() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("first/torch/__init__.py", "");
        write("first/torch/lib/libcudart.so.13", "");
        for (place, name, release) in [
            ("first", "nvidia-cudnn-cu12", "9.1"),
            ("first", "nvidia-cudnn-cu13", "9.2"),
            ("second", "nvidia-cudnn-cu13", "9.3"),
            ("first", "nvidia-cublas", "13.1"),
            ("second", "nvidia-cublas-cu12", "12.8"),
            ("second", "nvidia-cufft-cu12", "11.3"),
            ("second", "nvidia-nccl-cu13", ""),
        ] {
            let version = if release.is_empty() { "" } else { &format!("Version: {release}\n") };
            let file = format!("{place}/{}-{release}.dist-info/METADATA", name.replace('-', "_"));
            write(&file, &format!("Metadata-Version: 2.1\nName: {name}\n{version}"));
        }
        write("first/broken-1.dist-info/RECORD", "");
        let [first, second] = ["first", "second"].map(|it| folder.path().join(it));
        let path = format!("PYTHONPATH={}:{}", first.display(), second.display());
        // Packages that the machine's Python has are none of these.
        let python = folder.path().join("python3");
        fs::write(&python, "#!/bin/sh\nexec python3 -S \"$@\"\n").unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let command = ["env".to_owned(), path, python.to_str().unwrap().to_owned()];
        let environment = Environment::of(&command).unwrap();
        let release = |name: &str| environment.releases.get(name).map(String::as_str);
        assert_eq!(
            ["cudnn", "cublas", "cufft", "nccl"].map(release),
            [Some("9.2"), Some("13.1"), Some("11.3"), None]
        );
        assert_eq!(environment.cuda, 13);
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
