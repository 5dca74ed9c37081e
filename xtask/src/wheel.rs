//! `cargo xtask wheel`: the Python package, as it is published.
//!
//! In:  `crates/python`. Out: a wheel in `target/wheels`, for every Python from 3.10 on, on Linux as old as PyTorch's own
//! wheels take; with completions for shells, and the library that PyTorch scripts run on without a GPU; checked by auditwheel, and
//! not too large.
//!
//! The tools come from PyPI into a Python of their own. Completions are asked of the command inside the wheel, so that they
//! are always its own.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::install::find_python;
use crate::shell::{root, run, run_with};
use crate::{install, scripts};

/// The Python that builds.
pub(crate) const ENVIRONMENT: &str = "target/wheel-python";

/// Where wheels go.
const WHEELS: &str = "target/wheels";

/// The oldest C library that it must run with, 2.28: PyTorch's own wheels ask for the same.
const PLATFORM: u32 = 28;

/// The most bytes that a wheel may have.
const LARGEST: u64 = 25_000_000;

/// Where shells look for completions, below the folder that Python is installed in.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/tonnage"),
    ("zsh", "zsh/site-functions/_tonnage"),
    ("fish", "fish/vendor_completions.d/tonnage.fish"),
];

/// The library that PyTorch scripts run on, by its package and its file, and where it goes inside the wheel.
const LIBRARY: (&str, &str) = ("tonnage-fake-cudart", "libtonnage_fake_cudart.so");
const LIBRARIES: &str = "tonnage/libraries";

/// What wheels are built for; the linker also wants the C library's version.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the wheel: as it is published, or with `--fast` in a few minutes.
pub(crate) fn build(option: Option<&str>) -> anyhow::Result<()> {
    let profile = match option {
        None => "release",
        Some("--fast") => "fast",
        Some(other) => bail!("`{other}` is no option of it: take --fast, or none"),
    };
    let path = wheel(profile)?;
    println!("{}", path.display());
    Ok(())
}

/// The Pythons that the package is for, oldest first.
const PYTHONS: [&str; 5] = ["python3.10", "python3.11", "python3.12", "python3.13", "python3.14"];

/// Installs a wheel, or one that it builds, into clean Pythons, the oldest and the newest that are here, and runs all tests of
/// the package on it: with the newest also those that need other libraries, and in that of `cargo xtask scripts` those that
/// need PyTorch and what trains with it, on the fake CUDA libraries.
pub(crate) fn full(given: Option<&str>) -> anyhow::Result<()> {
    install::browser()?;
    let wheel = match given {
        Some(path) => fs::canonicalize(path).with_context(|| path.to_owned())?,
        None => wheel("fast")?,
    };
    let here: Vec<(&str, String)> =
        PYTHONS.into_iter().filter_map(|name| Some((name, find_python(name)?))).collect();
    let (Some(oldest), Some(newest)) = (here.first(), here.last()) else {
        bail!("none of {} is on the path", PYTHONS.join(", "));
    };
    let tests = "crates/python/tests";
    if oldest != newest {
        let light =
            format!("{tests} --ignore {tests}/test_full.py --ignore {tests}/test_pytorch.py");
        test_in(oldest, &wheel, &["requirements"], &light)?;
    }
    // The other tests have a PyTorch of their own, or none.
    let heavy = format!("{tests} --ignore {tests}/test_pytorch.py");
    test_in(newest, &wheel, &["requirements", "requirements-full"], &heavy)?;
    test_with_pytorch(&wheel, &format!("{tests}/test_pytorch.py"))?;
    eprintln!(
        "The wheel passes all tests in {} and {}, with other readers of its tables, in a notebook, and with PyTorch and what trains.",
        oldest.0, newest.0
    );
    Ok(())
}

/// Runs tests on the wheel in a clean Python with what these files ask of PyPI.
fn test_in(
    (name, python): &(&str, String),
    wheel: &Path,
    requirements: &[&str],
    tests: &str,
) -> anyhow::Result<()> {
    let folder = format!("target/full-{name}");
    run(&format!("{python} -m venv --clear {folder}"))?;
    let files: String = requirements
        .iter()
        .map(|file| format!(" --requirement crates/python/tests/{file}.txt"))
        .collect();
    run(&format!(
        "{folder}/bin/python -m pip install --quiet --disable-pip-version-check {}{files}",
        wheel.display()
    ))?;
    run(&format!("{folder}/bin/python -m pytest --quiet -p no:cacheprovider {tests}"))
}

/// Runs tests on the wheel beside PyTorch, in a folder of its own that is first on the path: the environment stays as it is.
fn test_with_pytorch(wheel: &Path, tests: &str) -> anyhow::Result<()> {
    let python = scripts::python_that_trains()?;
    let python = python.display();
    let folder = root().join("target/full-pytorch");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    run(&format!(
        "{python} -m pip install --quiet --disable-pip-version-check --target {} {} \
         --requirement crates/python/tests/requirements-pytorch.txt",
        folder.display(),
        wheel.display()
    ))?;
    run_with(
        &format!("{python} -m pytest --quiet -p no:cacheprovider {tests}"),
        &[("PYTHONPATH", &folder.display().to_string())],
    )
}

