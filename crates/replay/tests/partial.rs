//! Histories without their beginning, as a ring that is full leaves them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tonnage_replay::recording::{RecordingOptions, rebuild_start, replay_recording};
use tonnage_replay::{HistoryKind, Outcome};
use tonnage_snapshot::SnapshotFile;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")
}

/// Names of recordings, such as `mlp_seed.default`; those with stacks say nothing else.
fn names() -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(traces())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .filter(|name| !name.contains("stacks"))
        .collect();
    names.sort();
    names
}

fn open(name: &str) -> SnapshotFile {
    tonnage_snapshot::open(&traces().join(format!("{name}.pickle.zst"))).unwrap()
}

fn facts(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(traces().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn options(facts: &serde_json::Value) -> RecordingOptions {
    let limit = facts["limit"].as_u64().filter(|&limit| limit > 0);
    RecordingOptions { limit, total: facts["total"].as_u64(), ..Default::default() }
}

/// The recording without its first entries.
fn without_head(file: &SnapshotFile, entries: usize) -> SnapshotFile {
    let mut file = file.clone();
    file.traces[0].drain(..entries);
    file
}

/// Runs `work` for each of the names on every core.
fn for_each(names: &[String], work: impl Fn(&str) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(name);
                }
            });
        }
    });
}

fn assert_current_figures(outcome: &Outcome, facts: &serde_json::Value, what: &str) {
    let got: BTreeMap<_, _> = outcome.stats.memory_stats().into_iter().collect();
    for (figure, value) in facts["stats"].as_object().unwrap() {
        if figure.ends_with(".current") {
            assert_eq!(got.get(figure).copied(), value.as_i64(), "{what}: {figure}");
        }
    }
}

#[test]
fn every_recording_replays_without_its_head() {
    let names = names();
    assert_eq!(names.len(), 66);
    for_each(&names, |name| {
        let (file, facts) = (open(name), facts(name));
        for percent in [10, 50, 90] {
            let what = format!("{name} without {percent} %");
            let cut = without_head(&file, file.traces[0].len() * percent / 100);
            let at = std::time::Instant::now();
            let outcome = replay_recording(&cut, &options(&facts)).unwrap();
            println!("{what}: {:?} {:?} {:?} {:?}", outcome.history, outcome.difference, outcome.inferred, at.elapsed());
        }
    });
}
