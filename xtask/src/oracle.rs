//! PyTorch's own allocator beside the engine: built, and run with the options given.

use std::process::Command;

use anyhow::{Context, bail};

use crate::install;
use crate::shell::{root, run};

/// Builds the oracle and the fake runtime that it is linked to, then runs it.
pub(crate) fn oracle(options: impl Iterator<Item = String>) -> anyhow::Result<()> {
    install::what_the_oracle_needs()?;
    // Optimised: the walk over every block would take most of the time.
    run(
        "cargo build --quiet --locked --profile fast --package tonnage-fake-cudart --package tonnage-oracle",
    )?;
    // Options go through as they are: words with spaces stay words.
    let status = Command::new(root().join("target/fast/tonnage-oracle"))
        .args(options)
        .current_dir(root())
        .status()
        .context("cannot run the oracle")?;
    if !status.success() {
        bail!("the oracle found differences, or could not run: {status}");
    }
    Ok(())
}
