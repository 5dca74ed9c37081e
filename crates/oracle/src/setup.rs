//! A driver over the libraries of a release, ready to run: fetched, checked, put on the fake runtime, built.
//!
//! In:  a version, such as `2.11.0`; a folder to keep things in.
//! Out: the driver's program. What is there and unchanged is not made again.
//!
//! What is fetched is never part of the project: it lies under `target/`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tonnage_fake_cudart::libraries::LIBRARIES;

/// Takes members out of the wheel.
const FETCH: &str = include_str!("fetch.py");

/// The driver and what it includes of the CUDA runtime.
const SOURCES: [(&str, &str); 4] = [
    ("driver.cpp", include_str!("../driver/driver.cpp")),
    ("include/cuda.h", include_str!("../driver/include/cuda.h")),
    ("include/cuda_runtime.h", include_str!("../driver/include/cuda_runtime.h")),
    ("include/cuda_runtime_api.h", include_str!("../driver/include/cuda_runtime_api.h")),
];

/// The fake runtime, as cargo builds it beside this program.
const ARCHIVE: &str = "libtonnage_fake_cudart.a";

/// The libraries of the allocator, in the wheel.
const PARTS: [&str; 2] = ["torch/lib/libc10.so", "torch/lib/libc10_cuda.so"];

/// Hashes of [`PARTS`] (SHA-256, as wheels write it) in the releases that were compared so far. Others have
/// the wheel's word for it.
const KNOWN: [(&str, [&str; 2]); 8] = [
    (
        "2.8.0",
        [
            "Ea3UGiXHgD3Lyud_tCtCjZTgkccnONSwuSPzvCH-LxE",
            "7j4V1XBcVX19gue8KJsZTurLIjsn175mQ1ySjUvemxo",
        ],
    ),
    (
        "2.9.1",
        [
            "enct-R3WYvZHNyyzIFnww71vsv6cuW8AtAwsgCy6KLg",
            "L2AntCruk7XbP4FLkt--F5B0zJKO662FgEtqJmIU1fc",
        ],
    ),
    (
        "2.10.0",
        [
            "EJdtKpjg-YB-jB9E2TDF7E4Hr3BJzQLMSNUXf5Uqffs",
            "ZEq6verU3SWhVk42D-62lmrFYp9ItHhDSE4y8kme-64",
        ],
    ),
    (
        "2.11.0",
        [
            "vl4XzXdSpq8AOXhwY3k4TDEI9raJFrsZSeYQ9jl7tkA",
            "litp897Gys9ufV-dTHm-zTTKN516vSVxsutMHBU9Fos",
        ],
    ),
    (
        "2.12.1",
        [
            "IdC1s9ugM_fD8YLK8Ozow4C3LOeShzzzJRyYwKs73XY",
            "fhYw8E5xnq5CORACSHq0CFmbPrlzvIOcp-5dmW79M-Y",
        ],
    ),
    (
        "2.13.0",
        [
            "uD6lDpFxx-NFXBn5_yx9IdRXp7gjHpxOobbgMq4RVtU",
            "VNoT15VFYAoYIqcrF5pYKVwZFfjqAZSokGZDfDrEjBo",
        ],
    ),
    (
        "2.14.1",
        [
            "2LzA5sw9C3iHWzLQTxOIeyPgQqqq1PWy45nhgjfVkjQ",
            "gsCSa4gdxWJrnxsouszL8JinEyEwUJj9qPEkjEwBdeU",
        ],
    ),
    (
        "2.15.0",
        [
            "ux_lubFtElwnJYkf0STuULYmRpGYHw5Kr7NxVJ4sblk",
            "s7_Egnf7bB5FHBvpEBuzohREWxSBm-Rw2hJNylSraMA",
        ],
    ),
];

/// Fetches and builds what is missing, and says where the driver is.
///
/// # Errors
///
/// If the release cannot be had, is not what it was, or the driver does not build. The message says what to
/// do.
pub fn prepare(folder: &Path, version: &str) -> anyhow::Result<PathBuf> {
    if version.is_empty() || !version.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') {
        bail!("`{version}` is no version of PyTorch: write 2.11.0");
    }
    let folder = folder.join(version);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // The wheel's list of hashes is written last.
    if !folder.join("RECORD").is_file() {
        fetch(&folder, version)?;
    }
    check(&folder, version)?;
    build(&folder).with_context(|| format!("the driver for PyTorch {version} does not build"))
}

fn fetch(folder: &Path, version: &str) -> anyhow::Result<()> {
    eprintln!("fetching the allocator of PyTorch {version}");
    let mut python = Command::new("python3")
        .args(["-", version])
        .arg(folder)
        .stdin(Stdio::piped())
        .spawn()
        .context("the wheel is fetched with python3 and its pip: install them")?;
    let mut input = python.stdin.take().context("python3's input")?;
    input.write_all(FETCH.as_bytes()).context("python3 takes no program")?;
    drop(input);
    if !python.wait()?.success() {
        bail!("PyTorch {version} could not be fetched");
    }
    Ok(())
}