/// Builds the wheel with a profile of cargo's, and says where it is.
pub(crate) fn wheel(profile: &str) -> anyhow::Result<PathBuf> {
    install::python(ENVIRONMENT, &["crates/python/build-requirements.txt"])?;
    let work = root().join(WHEELS).join("unfinished");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    // maturin finds zig by the Python that is first on the path.
    let path = path_with_tools()?;
    run_with(
        &format!(
            "{ENVIRONMENT}/bin/maturin build --zig --locked --profile {profile} \
             --manifest-path crates/python/Cargo.toml --out {}",
            work.display()
        ),
        &[("PATH", &path)],
    )?;
    let (package, file) = LIBRARY;
    // Its symbols are of no use to anyone, as maturin has it with the extension.
    run_with(
        &format!(
            "{ENVIRONMENT}/bin/cargo-zigbuild rustc --locked --profile {profile} --target {TARGET}.2.{PLATFORM} \
             --package {package} --lib --crate-type cdylib -- -C link-arg=-s"
        ),
        &[("PATH", &path)],
    )?;
    let library = root().join("target").join(TARGET).join(profile).join(file);
    let built = only_wheel_in(&work)?;
    let finished = complete(&built, &work, &library)?;
    check(&finished)?;
    Ok(finished)
}

fn path_with_tools() -> anyhow::Result<String> {
    let tools = root().join(ENVIRONMENT).join("bin");
    let others = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = vec![tools];
    folders.extend(std::env::split_paths(&others));
    let path: OsString = std::env::join_paths(folders)?;
    path.into_string().ok().context("PATH is no text")
}

fn only_wheel_in(folder: &Path) -> anyhow::Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut wheels = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => bail!("one wheel was to be in {}", folder.display()),
    }
}

/// Adds a library, and what shells want, asked of the command inside.
fn complete(wheel: &Path, work: &Path, library: &Path) -> anyhow::Result<PathBuf> {
    let tool = format!("{ENVIRONMENT}/bin/wheel");
    run(&format!("{tool} unpack {} --dest {}", wheel.display(), work.display()))?;
    let name = wheel.file_name().and_then(|name| name.to_str()).context("a wheel has a name")?;
    // `tonnage-0.1.0-cp310-abi3-…`: what is inside lies in folders of the same name.
    let package = name.split('-').take(2).collect::<Vec<_>>().join("-");
    let inside = work.join(&package);
    let libraries = inside.join(LIBRARIES);
    fs::create_dir_all(&libraries).with_context(|| libraries.display().to_string())?;
    fs::copy(library, libraries.join(LIBRARY.1)).with_context(|| library.display().to_string())?;
    for (shell, place) in COMPLETIONS {
        let output = Command::new(root().join(ENVIRONMENT).join("bin/python"))
            .args(["-m", "tonnage", "completions", shell])
            .env("PYTHONPATH", &inside)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .context("cannot run the command inside the wheel")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let place = inside.join(format!("{package}.data/data/share")).join(place);
        let folder = place.parent().context("a file has a folder")?;
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(&place, &output.stdout).with_context(|| place.display().to_string())?;
    }
    run(&format!("{tool} pack {} --dest-dir {WHEELS}", inside.display()))?;
    Ok(root().join(WHEELS).join(name))
}

/// Refuses what PyPI or an old system would.
fn check(wheel: &Path) -> anyhow::Result<()> {
    let output = Command::new(root().join(ENVIRONMENT).join("bin/auditwheel"))
        .arg("show")
        .arg(wheel)
        .output()
        .context("cannot run auditwheel")?;
    let said = String::from_utf8_lossy(&output.stdout);
    eprintln!("{}", said.trim());
    ensure!(output.status.success(), "auditwheel: {}", String::from_utf8_lossy(&output.stderr));
    let oldest = oldest_platform(&said).context("auditwheel names no platform")?;
    ensure!(
        oldest <= PLATFORM,
        "it needs the C library 2.{oldest}: a wheel for 2.{PLATFORM} was wanted"
    );
    let bytes = fs::metadata(wheel)?.len();
    eprintln!("{bytes} bytes, of {LARGEST} at most");
    ensure!(bytes <= LARGEST, "the wheel has {bytes} bytes, more than {LARGEST}");
    Ok(())
}

/// The oldest C library that auditwheel finds a wheel fit for: `manylinux_2_28_x86_64` is 28.
fn oldest_platform(said: &str) -> Option<u32> {
    let tag = said.split("platform tag:").nth(1)?.split('"').nth(1)?;
    tag.strip_prefix("manylinux_2_")?.split('_').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_is_taken_from_what_auditwheel_says() {
        let said = "tonnage-0.1.0.whl\nis consistent with the following platform tag:\n\
                    \"manylinux_2_28_x86_64\".\n\nThe wheel references external versioned symbols";
        assert_eq!(oldest_platform(said), Some(28));
        assert_eq!(oldest_platform("platform tag:\n\"linux_x86_64\"."), None);
        assert_eq!(oldest_platform(""), None);
    }
}
