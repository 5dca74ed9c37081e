//! What the tests of several verbs share.

// Each test program uses some of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn recording(name: &str) -> String {
    let path = root().join("testdata/traces").join(format!("{name}.pickle.zst"));
    path.to_str().unwrap().to_owned()
}

pub(crate) fn tonnage(arguments: &[&str]) -> Output {
    command().args(arguments).output().unwrap()
}

pub(crate) fn command() -> Command {
    Command::cargo_bin("tonnage").unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub(crate) fn json(output: &Output) -> Value {
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Standard output without the folder of the recordings, which differs from machine to machine.
pub(crate) fn steady(output: &Output) -> String {
    let folder = format!("{}/testdata/traces/", root().display());
    text(&output.stdout).replace(&folder, "")
}

/// Pickles what a Python expression makes.
pub(crate) fn pickled(expression: &str) -> Vec<u8> {
    let program =
        format!("import pickle, sys\nsys.stdout.buffer.write(pickle.dumps({expression}, 4))");
    let output = Command::new("python3").args(["-c", &program]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

/// A Python with the packages of `requirements.txt`, which `cargo xtask test` installs.
pub(crate) fn python_with_packages() -> PathBuf {
    let python = root().join("target/test-python/bin/python");
    assert!(python.exists(), "`cargo xtask test` installs the Python packages for this test");
    python
}
