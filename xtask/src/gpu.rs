//! Everything a machine with a GPU needs, in one folder: nothing is built there.

use std::path::Path;
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
    remove_wheels(&folder)?;
    let wheel = crate::wheel::wheel("release")?;
    std::fs::copy(&wheel, folder.join(wheel.file_name().context("a wheel has a name")?))
        .with_context(|| wheel.display().to_string())?;
    // Tests of memory run there too, whether the machine has pytest or not.
    run(&format!(
        "{}/bin/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest gpu-bundle pytest==9.*",
        crate::wheel::ENVIRONMENT
    ))?;
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

/// Takes away the wheels of versions before: the folder is to have one.
fn remove_wheels(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "whl") {
            std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_of_versions_before_are_taken_away_and_nothing_else() {
        let folder = root().join("target/tmp/wheels-of-versions-before");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["tonnage-0.1.0-cp310.whl", "tonnage-0.2.0-cp310.whl", "gpu.sh"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        remove_wheels(&folder).unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["gpu.sh"]);
    }
}
