//! What scripts are told that ask a program about the GPU.

use std::path::Path;
use std::process::Command;

#[test]
fn the_gpu_is_told_in_the_words_that_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    let lines = "name NVIDIA H200\ntotal 150109880320\ncapacity 149249196032\ndevices 2\nattribute 75 9\nattribute 76 0\n";
    std::fs::write(&profile, lines).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nvidia-smi.sh");
    let told = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(&script).args(words).env("TONNAGE_FAKE_PROFILE", &profile);
        let done = command.env("TONNAGE_FAKE_NOTES", folder.path()).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(
        told(&["--query-gpu=name,memory.total, memory.used,compute_cap", "--format=csv"]),
        "name, memory.total, memory.used, compute_cap\n\
         NVIDIA H200, 143155 MiB, 820 MiB, 9.0\nNVIDIA H200, 143155 MiB, 820 MiB, 9.0\n"
    );
    assert_eq!(
        told(&["--query-gpu", "index,fan.speed", "--format", "csv,noheader,nounits"]),
        "0, [N/A]\n1, [N/A]\n"
    );
    assert!(told(&["-L"]).starts_with("GPU 0: NVIDIA H200 (UUID: GPU-"));
    assert!(told(&[]).contains(" 820MiB / 143155MiB "));
    assert_eq!(told(&["--query-compute-apps=pid", "--format=csv,noheader"]), "");
    let notes = std::fs::read_to_string(folder.path().join("guesses")).unwrap();
    assert!(notes.starts_with("nvidia-smi is asked, "), "{notes}");
}
