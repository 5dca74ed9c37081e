//! Scripts on the fake CUDA libraries against what was recorded on a GPU: an environment with PyTorch, and the program
//! that compares.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::install::{find_python, python_packages, what_compiles_for};
use crate::shell::{alone_with_file, present, root, run};

/// PyTorch's release whose recordings there are.
const TORCH: &str = "2.11.0";

/// Others that the light cases are run with: one before it, and the newest.
const OTHERS: [&str; 2] = ["2.9.1", "2.15.0"];

/// What the light cases need: PyTorch and what it loads, as it was with the recordings, and NumPy, which objects go through on
/// their way between ranks. Each is installed by itself, so that one that could not be had is asked for again alone.
const LIGHT: &[&str] = &[
    "filelock==4.2.10",
    "fsspec==2026.9.0",
    "jinja2==3.1.6",
    "markupsafe==3.0.4",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "setuptools==81.0.0",
    "sympy==1.14.0",
    "typing-extensions==4.16.0",
    "nvidia-cublas==13.1.0.3",
    "nvidia-cuda-cupti==13.0.85",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cudnn-cu13==9.19.0.56",
    "nvidia-cufft==12.0.0.61",
    "nvidia-cufile==1.15.1.6",
    "nvidia-curand==10.4.0.35",
    "nvidia-cusolver==12.0.4.66",
    "nvidia-cusparse==12.6.3.3",
    "nvidia-cusparselt-cu13==0.8.0",
    "nvidia-nccl-cu13==2.28.9",
    "nvidia-nvjitlink==13.0.88",
    "nvidia-nvshmem-cu13==3.4.5",
    "nvidia-nvtx==13.0.85",
    "triton==3.6.0",
    "torch==2.11.0",
];

/// What the others need beside, with whatever that needs.
const ALL: &[&str] = &[
    "torchvision==0.26.0",
    "transformers==5.17.0",
    "accelerate==1.15.0",
    "pytorch-lightning==2.6.6",
    "torch-geometric==2.8.0.post1",
    "torchaudio==2.11.0",
    "bitsandbytes==0.50.2",
];

/// How long packages are asked for, all together: chosen, several times what 3 GB take where a registry answers.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// How often a package is asked for, and the longest pause before it is asked for again: one that is not there does not
/// come by waiting.
const ATTEMPTS: usize = 7;
const PAUSE: Duration = Duration::from_secs(60);

fn environment_folder(torch: &str) -> PathBuf {
    root().join(format!("target/scripts/env-{torch}"))
}

/// The Python of the recordings' environment.
fn python() -> PathBuf {
    python_of(TORCH)
}

fn python_of(torch: &str) -> PathBuf {
    environment_folder(torch).join("bin/python")
}

/// Whether the light cases can run without anything being installed.
fn is_there() -> bool {
    let installed = installed(&environment_folder(TORCH));
    python().is_file() && LIGHT.iter().all(|package| installed.contains(&as_folder(package)))
}

/// A package and its version, as the folder that tells of it is called.
fn as_folder(package: &str) -> String {
    let name = package.replace("==", "\0").replace('-', "_").replace('\0', "-");
    format!("{}.dist-info", name.to_lowercase())
}

/// Folders that tell of packages, in lower case.
fn installed(environment: &Path) -> Vec<String> {
    let whole = folders_of_packages(environment).into_iter().filter(|path| is_whole(path));
    let names = whole.filter_map(|path| Some(path.file_name()?.to_string_lossy().to_lowercase()));
    names.collect()
}

/// Folders that tell of packages; parts of them may be missing, of one that was being installed when the machine went down.
fn folders_of_packages(environment: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let versions = entries(&environment.join("lib")).map(|it| it.path().join("site-packages"));
    let all =
        versions.flat_map(|packages| entries(&packages).map(|it| it.path()).collect::<Vec<_>>());
    all.filter(|path| path.extension().is_some_and(|it| it == "dist-info")).collect()
}

/// Whether all of a package is there: pip says last that it was who installed it.
fn is_whole(folder: &Path) -> bool {
    folder.join("INSTALLER").is_file()
}

