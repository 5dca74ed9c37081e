//! The pytest suite beside this file, on the package as it is installed: sources, extension and entry points in a
//! folder of their own, with the extension that cargo has built for the tests. `cargo xtask python-full` runs the same
//! suite, and more, on the wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The file that cargo makes of this crate.
const LIBRARY: &str = "libtonnage_python.so";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The extension: beside this program, where cargo puts what a test depends on, or in the folder above.
fn extension() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folders = program.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(LIBRARY)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no {LIBRARY} beside {}", program.display()))
}

/// Puts the package into a folder, as pip would.
fn install(folder: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tonnage");
    let package = folder.join("tonnage");
    if folder.exists() {
        std::fs::remove_dir_all(folder).unwrap();
    }
    copy(&sources, &package);
    std::fs::copy(extension(), package.join("_tonnage.abi3.so")).unwrap();
    let about = folder.join(concat!("tonnage-", env!("CARGO_PKG_VERSION"), ".dist-info"));
    std::fs::create_dir(&about).unwrap();
    let metadata =
        concat!("Metadata-Version: 2.4\nName: tonnage\nVersion: ", env!("CARGO_PKG_VERSION"), "\n");
    std::fs::write(about.join("METADATA"), metadata).unwrap();
    let entry_points = "[console_scripts]\ntonnage = tonnage.__main__:main\n\n\
                        [pytest11]\ntonnage = tonnage.pytest_plugin\n";
    std::fs::write(about.join("entry_points.txt"), entry_points).unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if path.is_file() {
            std::fs::copy(&path, to.join(name)).unwrap();
        } else if name != "__pycache__" {
            copy(&path, &to.join(name));
        }
    }
}

#[test]
fn the_package_passes_its_own_tests() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-package");
    install(&folder);
    let python = root().join("target/test-python/bin/python");
    assert!(
        python.exists(),
        "no {}: `cargo xtask test` makes it, with what the tests need",
        python.display()
    );
    let status = Command::new(python)
        .args([
            "-m",
            "pytest",
            "--quiet",
            "-p",
            "no:cacheprovider",
            "-m",
            "not full",
            "crates/python/tests",
        ])
        .env("PYTHONPATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root())
        .status()
        .unwrap();
    assert!(status.success(), "pytest: {status}");
}