/// Compares the libraries with the wheel's list, and with what they were when the release was new.
fn check(folder: &Path, version: &str) -> anyhow::Result<()> {
    let list = folder.join("RECORD");
    let record = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let known = KNOWN.iter().find(|(known, _)| *known == version).map(|(_, hashes)| hashes);
    for (place, part) in PARTS.iter().enumerate() {
        let path = folder.join(part);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let hash = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&bytes));
        let by_wheel =
            record.lines().any(|line| line.starts_with(&format!("{part},sha256={hash},")));
        if !by_wheel || known.is_some_and(|hashes| hashes[place] != hash) {
            bail!(
                "{} is not the library that PyTorch {version} was released with: remove {} and try again",
                path.display(),
                folder.display()
            );
        }
    }
    Ok(())
}

/// The first number of the CUDA runtime that a library was linked with.
fn runtime_major(library: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"libcudart.so.";
    let at = library.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let digits = library[at..].iter().take_while(|byte| byte.is_ascii_digit()).copied();
    String::from_utf8(digits.collect()).ok()?.parse().ok()
}

fn build(folder: &Path) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("where this program is")?;
    let archive = program.with_file_name(ARCHIVE);
    let bytes = fs::read(&archive).with_context(|| {
        format!("{} is missing: `cargo xtask oracle` builds it", archive.display())
    })?;
    let driver = folder.join("driver");
    let stamp = folder.join("built");
    let stamped = stamp_of(&bytes);
    if driver.is_file() && fs::read_to_string(&stamp).is_ok_and(|text| text == stamped) {
        return Ok(driver);
    }
    let library = fs::read(folder.join(PARTS[1])).context(PARTS[1])?;
    let major = runtime_major(&library).context("the library names no CUDA runtime")?;
    let sources = folder.join("src");
    fs::create_dir_all(sources.join("include")).with_context(|| sources.display().to_string())?;
    for (name, text) in SOURCES {
        fs::write(sources.join(name), text).with_context(|| name.to_owned())?;
    }
    let fake = folder.join("fake");
    fs::create_dir_all(&fake).with_context(|| fake.display().to_string())?;
    for library in LIBRARIES {
        let file = library.file(major);
        let script = fake.join(format!("{file}.map"));
        fs::write(&script, library.version_script(major)).context("a version script")?;
        compile(|command| {
            command.args(["-shared", "-s", "-o"]).arg(fake.join(&file));
            command.arg(format!("-Wl,-soname,{file}"));
            command.arg(format!("-Wl,--version-script={}", script.display()));
            command.arg("-Wl,--whole-archive").arg(&archive).arg("-Wl,--no-whole-archive");
            command.args(["-Wl,--gc-sections", "-lpthread", "-ldl", "-lm"]);
        })?;
    }
    let torch = folder.join("torch");
    compile(|command| {
        command.args(["-std=c++20", "-O2", "-w", "-DPYTORCH_C10_DRIVER_API_SUPPORTED"]);
        command.arg(format!("-DCUDA_VERSION={major}000"));
        command.arg("-I").arg(sources.join("include")).arg("-I").arg(torch.join("include"));
        command.arg(sources.join("driver.cpp")).arg("-o").arg(&driver);
        command.arg("-L").arg(torch.join("lib")).args(["-lc10_cuda", "-lc10"]);
        command.arg("-L").arg(&fake).arg(format!("-l:{}", LIBRARIES[0].file(major)));
        // Found before whatever CUDA this machine has, also by the libraries themselves; and still if
        // the folder moves.
        command.arg("-Wl,--disable-new-dtags");
        command.arg("-Wl,-rpath,$ORIGIN/fake").arg("-Wl,-rpath,$ORIGIN/torch/lib");
        command.arg("-Wl,-rpath-link").arg(format!("-Wl,{}", torch.join("lib").display()));
    })?;
    fs::write(&stamp, stamped).context("the stamp of what was built")?;
    Ok(driver)
}

/// Tells whether anything that the driver is made of has changed.
fn stamp_of(archive: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(archive);
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update(text);
    }
    BASE64_URL_SAFE_NO_PAD.encode(hash.finalize())
}

fn compile(arguments: impl FnOnce(&mut Command)) -> anyhow::Result<()> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let mut command = Command::new(&compiler);
    arguments(&mut command);
    let status = command.status().with_context(|| {
        format!("cannot run {}: install g++, or name a compiler in CXX", compiler.display())
    })?;
    if !status.success() {
        bail!("{} failed; its words are above", compiler.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_told_from_the_library() {
        assert_eq!(runtime_major(b"\0libc.so.6\0libcudart.so.13\0"), Some(13));
        assert_eq!(runtime_major(b"libcudart.so.12"), Some(12));
        assert_eq!(runtime_major(b"libcudart.so."), None);
        assert_eq!(runtime_major(b"\0libc.so.6\0"), None);
    }

    #[test]
    fn a_version_that_is_none_is_refused_before_anything_is_made() {
        for version in ["", "../x", "2.11 .0", "-r"] {
            let error = prepare(Path::new("/nowhere"), version).unwrap_err().to_string();
            assert!(error.contains("is no version"), "{error}");
        }
    }
}