/// Takes away what tells of packages that are not whole, which pip would take to be there.
fn forget_parts(environment: &Path) -> anyhow::Result<()> {
    for folder in folders_of_packages(environment).iter().filter(|path| !is_whole(path)) {
        std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

/// Makes the environment, 5 GB under `target/scripts`, as far as it is not there.
fn environment(light: bool) -> anyhow::Result<()> {
    let folder = environment_folder(TORCH);
    let until = Instant::now() + PATIENCE;
    let _alone = alone_with(TORCH)?;
    make_python(TORCH)?;
    forget_parts(&folder)?;
    let there = installed(&folder);
    for package in LIGHT.iter().filter(|package| !there.contains(&as_folder(package))) {
        install(TORCH, &["--no-deps", package], until)?;
    }
    let done = folder.join("all.installed");
    let all = ALL.join("\n");
    if !light && std::fs::read_to_string(&done).unwrap_or_default() != all {
        install(TORCH, ALL, until)?;
        std::fs::write(&done, all)?;
    }
    Ok(())
}

/// The same of another release, which names what it needs itself.
fn environment_of(torch: &str) -> anyhow::Result<()> {
    let _alone = alone_with(torch)?;
    make_python(torch)?;
    forget_parts(&environment_folder(torch))?;
    let package = format!("torch=={torch}");
    let there = installed(&environment_folder(torch));
    let is_there = |name: &str| there.iter().any(|it| it.starts_with(name));
    if there.contains(&as_folder(&package)) && is_there("setuptools-") && is_there("numpy-") {
        return Ok(());
    }
    install(torch, &[&package, "setuptools", "numpy"], Instant::now() + PATIENCE)
}

/// Waits until no other run makes the environment of a release: what one has not finished looks broken to another. It is let go
/// with the file.
fn alone_with(torch: &str) -> anyhow::Result<File> {
    alone_with_file(&root().join(format!("target/scripts/env-{torch}.lock")))
}

/// An empty environment for a release, if there is none: one that has no pip was never whole.
fn make_python(torch: &str) -> anyhow::Result<()> {
    if present(&format!("{} -m pip --version", python_of(torch).display())) {
        return Ok(());
    }
    // Python 3.12 is what the recordings were made with: others free in another order.
    let python = find_python("python3.12").unwrap_or_else(|| "python3".to_owned());
    let make = format!("{python} -m venv --clear {}", environment_folder(torch).display());
    if run(&make).is_err() {
        // Debian's python3 comes without: what the tests install brings it.
        python_packages()?;
        run(&make)?;
    }
    Ok(())
}

/// Installs packages. A registry that has had enough for now is asked again, after a pause, until time is over.
fn install(torch: &str, packages: &[&str], until: Instant) -> anyhow::Result<()> {
    let mut pause = Duration::from_secs(5);
    for attempt in 1..=ATTEMPTS {
        eprintln!("$ pip install {}", packages.join(" "));
        let mut pip = Command::new(python_of(torch));
        // Nothing is kept beside what is installed, and nothing is compiled that may never be imported.
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.args(["--no-cache-dir", "--no-compile", "--timeout", "60"]).args(packages);
        let mut child = pip.spawn().context("cannot run pip")?;
        let done = loop {
            if let Some(status) = child.try_wait()? {
                break status.success();
            }
            if Instant::now() > until {
                // It may have ended just now.
                let _ = child.kill();
                let _ = child.wait();
                break false;
            }
            sleep(Duration::from_millis(100));
        };
        if done {
            return Ok(());
        }
        if attempt == ATTEMPTS || Instant::now() + pause > until {
            break;
        }
        eprintln!("trying again in {pause:?}");
        sleep(pause);
        pause = (2 * pause).min(PAUSE);
    }
    bail!("{} cannot be had: pip says why above", packages.join(" "))
}

/// The Python of the light cases, installed if it is not there.
pub(crate) fn python_with_torch() -> anyhow::Result<PathBuf> {
    environment(true)?;
    Ok(python())
}

/// The Python with another release of PyTorch, installed if it is not there.
pub(crate) fn python_with_torch_of(torch: &str) -> anyhow::Result<PathBuf> {
    environment_of(torch)?;
    Ok(python_of(torch))
}

/// The Python of all cases, with what trains with PyTorch, installed if it is not there.
pub(crate) fn python_that_trains() -> anyhow::Result<PathBuf> {
    environment(false)?;
    Ok(python())
}

/// Installs what the light cases need, in a thread: that waits for a network while others compute.
pub(crate) fn install_meanwhile() -> JoinHandle<anyhow::Result<()>> {
    std::thread::spawn(|| environment(true))
}

/// Says that whoever runs the tests runs the light cases as well.
pub(crate) const APART: &str = "TONNAGE_SCRIPTS_APART";

/// What the light cases can run in, without anything being installed.
pub(crate) enum LightEnvironment {
    /// Whoever runs the tests runs them as well.
    Apart,
    /// The Python with PyTorch is there.
    There,
    /// None.
    Missing,
}

/// Where the light cases can run now.
pub(crate) fn light_environment() -> LightEnvironment {
    if std::env::var_os(APART).is_some() {
        LightEnvironment::Apart
    } else if is_there() {
        LightEnvironment::There
    } else {
        LightEnvironment::Missing
    }
}

/// The light cases where their environment is; else what was left out.
pub(crate) fn light_if_there() -> anyhow::Result<()> {
    match light_environment() {
        LightEnvironment::Apart => Ok(()),
        LightEnvironment::There => scripts(["--light".to_owned()].into_iter()),
        LightEnvironment::Missing => {
            eprintln!(
                "left out: PyTorch scripts on the fake CUDA libraries; `cargo xtask scripts --light` installs PyTorch {TORCH} \
                 under target/scripts (5 GB) and runs them"
            );
            Ok(())
        }
    }
}

/// Builds what is needed, then runs the cases: `--light` for those that need PyTorch alone, names for some, `--release` for the
/// light ones with another PyTorch. Without any of these all, and the light ones with others too.
pub(crate) fn scripts(options: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let options: Vec<String> = options.collect();
    if let Some(at) = options.iter().position(|it| it == "--release") {
        let release = options.get(at + 1).context("--release: which? As in 2.15.0")?.clone();
        let rest = [&options[..at], &options[at + 2..]].concat();
        return with_release(&release, rest);
    }
    let light = options.iter().any(|option| option == "--light");
    environment(light)?;
    let recorded = compare(&python(), &options);
    if !options.is_empty() {
        return recorded;
    }
    // What comes out worse under one release hides no other.
    OTHERS.iter().fold(recorded, |done, release| done.and(with_release(release, Vec::new())))
}

/// The light cases with another release.
fn with_release(release: &str, mut options: Vec<String>) -> anyhow::Result<()> {
    options.push("--light".to_owned());
    compare(&python_with_torch_of(release)?, &options)
}

fn compare(python: &Path, options: &[String]) -> anyhow::Result<()> {
    what_compiles_for(python)?;
    run("cargo build --quiet --locked --package tonnage-fake-cudart --package tonnage-scripts")?;
    let status = Command::new(root().join("target/debug/tonnage-scripts"))
        .arg(python)
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

fn find(folder: &Path, name: &str, depth: usize) -> Option<PathBuf> {
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
    use super::{as_folder, declared, forget_parts, installed};

    #[test]
    fn packages_are_told_by_their_folders() {
        assert_eq!(
            as_folder("nvidia-cudnn-cu13==9.19.0.56"),
            "nvidia_cudnn_cu13-9.19.0.56.dist-info"
        );
        assert_eq!(as_folder("torch==2.11.0"), "torch-2.11.0.dist-info");
    }

    #[test]
    fn what_was_installed_in_part_is_not_there() {
        let name = format!("tonnage-xtask-{}", std::process::id());
        let folder = &std::env::temp_dir().join(name);
        let packages = folder.join("lib/python3.12/site-packages");
        for file in
            ["Torch-2.11.0.dist-info/INSTALLER", "triton-3.6.0.dist-info/METADATA", "torch/x.py"]
        {
            let path = packages.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(installed(folder), ["torch-2.11.0.dist-info"]);
        forget_parts(folder).unwrap();
        let names = ["Torch-2.11.0.dist-info", "triton-3.6.0.dist-info", "torch"];
        assert_eq!(names.map(|it| packages.join(it).exists()), [true, false, true]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn functions_are_told_from_what_is_said_about_them() {
        let header = "#define cuMemFree cuMemFree_v2\n#define __CUDA_API_VERSION 13000\n\
                      /** see cuLink */ CUresult CUDAAPI cuInit(unsigned int Flags);\nCUresult CUDAAPI\n cuMemFree(x);";
        assert_eq!(declared(header), ["cuMemFree_v2", "cuInit", "cuMemFree"]);
    }
}
