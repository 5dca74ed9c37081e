//! Every recording of PyTorch 2.11 replays exactly: entries, final blocks, statistics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tonnage_replay::Outcome;
use tonnage_replay::recording::{RecordingOptions, replay_recording};

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")
}

/// Names of recordings, such as `mlp_seed.default`.
fn names() -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(traces())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn facts(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(traces().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn replay(name: &str, options: &RecordingOptions) -> Outcome {
    let path = traces().join(format!("{name}.pickle.zst"));
    let file = tonnage_snapshot::open(&path).unwrap();
    replay_recording(&file, options).unwrap()
}

fn limit_and_total(facts: &serde_json::Value) -> RecordingOptions {
    let limit = facts["limit"].as_u64().filter(|&limit| limit > 0);
    RecordingOptions { limit, total: facts["total"].as_u64(), ..Default::default() }
}

#[test]
fn every_recording_gives_every_entry_block_and_statistic() {
    let names = names();
    assert_eq!(names.len(), 68);
    let mut events = 0;
    for name in names {
        let facts = facts(&name);
        let outcome = replay(&name, &limit_and_total(&facts));
        assert_eq!(outcome.difference, None, "{name}");
        assert_eq!(Some(outcome.events as u64), facts["events"].as_u64(), "{name}");
        events += outcome.events;
        let got: BTreeMap<_, _> = outcome.stats.memory_stats().into_iter().collect();
        let expected = facts["stats"].as_object().unwrap();
        assert_eq!(got.len(), expected.len());
        for (figure, value) in expected {
            // Calls of empty_cache that release nothing leave no trace, and a capture makes some.
            if name.starts_with("cudagraph") && figure == "num_sync_all_streams" {
                continue;
            }
            assert_eq!(got.get(figure).copied(), value.as_i64(), "{name}: {figure}");
        }
    }
    println!("{events} entries");
}
