//! `cargo xtask drop-in`: PyTorch's allocator beside the drop-in, on the fake CUDA libraries.
//!
//! In:  PyTorch in `target/scripts`, as `cargo xtask scripts` installs it. Out: a table of cases; an error if one differs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::scripts;
use crate::shell::{root, run};

/// The file that cargo makes of the extension.
const EXTENSION: &str = "target/debug/libtonnage_python.so";

/// Builds what is needed, then runs the cases: `--light` for those that compile nothing, names for some.
pub(crate) fn drop_in(options: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let python = scripts::python_with_torch()?;
    run(
        "cargo build --quiet --locked --package tonnage-fake-cudart --package tonnage-scripts --package tonnage-python",
    )?;
    let package = lay_out()?;
    let status = Command::new(root().join("target/debug/tonnage-on-fakes"))
        .arg(python)
        .arg(root().join("crates/python/tests/drop_in/compare.py"))
        .args(options)
        .env("PYTHONPATH", package)
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
fn lay_out() -> anyhow::Result<PathBuf> {
    let folder = root().join("target/drop-in/package");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    copy(&root().join("crates/python/tonnage"), &folder.join("tonnage"))?;
    let extension = root().join(EXTENSION);
    std::fs::copy(&extension, folder.join("tonnage/_tonnage.abi3.so"))
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
