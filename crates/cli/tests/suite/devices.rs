//! `tonnage devices`, on the fake driver and without one.

use std::path::Path;
use std::process::Output;

use serde_json::json;
use tonnage_fake_cuda::Fake;

use crate::support::{command, text};

/// Asks with what `folder` has for libraries, and none of the machine's own but the system's.
fn devices(folder: &Path, more: &[&str]) -> Output {
    let mut command = command();
    command.env("LD_LIBRARY_PATH", folder).env("TONNAGE_CUDA_LIBRARIES", folder);
    command.arg("devices").args(more).output().unwrap()
}

#[test]
fn devices_are_told_with_memory_processes_levels_and_versions() {
    let folder = tempfile::tempdir().unwrap();
    Fake::install(folder.path()).unwrap();
    let output = devices(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let text = text(&output.stdout);
    for line in [
        "cuda:0    Fake CUDA device 0, compute capability 9.0, 132 multiprocessors, at 0000:1b:00.0\n",
        "cuda:1    Fake CUDA device 1, ",
        "  memory  8.00 GiB, of which 8.00 GiB free\n",
        "  this    512.00 MiB, its context; nothing allocated, nothing reserved\n",
        "  others  process 1: 1.00 GiB\n",
        "  levels  4.92 TB/s to memory, L2 60.00 MiB\n",
        "shared memory 228.00 KiB of a multiprocessor, 48.00 KiB of a block, up to 227.00 KiB if asked for\n",
        "registers 256.00 KiB of a multiprocessor, 256.00 KiB of a block\n",
        "driver    580.00.00, for CUDA up to 13.0\n",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
    for library in ["\nNVRTC ", "\ncuBLASLt ", "\ncuDNN "] {
        assert!(text.contains(library), "{text}");
    }
}

/// The file is one that predictions take; the fake driver has no PyTorch beside it.
#[test]
fn a_card_is_captured_for_predictions() {
    let folder = tempfile::tempdir().unwrap();
    Fake::install(folder.path()).unwrap();
    let file = folder.path().join("card.json");
    let file = file.to_str().unwrap();
    let output = devices(folder.path(), &["--capture", file, "--device", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let words = "Fake CUDA device 1, 8.00 GiB, the driver's share 820.81 MiB, an estimate";
    assert!(
        said.contains(words) && said.contains(&format!("tonnage predict --gpu {file} --")),
        "{said}"
    );
    let card: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((&card["memory"], &card["attributes"]["16"]), (&json!(8u64 << 30), &json!(132)));
    assert_eq!(
        (&card["cudnn"]["deviceVer"], &card["context_measured"]),
        (&json!(900), &json!(false))
    );
    let place = crate::predict_script::Place::new("import torch\ntorch.cuda.init()\n");
    let value = crate::predict_script::valid(&place.run(
        "mlp_seed.default",
        &["--json", "--gpu", file],
        &[],
    ));
    assert_eq!((&value["gpu"], &value["fits"]), (&json!("Fake CUDA device 1"), &json!(true)));

    let again = devices(folder.path(), &["--capture", file]);
    assert_eq!(
        again.status.code(),
        Some(2),
        "a file that is there is kept: {}",
        text(&again.stdout)
    );
    let other = folder.path().join("other.json");
    let none = devices(folder.path(), &["--capture", other.to_str().unwrap(), "--device", "7"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(
        text(&none.stderr).contains("there is no device 7: the driver has 2"),
        "{}",
        text(&none.stderr)
    );
    assert!(!other.exists());
}

#[test]
fn the_json_has_the_same() {
    let folder = tempfile::tempdir().unwrap();
    Fake::install(folder.path()).unwrap();
    let output = devices(folder.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["unavailable"], json!(null));
    assert_eq!(json["driver"], json!({ "version": "580.00.00", "cuda": "13.0" }));
    let device = &json["devices"][1];
    assert_eq!((&device["device"], &device["total"]), (&json!("cuda:1"), &json!(8u64 << 30)));
    assert_eq!(device["this_process"]["driver"], json!(512 << 20));
    assert_eq!(device["this_process"]["reserved"], json!(0));
    let other = json!({ "pid": 1, "command": null, "driver": 1 << 30, "allocated": null, "reserved": null });
    assert_eq!(device["other_processes"], json!([other]));
    assert_eq!(device["levels"]["bandwidth"], json!(4_916_736_000_000u64));
    assert_eq!(json["libraries"].as_array().unwrap().len(), 3);
}

#[test]
fn without_nvml_the_processes_are_not_told() {
    let folder = tempfile::tempdir().unwrap();
    Fake::install(folder.path()).unwrap();
    std::fs::remove_file(folder.path().join("libnvidia-ml.so.1")).unwrap();
    let output = devices(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0));
    let text = text(&output.stdout);
    if !text.contains("  others  NVML does not tell\n") {
        // A machine with NVIDIA's own, which knows nothing of a fake device.
        assert!(text.contains("  others  "), "{text}");
    }
}

#[test]
fn without_a_gpu_one_sentence_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // A driver that is none, before the machine's own.
    std::fs::write(folder.path().join("libcuda.so.1"), "none").unwrap();
    std::fs::write(folder.path().join("libcuda.so"), "none").unwrap();
    let output = devices(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(
        said.starts_with("no CUDA driver was found: libcuda.so.1 cannot be opened ("),
        "{said}"
    );
    assert_eq!((said.lines().count(), text(&output.stderr)), (1, ""), "{said}");
    let output = devices(folder.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["devices"], &json["driver"]), (&json!([]), &json!(null)));
    assert_eq!(json["unavailable"].as_str().unwrap(), said.trim_end());
}
