//! Scripts on the fake CUDA libraries against what was recorded on a GPU: an environment with PyTorch, and the program
//! that compares.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell::{root, run};

/// PyTorch's release whose recordings there are.
const TORCH: &str = "2.11.0";

/// What every case needs.
const LIGHT: &[&str] = &["torch==2.11.0", "numpy"];

/// What the others need beside.
const ALL: &[&str] = &[
    "torchvision==0.26.0",
    "transformers==5.17.0",
    "accelerate==1.15.0",
    "pytorch-lightning==2.6.6",
    "torch-geometric==2.8.0.post1",
];

/// The environment's Python.
fn python() -> PathBuf {
    root().join(format!("target/scripts/env-{TORCH}/bin/python"))
}

/// Makes the environment, 5 GB under `target/scripts`, unless it is there.
fn environment(light: bool) -> anyhow::Result<()> {
    let folder = root().join(format!("target/scripts/env-{TORCH}"));
    let done = |name: &str| folder.join(format!("{name}.installed"));
    if !python().is_file() {
        // Python 3.12 is what the recordings were made with: others free in another order.
        let has_it = Command::new("python3.12")
            .arg("--version")
            .output()
            .is_ok_and(|it| it.status.success());
        let python = if has_it { "python3.12" } else { "python3" };
        run(&format!("{python} -m venv {}", folder.display()))?;
    }
    for (name, packages) in [("light", LIGHT), ("all", ALL)] {
        if done(name).is_file() || (light && name == "all") {
            continue;
        }
        run(&format!(
            "{} -m pip install --no-cache-dir --quiet {}",
            python().display(),
            packages.join(" ")
        ))?;
        std::fs::write(done(name), packages.join("\n"))?;
    }
    Ok(())
}

/// Builds what is needed, then runs the cases: `--light` for those that need PyTorch alone, names for some.
pub(crate) fn scripts(options: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let options: Vec<String> = options.collect();
    environment(options.iter().any(|option| option == "--light"))?;
    run("cargo build --quiet --locked --package tonnage-fake-cudart --package tonnage-scripts")?;
    let status = Command::new(root().join("target/debug/tonnage-scripts"))
        .arg(python())
        .args(options)
        .current_dir(root())
        .status()
        .context("cannot run the comparison")?;
    if !status.success() {
        bail!("cases came out worse than they must, or could not run: {status}");
    }
    Ok(())
}

/// Writes the names that the driver's library exports, as the runtime's own header lists them: names, nothing else.
pub(crate) fn driver_names() -> anyhow::Result<()> {
    environment(true)?;
    let packages = root().join(format!("target/scripts/env-{TORCH}/lib"));
    let header = find(&packages, "cuda.h", 6).context("the environment has no cuda.h")?;
    let text = std::fs::read_to_string(&header).with_context(|| header.display().to_string())?;
    let path = root().join("crates/scripts/data/names/libcuda.so.1.txt");
    let mut names = declared(&text);
    names.sort_unstable();
    names.dedup();
    std::fs::write(&path, names.join("\n") + "\n").with_context(|| path.display().to_string())?;
    Ok(())
}

/// Functions that a header declares, and the later versions that it stands in for them.
fn declared(header: &str) -> Vec<&str> {
    let mut words = header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '#');
    let mut names = Vec::new();
    while let Some(word) = words.next() {
        let name = match word {
            "CUDAAPI" => words.find(|word| !word.is_empty()),
            "#define" => words.by_ref().filter(|word| !word.is_empty()).nth(1),
            _ => None,
        };
        let is_function = |name: &&str| {
            name.strip_prefix("cu").is_some_and(|it| it.starts_with(char::is_uppercase))
        };
        names.extend(name.filter(is_function));
    }
    names
}

fn find(folder: &std::path::Path, name: &str, depth: usize) -> Option<PathBuf> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            folders.push(path);
        } else if entry.file_name() == name {
            return Some(path);
        }
    }
    folders.sort();
    if depth == 0 {
        return None;
    }
    folders.iter().find_map(|folder| find(folder, name, depth - 1))
}

#[cfg(test)]
mod tests {
    use super::declared;

    #[test]
    fn functions_are_told_from_what_is_said_about_them() {
        let header = "#define cuMemFree cuMemFree_v2\n#define __CUDA_API_VERSION 13000\n\
                      /** see cuLink */ CUresult CUDAAPI cuInit(unsigned int Flags);\nCUresult CUDAAPI\n cuMemFree(x);";
        assert_eq!(declared(header), ["cuMemFree_v2", "cuInit", "cuMemFree"]);
    }
}
