//! Commands run from the root of the repository.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root")
}

/// Runs a command, given as one line, with more environment; its output is shown.
pub(crate) fn run_with(line: &str, environment: &[(&str, &str)]) -> anyhow::Result<()> {
    eprintln!("$ {line}");
    let mut words = line.split_whitespace();
    let program = words.next().context("an empty command")?;
    let status = Command::new(program)
        .args(words)
        .envs(environment.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs a command, given as one line; its output is shown.
pub(crate) fn run(line: &str) -> anyhow::Result<()> {
    run_with(line, &[])
}

/// Waits until no other run holds this file, and holds it: for as long as what comes back lives.
pub(crate) fn alone_with_file(path: &Path) -> anyhow::Result<File> {
    let context = || path.display().to_string();
    std::fs::create_dir_all(path.parent().unwrap_or(root())).with_context(context)?;
    let file = File::create(path).with_context(context)?;
    file.lock().with_context(context)?;
    Ok(file)
}

/// Whether a command can be run at all.
pub(crate) fn present(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let Some(program) = words.next() else { return false };
    let output = Command::new(program).args(words).current_dir(root()).output();
    output.is_ok_and(|output| output.status.success())
}
