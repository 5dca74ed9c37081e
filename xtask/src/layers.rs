//! Which crate may use which: only those before it.

use std::collections::BTreeSet;

use crate::shell::root;

/// The crates, lowest first. A crate may use those before it, never those after.
const LAYERS: [&str; 24] = [
    "cuda-codes",
    "fake-cuda",
    "events",
    "snapshot",
    "device",
    "cuda-libs",
    "fake-cudart",
    "engine",
    "oracle",
    "monitor",
    "replay",
    "analysis",
    "memory",
    "drop-in",
    "tensor",
    "html",
    "export",
    "plan",
    "scripts",
    "fleet",
    "view",
    "tonnage",
    "cli",
    "python",
];

fn package(layer: &str) -> String {
    if layer == "tonnage" { "tonnage".to_owned() } else { format!("tonnage-{layer}") }
}

fn uses(manifest: &str, package: &str) -> bool {
    manifest.lines().any(|line| line.split(['=', '.', ' ']).next() == Some(package))
}

fn manifest(layer: &str) -> String {
    let path = root().join("crates").join(layer).join("Cargo.toml");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn no_crate_uses_a_later_layer() {
    for (place, layer) in LAYERS.iter().enumerate() {
        for later in &LAYERS[place + 1..] {
            assert!(!uses(&manifest(layer), &package(later)), "{layer} must not use {later}");
        }
    }
}

#[test]
fn every_crate_has_its_layer() {
    let folders: BTreeSet<_> = std::fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(folders, LAYERS.map(str::to_owned).into());
}

/// Explaining failures takes the report and all that it stands on; allocating does not.
#[test]
fn the_allocator_alone_needs_neither_the_report_nor_files() {
    let tree = |features: &[&str]| {
        let tree = ["tree", "--package", "tonnage-memory", "--edges", "normal", "--prefix", "none"];
        let output = std::process::Command::new(env!("CARGO"))
            .args(tree.iter().chain(features))
            .args(["--offline", "--locked"])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (alone, explaining) = (tree(&[]), tree(&["--features", "explain"]));
    for crate_name in ["tonnage-analysis ", "tonnage-replay ", "tonnage-snapshot "] {
        assert!(!alone.contains(crate_name), "{alone}");
        assert!(explaining.contains(crate_name), "{explaining}");
    }
    assert!(alone.contains("tonnage-engine "), "{alone}");
}

#[test]
fn the_check_sees_a_use() {
    assert!(uses(&manifest("engine"), "tonnage-device"));
    assert!(!uses(&manifest("engine"), "tonnage-cli"));
}
