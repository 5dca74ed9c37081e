//! What a failed request says: the verdict of the report on the snapshot of that moment, in a few lines.

use tonnage::analysis::report::{Report, ReportOptions};
use tonnage::memory::{
    AllocError, Block, Device, DeviceOptions, Diagnosis, OutOfMemory, RecordOptions,
};

const MIB: u64 = 1 << 20;

/// Runs `work` until a request fails, and compares what that says with the report on the snapshot that it left.
fn failure(total: u64, work: impl FnOnce(&Device) -> Result<(), AllocError>) -> OutOfMemory {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oom.pickle.gz");
    let options = DeviceOptions { snapshot_on_oom: Some(path.clone()), ..Default::default() };
    let device = Device::dry_with(total, options).unwrap();
    device.memory().record_history(Some(RecordOptions::default()));
    let Err(AllocError::OutOfMemory(error)) = work(&device) else {
        panic!("no request failed");
    };
    let text = error.to_string();
    assert!(text.lines().count() <= 12, "{text}");
    assert!(text.contains(&path.display().to_string()), "{text}");
    let file = tonnage::snapshot::open(&path).unwrap();
    let report = Report::of(&file, &ReportOptions::default()).unwrap();
    let told = error.notes.get::<Diagnosis>().unwrap();
    let verdict = &report.verdict;
    assert_eq!(
        (told.cause, told.bytes, &told.line),
        (verdict.cause.name(), verdict.bytes, &verdict.line),
        "{text}\n{}",
        report.to_text("oom")
    );
    assert!(text.contains(&format!("Verdict: {}: ", told.cause)), "{text}");
    *error
}

/// A model's pass: activations, each freed on the way back.
fn pass(device: &Device, bytes: u64) -> Result<(), AllocError> {
    let mut kept = (0..5).map(|_| device.allocate(bytes)).collect::<Result<Vec<Block>, _>>()?;
    while let Some(activation) = kept.pop() {
        let _gradient = device.allocate(bytes / 2)?;
        drop(activation);
    }
    Ok(())
}

fn assert_names(error: &OutOfMemory, cause: &str, bytes: u64, line: u32) {
    let told = error.notes.get::<Diagnosis>().unwrap();
    assert_eq!(told.cause, cause, "{error}");
    assert!(told.bytes.abs_diff(bytes) * 100 <= bytes, "{} for {bytes}\n{error}", told.bytes);
    let line = format!("crates/tonnage/tests/facade/oom_blocks.rs:{line}");
    assert_eq!(told.line.as_deref(), Some(&*line), "{error}");
    assert!(error.to_string().contains(&line), "{error}");
}

#[test]
fn a_leak_is_named_with_its_bytes_and_its_line() {
    let mut losses = Vec::new();
    let line = line!() + 4;
    let error = failure(1024 * MIB, |device| {
        let _weights = (0..4).map(|_| device.allocate(20 * MIB)).collect::<Result<Vec<_>, _>>()?;
        for _ in 0.. {
            losses.push(device.allocate(12 * MIB)?);
            pass(device, 20 * MIB)?;
        }
        Ok(())
    });
    assert_names(&error, "leak", losses.len() as u64 * 12 * MIB, line);
    assert!(error.to_string().contains("what helps most: keep numbers"), "{error}");
}

#[test]
fn inputs_that_grow_are_named() {
    let options = "expandable_segments:True";
    let mut last = 0;
    let line = line!() + 6;
    let error = failure(1024 * MIB, |device| {
        device.memory().configure(options).unwrap();
        let _weights = (0..4).map(|_| device.allocate(20 * MIB)).collect::<Result<Vec<_>, _>>()?;
        for step in 1.. {
            let mut batch = Vec::new();
            for _ in 0..5 {
                batch.push(device.allocate(step * 10 * MIB)?);
            }
            last = step;
        }
        Ok(())
    });
    // The step that failed was underway: four of its five blocks may be there.
    let told = error.notes.get::<Diagnosis>().unwrap();
    assert_eq!(told.cause, "longer_inputs", "{error}");
    let whole = (last - 1) * 50 * MIB;
    assert!(
        (whole..=whole + 50 * MIB).contains(&told.bytes),
        "{} for {whole}\n{error}",
        told.bytes
    );
    assert!(told.line.as_ref().unwrap().ends_with(&format!(":{}", line + 1)), "{error}");
}

/// Where [`scattered`] asks.
const SCATTERED: u32 = line!() + 4;

/// Fills segments of 20 MiB with blocks of 4, and keeps those of each five that are wanted.
fn scattered(device: &Device, wanted: &[usize]) -> Result<Vec<Block>, AllocError> {
    let blocks = (0..120).map(|_| device.allocate(4 * MIB)).collect::<Result<Vec<_>, _>>()?;
    let kept = blocks.into_iter().enumerate().filter(|(place, _)| wanted.contains(&(place % 5)));
    Ok(kept.map(|(_, block)| block).collect())
}

#[test]
fn fragmentation_is_named_and_no_setting_that_does_not_serve() {
    let error = failure(1024 * MIB, |device| {
        let _kept = scattered(device, &[0, 2])?;
        device.allocate(800 * MIB).map(drop)
    });
    assert_names(&error, "fragmentation", 24 * 12 * MIB, SCATTERED);
    // Each page of a growing segment has a block that is kept: a replay shows that none of it goes back.
    let text = error.to_string();
    assert!(text.contains("settings tried serves") && text.contains("None of"), "{text}");
    assert!(!text.contains("PYTORCH_CUDA_ALLOC_CONF"), "{text}");
}

#[test]
fn segments_that_one_block_keeps_are_named() {
    let error = failure(1024 * MIB, |device| {
        let _kept = scattered(device, &[3])?;
        device.allocate(800 * MIB).map(drop)
    });
    assert_names(&error, "pinned_segment", 24 * 16 * MIB, SCATTERED);
}

#[test]
fn what_is_needed_is_called_need() {
    let line = line!() + 4;
    let mut kept = Vec::new();
    let error = failure(256 * MIB, |device| {
        loop {
            kept.push(device.allocate(30 * MIB)?);
        }
    });
    assert_names(&error, "need", kept.len() as u64 * 30 * MIB, line);
}
