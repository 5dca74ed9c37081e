//! What must pass before a change lands.

use anyhow::{Context, anyhow};

use crate::install;
use crate::scripts::{APART, install_meanwhile};
use crate::shell::{present, root, run, run_with};
use crate::web::web;

/// Where tests write down the kernels that a GPU would run, and where it is remembered which of them have compiled.
const KERNELS: &str = "target/kernels";
const COMPILED: &str = "target/kernels-compiled";

/// Instances of each kernel (types, layouts, alignments) that are compiled for every architecture with the tests, which
/// compile each instance for one of them anyway; all would take a quarter of an hour.
const INSTANCES: &str = "3";

/// Installs what the tests need and runs them.
pub(crate) fn test() -> anyhow::Result<()> {
    install::what_tests_need()?;
    web(Some("--check"))?;
    run_recording("cargo test --workspace --locked")?;
    compile_recorded(INSTANCES)?;
    // Threads under a scheduler that tries many interleavings; its locks replace the real ones.
    // With the workspace, since one package by itself would have its dependencies built again with other features.
    run("cargo test --workspace --features tonnage-memory/shuttle --test shuttle --locked")?;
    crate::scripts::light_if_there()?;
    crate::drop_in::light_if_there()
}

/// What CI does.
pub(crate) fn ci() -> anyhow::Result<()> {
    let pytorch = install_meanwhile();
    run("cargo fmt --all --check")?;
    run("cargo clippy --workspace --all-targets --locked -- -D warnings")?;
    // With the workspace its feature `explain` is on; by itself it is not.
    run("cargo clippy --package tonnage-memory --all-targets --locked -- -D warnings")?;
    run_with(
        "cargo doc --workspace --no-deps --document-private-items --locked",
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    licences()?;
    // Called by its README name, so that what people are told to run is what is tested; the soak for a
    // minute.
    run_with("cargo xtask test", &[("TONNAGE_SOAK_SECONDS", "60"), (APART, "1")])?;
    // PyTorch scripts without a GPU. PyTorch is fetched, so without it there is no passing.
    pytorch.join().map_err(|_| anyhow!("installing PyTorch came to a bad end"))??;
    run("cargo xtask scripts --light")?;
    // The drop-in beside PyTorch's own allocator, entry by entry.
    crate::drop_in::light()?;
    // PyTorch's own allocator, of two releases; fetched, so without it there is no passing.
    run("cargo xtask oracle --light")?;
    // One pass over each benchmark, so that they always build and finish; as the tests are built, which takes a
    // tenth of the time that a release does.
    run(
        "cargo bench --package tonnage-engine --package tonnage-replay --package tonnage-analysis --benches --profile dev --locked -- --test",
    )
}

/// Licences, sources and duplicate versions of dependencies, by `deny.toml`.
fn licences() -> anyhow::Result<()> {
    if !present("cargo deny --version") {
        run("cargo install cargo-deny --locked --version ^0.20")?;
    }
    // The advisory database lies outside the registry and cannot be had everywhere.
    run("cargo deny --locked --workspace check bans licenses sources")
}

/// The n-th device call failing, for every n, over everything.
pub(crate) fn sweep() -> anyhow::Result<()> {
    run_with(
        "cargo test --package tonnage-replay --locked --release --test failures",
        &[("TONNAGE_SWEEP", "all")],
    )
}

/// The random model with more seeds.
pub(crate) fn model(seeds: &str) -> anyhow::Result<()> {
    run_with(
        "cargo test --package tonnage-engine --locked --test model -- --nocapture",
        &[("TONNAGE_MODEL_SEEDS", seeds)],
    )
}

/// Many threads on one device, for longer.
pub(crate) fn soak(seconds: &str) -> anyhow::Result<()> {
    run_with(
        "cargo test --package tonnage-memory --locked --release --test soak",
        &[("TONNAGE_SOAK_SECONDS", seconds)],
    )
}

/// Every kernel for every architecture, with the compiler from PyPI; needs no GPU.
pub(crate) fn kernels() -> anyhow::Result<()> {
    install::python_packages()?;
    run("cargo test --package tonnage-cuda-libs --locked --test compile")?;
    run_recording("cargo test --package tonnage-tensor --locked --lib --test suite")?;
    compile_recorded("")
}

/// Runs tests that write down the kernels of the operations they use.
fn run_recording(tests: &str) -> anyhow::Result<()> {
    let folder = root().join(KERNELS);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let folder = folder.to_str().context("the repository's path is not UTF-8")?;
    run_with(tests, &[("TONNAGE_KERNELS", folder)])
}

/// Compiles what was written down, for every architecture: of each kernel so many instances, or all.
fn compile_recorded(most: &str) -> anyhow::Result<()> {
    run(&format!(
        "cargo run --quiet --package tonnage-cuda-libs --example compile_kernels --locked -- {KERNELS} {COMPILED} {most}"
    ))
}

/// Host-side unsafe code under AddressSanitizer.
pub(crate) fn asan() -> anyhow::Result<()> {
    // The sanitizer is an unstable flag; the switch lets the stable compiler take it. A target folder of
    // its own, since everything is built with it.
    run_with(
        "cargo test --package tonnage-device --package tonnage-memory --package tonnage-tensor --package tonnage-drop-in --locked \
         --target x86_64-unknown-linux-gnu --target-dir target/asan --lib --tests",
        &[
            ("RUSTC_BOOTSTRAP", "1"),
            // The fake driver is a library: it finds the sanitizer in the program that loads it.
            ("RUSTFLAGS", "-Zsanitizer=address -Zexport-executable-symbols -Clink-arg=-rdynamic"),
            // Tests ask for more than any machine has, and are to be refused as by the system's allocator.
            ("ASAN_OPTIONS", "allocator_may_return_null=1"),
        ],
    )
}

/// How fast recordings replay, and how that grows.
pub(crate) fn bench() -> anyhow::Result<()> {
    run(
        "cargo bench --package tonnage-engine --package tonnage-replay --package tonnage-analysis --benches --locked",
    )
}
