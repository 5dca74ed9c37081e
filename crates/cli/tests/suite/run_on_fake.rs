//! `tonnage run --device cuda:0` on the fake driver: everything but the arithmetic of kernels happens, and takes the bytes
//! that were predicted.

use std::ffi::OsString;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tonnage_fake_cuda::Fake;

use crate::support::{command, json, root, text, tonnage};

/// Runs with the fake's driver and libraries, the real compiler, and kernels that are kept from test to test.
fn run(fake: &Path, arguments: &[&str]) -> Output {
    let compiler = root().join("target/test-python");
    assert!(compiler.exists(), "`cargo xtask test` installs the compiler for this test");
    let mut libraries = OsString::from(fake);
    libraries.push(":");
    libraries.push(compiler.canonicalize().unwrap());
    let kept = root().canonicalize().unwrap().join("target/test-kernels");
    let mut command = command();
    command.env("LD_LIBRARY_PATH", fake).env("TONNAGE_CUDA_LIBRARIES", libraries);
    command.env("TONNAGE_CACHE_DIR", kept);
    command.args(["run", "--device", "cuda:0", "--json"]).args(arguments).output().unwrap()
}

/// Every recipe, and every technique with some.
const CASES: [&str; 13] = [
    "mlp --layers 2 --width 64 --batch 128",
    "mlp --layers 2 --width 64 --batch 128 --amp bf16 --optimizer sgd",
    "mlp --layers 2 --width 64 --batch 128 --optimizer sgd --graph",
    "deepnet --layers 4 --width 32 --batch 64 --checkpoint sqrt",
    "gpt2-tiny --layers 2 --width 32 --batch 4 --seq 32 --vocab 256",
    "gpt2-tiny --layers 2 --width 32 --batch 4 --seq 32 --amp bf16 --offload",
    "gpt2-tiny --layers 2 --width 32 --batch 4 --seq 32 --accumulate 2 --tf32",
    "gpt2-tiny --layers 2 --width 32 --batch 4 --seq 32 --graph",
    "gpt2-tiny --layers 2 --width 32 --batch 4 --seq 32 --amp bf16 --checkpoint sqrt --accumulate 2 --graph",
    "resnet50 --width 4 --batch 2 --image 32",
    "resnet50 --width 4 --batch 2 --image 32 --conf expandable_segments:True",
    "resnet50 --width 4 --batch 2 --image 32 --graph",
    "mimo --antennas 8 --users 2 --subcarriers 300",
];

#[test]
fn the_bytes_of_a_run_on_a_gpu_are_those_predicted() {
    let folder = tempfile::tempdir().unwrap();
    Fake::install(folder.path()).unwrap();
    for case in CASES {
        let case: Vec<&str> = case.split(' ').chain(["--steps", "3"]).collect();
        let output = run(folder.path(), &case);
        assert!(output.status.success(), "{case:?}: {}", text(&output.stderr));
        let ran: Value = serde_json::from_slice(&output.stdout).unwrap();
        let profile = ["predict", "--json", "--memory-profile", "tonnage"];
        let predicted = json(&tonnage(&[&profile, case.as_slice()].concat()));
        assert_eq!(ran["device"], "cuda");
        for figure in ["allocated_peak", "reserved_peak", "requested_peak", "breakdown", "phases"] {
            assert_eq!(ran[figure], predicted[figure], "{figure} of {case:?}");
        }
    }
}
