//! `cargo xtask drop-in`: PyTorch's allocator beside the drop-in, on the fake CUDA libraries.
//!
//! In:  PyTorch in `target/scripts`, as `cargo xtask scripts` installs it. Out: a table of cases; an error if one differs, or could not
//! be run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::install::what_compiles_for;
use crate::scripts;
use crate::shell::{alone_with_file, root, run};

/// The file that cargo makes of the extension.
const EXTENSION: &str = "libtonnage_python.so";

/// Who builds what the cases need.
#[derive(Clone, Copy)]
enum Build {
    /// The three packages by themselves: other features of what they depend on than with the workspace, so that it is built again.
    Packages,
    /// The workspace's tests, which were built a moment ago.
    Tests,
}

impl Build {
    /// Builds it, and says where the libraries are.
    fn run(self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Packages => {
                run(
                    "cargo build --quiet --locked --package tonnage-fake-cudart --package tonnage-scripts --package tonnage-python",
                )?;
                Ok(root().join("target/debug"))
            }
            Self::Tests => {
                run("cargo test --quiet --workspace --locked --no-run")?;
                Ok(root().join("target/debug/deps"))
            }
        }
    }
}

/// Releases of PyTorch that the drop-in knows, all of major version 2; `OLDEST` and `NEWEST` of `tonnage/torch` say the same.
const RELEASES: std::ops::RangeInclusive<u32> = 9..=15;

/// Builds what is needed, then runs the cases: `--light` for those that compile nothing, names for some, `--release` for the light ones
/// with another PyTorch, `--scripts` for every script of `testdata/scripts`.
pub(crate) fn drop_in(options: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut options: Vec<String> = options.collect();
    let python = match options.iter().position(|it| it == "--release") {
        None if options.iter().any(|it| it == "--scripts") => scripts::python_that_trains()?,
        None => scripts::python_with_torch()?,
        Some(at) => {
            let release = options.get(at + 1).context("--release: which? As in 2.15.0")?.clone();
            options.drain(at..at + 2);
            options.push("--light".to_owned());
            check_release(&release)?;
            scripts::python_with_torch_of(&release)?
        }
    };
    compare(&python, &options, Build::Packages)
}

/// The light cases, with what the tests of the workspace were built with.
pub(crate) fn light() -> anyhow::Result<()> {
    compare(&scripts::python_with_torch()?, &["--light".to_owned()], Build::Tests)
}

/// The light cases where their environment is, unless someone else runs them; else what was left out.
pub(crate) fn light_if_there() -> anyhow::Result<()> {
    match scripts::light_environment() {
        scripts::LightEnvironment::Apart => Ok(()),
        scripts::LightEnvironment::There => light(),
        scripts::LightEnvironment::Missing => {
            eprintln!(
                "left out: the drop-in beside PyTorch's allocator; `cargo xtask drop-in --light` installs PyTorch under target/scripts \
                 (5 GB) and runs it"
            );
            Ok(())
        }
    }
}

/// Nothing is installed for a release that would be refused.
fn check_release(release: &str) -> anyhow::Result<()> {
    let minor = release.strip_prefix("2.").and_then(|rest| rest.split_once('.'));
    let minor = minor.and_then(|(minor, _)| minor.parse().ok());
    ensure!(
        minor.is_some_and(|minor| RELEASES.contains(&minor)),
        "the drop-in does not know PyTorch {release}: releases 2.{}.0 to 2.{} are known",
        RELEASES.start(),
        RELEASES.end()
    );
    Ok(())
}

fn compare(python: &Path, options: &[String], build: Build) -> anyhow::Result<()> {
    what_compiles_for(python)?;
    // The package of a run that is under way is not taken away from it.
    let _alone = alone_with_file(&root().join("target/drop-in/package.lock"))?;
    let libraries = build.run()?;
    let package = lay_out(&libraries.join(EXTENSION))?;
    let status = Command::new(root().join("target/debug/tonnage-on-fakes"))
        .arg(python)
        .arg(root().join("crates/python/tests/drop_in/compare.py"))
        .args(options)
        .env("PYTHONPATH", package)
        .env("TONNAGE_LIBRARIES", libraries)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TONNAGE_CACHE_DIR", root().join("target/drop-in/cache"))
        .current_dir(root())
        .status()
        .context("cannot run the comparison")?;
    if !status.success() {
        bail!("cases differ, or could not run: {status}");
    }
    Ok(())
}

/// The package in a folder of its own, as pip would install it.
fn lay_out(extension: &Path) -> anyhow::Result<PathBuf> {
    let folder = root().join("target/drop-in/package");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    copy(&root().join("crates/python/tonnage"), &folder.join("tonnage"))?;
    std::fs::copy(extension, folder.join("tonnage/_tonnage.abi3.so"))
        .with_context(|| extension.display().to_string())?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_release;

    #[test]
    fn releases_that_nobody_knows_are_refused_before_anything_is_installed() {
        for known in ["2.9.1", "2.11.0", "2.15.0"] {
            check_release(known).unwrap();
        }
        for other in ["2.8.0", "2.16.0", "3.0.0", "2.11", "newest", ""] {
            let refused = check_release(other).unwrap_err().to_string();
            assert!(refused.contains("2.9.0 to 2.15"), "{other}: {refused}");
        }
    }
}
