//! Fuzz targets, with what they find kept under `fuzz/corpus`.

use anyhow::Context;

use crate::shell::{self, present, run_with};

/// Every target under `fuzz/fuzz_targets`.
const TARGETS: [&str; 2] = ["pickle", "engine"];

/// Runs each target for so many seconds.
pub(crate) fn run(seconds: &str) -> anyhow::Result<()> {
    let seconds: u64 =
        seconds.parse().with_context(|| format!("`{seconds}` is no number of seconds"))?;
    if !present("cargo fuzz --version") {
        shell::run("cargo install cargo-fuzz --locked --version ^0.13")?;
    }
    for target in TARGETS {
        // Coverage needs unstable flags; the switch lets the stable compiler take them.
        run_with(
            &format!(
                "cargo fuzz run {target} -- -max_total_time={seconds} -timeout=10 -rss_limit_mb=2048"
            ),
            &[("RUSTC_BOOTSTRAP", "1")],
        )?;
    }
    Ok(())
}
