//! What the tests of several verbs share.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

/// The longest wait for anything: how busy the machine is decides no test.
const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until something happens; says what was waited for if it does not.
pub(crate) fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happens() {
        assert!(begin.elapsed() < PATIENCE, "after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn testdata(name: &str) -> PathBuf {
    root().join("testdata").join(name)
}

pub(crate) fn recording(name: &str) -> String {
    let path = root().join("testdata/traces").join(format!("{name}.pickle.zst"));
    path.to_str().unwrap().to_owned()
}

/// One of the small files in the forms that releases have given them.
pub(crate) fn snapshot(name: &str) -> String {
    let path = root().join("testdata/snapshots").join(format!("{name}.pickle"));
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
    let folder = |name| format!("{}/testdata/{name}/", root().display());
    text(&output.stdout).replace(&folder("traces"), "").replace(&folder("snapshots"), "")
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
