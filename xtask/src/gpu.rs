//! Everything a machine with a GPU needs, in one folder: nothing is built there.

use std::process::Command;

use anyhow::{Context, bail};

use crate::shell::{root, run};

/// Tests with parts that need a GPU, under the names that they are called by there, the packages they are in, and how
/// cargo chooses them.
const SUITES: [(&str, &str, &[&str]); 6] = [
    ("cuda_real", "tonnage-device", &["--test", "cuda_real"]),
    ("gpu", "tonnage-cuda-libs", &["--test", "gpu"]),
    ("devices", "tonnage-replay", &["--test", "devices"]),
    ("soak", "tonnage-memory", &["--test", "soak"]),
    ("tensor", "tonnage-tensor", &["--lib"]),
    ("tensor_suite", "tonnage-tensor", &["--test", "suite"]),
];

/// Builds the folder `gpu-bundle`.
pub(crate) fn bundle() -> anyhow::Result<()> {
    let folder = root().join("gpu-bundle");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let copy = |from: &str, to: &str| {
        let from = root().join(from);
        std::fs::copy(&from, folder.join(to)).map(drop).with_context(|| from.display().to_string())
    };
    run("cargo build --release --locked --package tonnage-cli")?;
    copy("target/release/tonnage", "tonnage")?;
    for (suite, package, chosen) in SUITES {
        copy(&executable(package, chosen)?, suite)?;
    }
    run("cargo build --release --locked --package tonnage-tensor --example throughput")?;
    copy("target/release/examples/throughput", "throughput")?;
    run("cargo build --release --locked --package tonnage --example dump_snapshot")?;
    copy("target/release/examples/dump_snapshot", "dump_snapshot")?;
    copy("benches/gpu.sh", "gpu.sh")?;
    copy("benches/recipes.py", "recipes.py")?;
    let wheel = crate::wheel::wheel("release")?;
    std::fs::copy(&wheel, folder.join(wheel.file_name().context("a wheel has a name")?))
        .with_context(|| wheel.display().to_string())?;
    for script in ["micro.py", "beside.py", "memory_viz.py", "throughput.py", "oom.py"] {
        copy(&format!("benches/pytorch/{script}"), script)?;
    }
    std::fs::create_dir_all(folder.join("streams")).context("gpu-bundle/streams")?;
    for number in 0..40 {
        let file = format!("streams/{number:02}.jsonl");
        copy(&format!("testdata/{file}"), &file)?;
    }
    eprintln!("carry gpu-bundle/ over, then: bash gpu-bundle/gpu.sh > benches/results/NAME.txt");
    Ok(())
}

/// Builds a test and says where its program is.
fn executable(package: &str, chosen: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("cargo")
        .args(["test", "--release", "--locked", "--no-run", "--message-format=json"])
        .args(["--package", package])
        .args(chosen)
        .current_dir(root())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("{package} does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["profile"]["test"] == true)
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
        .with_context(|| format!("cargo names no program of {package} for {chosen:?}"))
}
