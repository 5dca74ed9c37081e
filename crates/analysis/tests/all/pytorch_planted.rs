//! Recordings with a planted fault, made with PyTorch by `benches/pytorch/planted.py` and `planted_more.py`: the verdict names the
//! cause, its bytes and its line, as the recorded program itself knew them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tonnage_analysis::report::{Report, ReportOptions};
use tonnage_snapshot::SnapshotFile;

use crate::support::{testdata, without_stacks};

/// What sizes alone do not tell: a leak as large as another tensor of its loop, sizes that come and go, one pass of which
/// a failed request left no way back, marks that sizes do not replace.
const BEYOND_SIZES: [&str; 7] = [
    "leak_after_warmup",
    "leak_cache_by_id",
    "leak_oom_training_graph",
    "leak_two_epochs_eval",
    "longer_inputs_batches",
    "longer_inputs_default_settings",
    "need_forward_oom",
];

/// Those whose peak, or one of whose three epochs, is in the part that is lost.
const BEGUN_EARLY: [&str; 5] = [
    "leak_oom_training_graph",
    "leak_two_epochs_eval",
    "need_cudnn_benchmark",
    "need_forward_40_layers",
    "need_single_deep_pass",
];

fn is_one_of(path: &Path, names: &[&str]) -> bool {
    names.iter().any(|name| path.ends_with(format!("{name}.pickle.gz")))
}

fn recordings() -> Vec<PathBuf> {
    let folder = testdata().join("planted");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|it| it.extension().is_some_and(|it| it == "gz")).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

fn truth_of(recording: &Path) -> Value {
    let name = recording.file_name().unwrap().to_str().unwrap().replace("pickle.gz", "json");
    let text = std::fs::read_to_string(recording.with_file_name(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn without_marks(mut file: SnapshotFile) -> SnapshotFile {
    file.annotations.clear();
    file
}

/// The same file as if a shorter ring had lost the first two fifths.
fn without_beginning(mut file: SnapshotFile) -> SnapshotFile {
    for trace in &mut file.traces {
        trace.drain(..trace.len() * 2 / 5);
    }
    file
}

/// What is wrong with the report of a recording, as one line; none if nothing is.
fn difference(file: &SnapshotFile, truth: &Value, lines: bool) -> Option<String> {
    // Where the program does not know what is to blame, the report has nothing to be compared with.
    let cause = truth["cause"].as_str()?;
    // Trying settings takes most of the time, and of the verdict only private pools and what failed come from a replay.
    let without_replay = cause != "private_pool" && truth["oom"] != true;
    let total = truth["total"].as_u64();
    let limit = truth["limit"].as_u64();
    let options = ReportOptions { limit, total, without_replay, ..ReportOptions::default() };
    let report = Report::of(file, &options).unwrap();
    let verdict = report.verdict;
    let told = format!("{} of {} bytes at {:?}", verdict.cause.name(), verdict.bytes, verdict.line);
    if verdict.cause.name() != cause {
        return Some(format!("{told}, instead of {cause} of {} bytes", truth["bytes"]));
    }
    if let Some(bytes) = truth["bytes"].as_u64()
        && verdict.bytes.abs_diff(bytes) as f64 > bytes as f64 * 0.01
    {
        let share = verdict.bytes as f64 / bytes as f64;
        return Some(format!("{told}, instead of {bytes} bytes ({share:.3})"));
    }
    let expected: Vec<_> = match &truth["line"] {
        Value::Array(lines) => lines.iter().filter_map(Value::as_u64).collect(),
        line => line.as_u64().into_iter().collect(),
    };
    let is_one = |line: &u64| {
        let ending = format!("{}:{line}", truth["file"].as_str().unwrap_or_default());
        verdict.line.as_ref().is_some_and(|it| it.ends_with(&ending))
    };
    if lines && !expected.is_empty() && !expected.iter().any(is_one) {
        return Some(format!("{told}, instead of line {expected:?}"));
    }
    None
}

fn check(change: fn(SnapshotFile) -> SnapshotFile, lines: bool) {
    let mut wrong = Vec::new();
    for path in recordings() {
        let file = change(tonnage_snapshot::open(&path).unwrap());
        let mut truth = truth_of(&path);
        if !lines && is_one_of(&path, &BEYOND_SIZES) {
            continue;
        }
        // What leaked before a ring begins is known by its stacks only.
        if !lines && truth["ring"] == true {
            truth["bytes"] = Value::Null;
        }
        if let Some(difference) = difference(&file, &truth, lines) {
            wrong.push(format!("{}: {difference}", path.file_name().unwrap().display()));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_verdict_names_what_was_planted() {
    check(|file| file, true);
}

#[test]
fn the_optimizers_marks_are_not_needed() {
    check(without_marks, true);
}

#[test]
fn stacks_are_not_needed() {
    check(without_stacks, false);
}

#[test]
fn neither_marks_nor_stacks_are_needed() {
    check(|file| without_stacks(without_marks(file)), false);
}

#[test]
fn a_history_that_lost_its_beginning_still_tells() {
    let mut wrong = Vec::new();
    for path in recordings() {
        let mut truth = truth_of(&path);
        let cause = truth["cause"].as_str().unwrap_or_default().to_owned();
        // Growth from a length that is lost, or a peak that is, cannot be told.
        if !matches!(&*cause, "leak" | "need" | "stream" | "private_pool" | "unsplit")
            || is_one_of(&path, &BEGUN_EARLY)
        {
            continue;
        }
        // Blocks that are freed before the snapshot is taken have lost their stacks with their beginning.
        if cause == "leak" && truth["late"] == true {
            truth["bytes"] = Value::Null;
        }
        let file = without_beginning(tonnage_snapshot::open(&path).unwrap());
        // Memory that was obtained before the history has no line.
        if let Some(difference) = difference(&file, &truth, cause == "leak") {
            wrong.push(format!("{}: {difference}", path.file_name().unwrap().display()));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn expandable_segments_tell_the_devices_total() {
    let mut told = 0;
    for path in recordings() {
        let file = tonnage_snapshot::open(&path).unwrap();
        let options = ReportOptions { without_replay: true, ..ReportOptions::default() };
        if let Some(total) = Report::of(&file, &options).unwrap().total {
            // All were made on the device of this one, which knows.
            let known = truth_of(&path.with_file_name("outside_raw.pickle.gz"));
            let known = known["total"].as_u64().unwrap();
            assert!((known..known + (64 << 20)).contains(&total), "{}: {total}", path.display());
            told += 1;
        }
    }
    assert!(told >= 4, "{told}");
}
