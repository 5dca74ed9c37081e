//! The page of `tonnage view`: built from `web/` into `crates/view/dist`, which the program carries.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::install;
use crate::shell::{root, run};

/// Where the built page lies.
const DIST: &str = "crates/view/dist";

/// Where it is built to be compared.
const COMPARED: &str = "target/web-check";

/// Checks the types, runs the unit tests and builds the page; with `--check`, elsewhere, and compares.
pub(crate) fn web(option: Option<&str>) -> anyhow::Result<()> {
    install::node()?;
    run("npm --prefix web ci --no-audit --no-fund")?;
    run("npm --prefix web run --silent check")?;
    run("npm --prefix web run --silent test")?;
    match option {
        None => run(&format!("node web/build.mjs {DIST}")),
        Some("--check") => check(),
        Some(other) => bail!("`{other}` is no option of it: take --check, or none"),
    }
}

/// The same sources and the same lock file give the same bytes.
fn check() -> anyhow::Result<()> {
    run(&format!("node web/build.mjs {COMPARED}"))?;
    let (carried, built) = (files(DIST)?, files(COMPARED)?);
    let names = carried.keys().chain(built.keys());
    let differs = names.filter(|&name| carried.get(name) != built.get(name));
    match differs.min() {
        None => Ok(()),
        Some(name) => {
            bail!("{DIST}/{name} is not what web/ builds: run `cargo xtask web` and commit {DIST}")
        }
    }
}

/// The files of a folder, by name.
fn files(folder: &str) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let folder = root().join(folder);
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), read(&entry.path())?);
    }
    Ok(files)
}
