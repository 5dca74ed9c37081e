//! What the tests need and a fresh machine lacks: a Python, its packages, a browser, a terminal.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell::{present, run};

/// Installs whatever is missing.
pub(crate) fn what_tests_need() -> anyhow::Result<()> {
    // Tests write and read pickles with a real Python.
    if !present("python3 --version") {
        debian_packages("python3-minimal").context("the tests need python3")?;
    }
    python_packages()?;
    browser()?;
    // `tonnage top` is driven in a real terminal.
    if !present("tmux -V") {
        debian_packages("tmux").context("the tests need tmux")?;
    }
    Ok(())
}

/// Installs a browser, in which pages are opened, if there is none.
pub(crate) fn browser() -> anyhow::Result<()> {
    if !(present("chromium-headless-shell --version") || present("chromium --version"))
        || !present("chromedriver --version")
    {
        debian_packages("chromium-headless-shell chromium-driver").context(
            "the tests need `chromium-headless-shell` or `chromium`, and `chromedriver`, on the path",
        )?;
    }
    Ok(())
}

/// Installs what builds the page of `tonnage view`, if it is missing.
pub(crate) fn node() -> anyhow::Result<()> {
    // The page's tests need a runner that came with this release.
    const RECENT: &str = "const [a, b] = process.versions.node.split('.'); process.exit(+a > 18 || (+a === 18 && +b >= 19) ? 0 : 1)";
    if !present("node --version") || !present("npm --version") {
        debian_packages("nodejs npm").context("the page is built with `node` and `npm`")?;
    }
    let recent = Command::new("node").args(["-e", RECENT]).status();
    if !recent.is_ok_and(|status| status.success()) {
        bail!(
            "the page is built with Node 18.19 or later: install one and put it first on the path"
        );
    }
    Ok(())
}

/// Installs Java, which Spark runs on, if it is missing.
pub(crate) fn java() -> anyhow::Result<()> {
    if !present("java -version") {
        debian_packages("default-jre-headless")
            .context("Spark, which opens datasets, needs `java`")?;
    }
    Ok(())
}

/// Installs what the oracle needs, if it is missing: a Python with pip, and a C++ compiler.
pub(crate) fn what_the_oracle_needs() -> anyhow::Result<()> {
    if !present("python3 -m pip --version") {
        debian_packages("python3-pip").context("PyTorch is fetched with python3 and its pip")?;
    }
    compiler().context("the oracle's driver is built with g++")
}

/// Installs what programs under a Python compile with, if it is missing: PyTorch its launchers of kernels, and the drop-in its shim.
pub(crate) fn what_compiles_for(python: &Path) -> anyhow::Result<()> {
    // Where Triton looks; on Debian the usual scheme is another.
    const HEADERS: &str = "import os, sys, sysconfig\n\
                           scheme = sysconfig.get_default_scheme().replace('posix_local', 'posix_prefix')\n\
                           sys.exit(not os.path.exists(sysconfig.get_paths(scheme)['include'] + '/Python.h'))";
    compiler().context("PyTorch and the drop-in compile with g++")?;
    let headers = Command::new(python).args(["-c", HEADERS]).status();
    if !headers.is_ok_and(|status| status.success()) {
        debian_packages("python3-dev").context("PyTorch compiles with the headers of Python")?;
    }
    Ok(())
}

/// Installs a C++ compiler, if there is none.
fn compiler() -> anyhow::Result<()> {
    if std::env::var_os("CXX").is_none() && !present("g++ --version") {
        debian_packages("g++")?;
    }
    Ok(())
}

/// Installs packages with Debian's tool, as root or with sudo.
fn debian_packages(packages: &str) -> anyhow::Result<()> {
    let by_hand = || format!("install {packages} by hand, then try again");
    if !present("apt-get --version") {
        bail!("this machine has no apt-get: {}", by_hand());
    }
    let sudo = if present("test -w /var/lib/dpkg") {
        ""
    } else if present("sudo -n true") {
        "sudo -n "
    } else {
        bail!("neither root nor sudo without a password: sudo apt-get install {packages}");
    };
    run(&format!("{sudo}apt-get update -qq")).with_context(by_hand)?;
    run(&format!("{sudo}apt-get install -y -qq {packages}")).with_context(by_hand)
}

/// Installs what tests need from PyPI into a Python of their own, if it is not there yet.
pub(crate) fn python_packages() -> anyhow::Result<()> {
    const REQUIREMENTS: [&str; 2] =
        ["crates/cli/tests/requirements.txt", "crates/python/tests/requirements.txt"];
    python("target/test-python", &REQUIREMENTS)
}

/// Makes a Python of its own in a folder, with what these files ask of PyPI, if it is not there yet.
pub(crate) fn python(folder: &str, requirements: &[&str]) -> anyhow::Result<()> {
    let pip = format!("{folder}/bin/python -m pip");
    let venv = format!("python3 -m venv --clear {folder}");
    if !present(&format!("{pip} --version")) && run(&venv).is_err() {
        // Debian's python3 comes without.
        debian_packages("python3-venv").context("this needs python3-venv")?;
        run(&venv)?;
    }
    let files: String = requirements.iter().map(|file| format!(" --requirement {file}")).collect();
    run(&format!("{pip} install --quiet --disable-pip-version-check{files}"))
}

/// A Python by its name: on the path, or among those that pyenv has.
pub(crate) fn find_python(name: &str) -> Option<String> {
    if present(&format!("{name} --version")) {
        return Some(name.to_owned());
    }
    let output = Command::new("pyenv").arg("root").output().ok()?;
    let versions = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()).join("versions");
    let mut found: Vec<_> = std::fs::read_dir(versions)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin").join(name)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found.pop()?.into_os_string().into_string().ok()
}
