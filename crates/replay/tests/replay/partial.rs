//! Histories without their beginning, as a ring that is full leaves them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tonnage_events::Action;
use tonnage_replay::recording::{RecordingOptions, rebuild_start, replay_recording};
use tonnage_replay::{HistoryKind, Outcome};
use tonnage_snapshot::SnapshotFile;

use crate::synthetic::without_head;

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
            let outcome = replay_recording(&cut, &options(&facts)).unwrap();
            assert_eq!(outcome.difference, None, "{what}: {:?}", outcome.inferred);
            assert_eq!(outcome.history, HistoryKind::Partial, "{what}");
            assert_current_figures(&outcome, &facts, &what);
            let said = outcome.inferred.iter().any(|line| line.starts_with("history: "));
            assert!(said, "{what}: {:?}", outcome.inferred);
        }
    });
}

#[test]
fn a_history_may_begin_anywhere_even_inside_a_call() {
    // Every position of small recordings, and some of others by a fixed stride.
    let names = [
        ("mlp_seed.default", 1),
        ("mlp_seed.tight", 1),
        ("cudagraph.default", 1),
        ("cudagraph.expandable", 1),
        ("cudagraph.tight", 1),
        ("mlp_seed.expandable", 3),
        ("multistream.default", 37),
        ("multistream.expandable", 41),
        ("multistream.tight", 43),
        ("multistream.split128", 47),
        ("resnet50.tight", 1_999),
        ("deeplab_varres.split128", 2_003),
        ("gpt2_varlen.tight", 2_011),
    ];
    let strides: BTreeMap<_, _> = names.into_iter().collect();
    let names: Vec<_> = strides.keys().map(|&name| name.to_owned()).collect();
    for_each(&names, |name| {
        let (file, facts) = (open(name), facts(name));
        for cut in (1..file.traces[0].len()).step_by(strides[name]) {
            let what = format!("{name} from entry {cut} on");
            let outcome = replay_recording(&without_head(&file, cut), &options(&facts)).unwrap();
            assert_eq!(outcome.difference, None, "{what}: {:?}", outcome.inferred);
            assert_current_figures(&outcome, &facts, &what);
        }
    });
}

#[test]
fn a_history_cut_anywhere_is_exact_or_says_that_ages_decide() {
    let names = names();
    for_each(&names, |name| {
        let (file, facts) = (open(name), facts(name));
        let length = file.traces[0].len() as u64;
        // Cuts by seed: the name.
        let mut seed =
            name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31) ^ u64::from(byte));
        for _ in 0..2 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let cut = 1 + (seed >> 33) % (length - 1);
            let what = format!("{name} from entry {cut} on");
            let outcome =
                replay_recording(&without_head(&file, cut as usize), &options(&facts)).unwrap();
            let says = |what: &str| outcome.inferred.iter().any(|line| line.starts_with(what));
            if outcome.difference.is_some() {
                assert!(name.ends_with(".gc60"), "{what}: {:?}", outcome.difference);
                assert!(says("garbage collection: "), "{what}: {:?}", outcome.inferred);
                continue;
            }
            assert_current_figures(&outcome, &facts, &what);
        }
    });
}

#[test]
fn entries_of_a_call_that_began_before_the_history_are_said_not_to_be_compared() {
    let file = open("multistream.tight");
    let facts = facts("multistream.tight");
    let trace = &file.traces[0];
    let inside = |index: &usize| {
        trace[*index - 1].action == Action::SegmentFree
            && trace[*index].action == Action::SegmentAlloc
    };
    let cut = (1..trace.len()).find(inside).expect("requests that give memory back");
    let outcome = replay_recording(&without_head(&file, cut), &options(&facts)).unwrap();
    assert_eq!(outcome.difference, None);
    let completed = (1..trace.len()).find(|&index| {
        trace[index].action == Action::FreeCompleted
            && trace[index - 1].action == Action::FreeRequested
    });
    let cut = completed.expect("frees that complete at once");
    let outcome = replay_recording(&without_head(&file, cut), &options(&facts)).unwrap();
    let said = outcome.inferred.iter().any(|line| line.ends_with("not compared: 1"));
    assert!(said && outcome.exact(), "{:?}", outcome.inferred);
}

#[test]
fn only_a_history_that_begins_with_nothing_is_whole() {
    for name in ["mlp_seed.default", "mlp_seed.expandable", "cudagraph.tight"] {
        let file = open(name);
        assert_eq!(rebuild_start(&file, 0), [], "{name}");
        assert_eq!(rebuild_start(&file, 7), [], "{name} has no such device");
        let start = rebuild_start(&without_head(&file, 100), 0);
        assert!(!start.is_empty(), "{name}");
        for segment in &start {
            let sum: u64 = segment.blocks.iter().map(|block| block.size).sum();
            assert_eq!(sum, segment.total_size, "{name}: {}", segment.address);
        }
    }
}

#[test]
fn each_device_has_a_history_of_its_own() {
    let mut file = without_head(&open("mlp_seed.default"), 150);
    let other = open("mlp_seed.expandable");
    file.traces.push(other.traces[0].clone());
    file.segments.extend(other.segments.into_iter().map(|mut segment| {
        segment.device = tonnage_events::DeviceId(1);
        segment
    }));
    let of = |ordinal| {
        let options = RecordingOptions { ordinal: Some(ordinal), ..Default::default() };
        replay_recording(&file, &options).unwrap()
    };
    assert_eq!((of(0).difference, of(0).history), (None, HistoryKind::Partial));
    assert!(rebuild_start(&file, 1).is_empty());
}

#[test]
fn an_expandable_run_without_bytes_is_no_reason_to_panic() {
    let mut file = without_head(&open("mlp_seed.default"), 100);
    file.segments[0].expandable = true;
    file.segments[0].total_size = 0;
    let _ = rebuild_start(&file, 0);
    replay_recording(&file, &RecordingOptions::default()).unwrap();
}
