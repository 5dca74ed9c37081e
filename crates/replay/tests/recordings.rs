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
    assert_eq!(events, 1_950_196, "entries in all recordings");
}

#[test]
fn a_limit_that_is_not_known_is_read_from_what_the_recording_gave_back() {
    for name in names().into_iter().filter(|name| name.ends_with(".tight")) {
        let facts = facts(&name);
        let outcome = replay(&name, &RecordingOptions::default());
        assert_eq!(outcome.difference, None, "{name}");
        for figure in ["num_alloc_retries", "num_ooms"] {
            let got = outcome.stats.memory_stats().into_iter().find(|(name, _)| name == figure);
            assert_eq!(got.map(|(_, value)| value), facts["stats"][figure].as_i64(), "{name}");
        }
        let refused = outcome.stats.num_alloc_retries + outcome.stats.num_ooms > 0;
        let said = outcome.inferred.iter().any(|line| line.starts_with("limit: "));
        assert_eq!(said, refused, "{name}: {:?}", outcome.inferred);
    }
}

#[test]
fn where_no_reading_fits_the_range_of_limits_that_does_is_suggested() {
    for name in ["multistream.gc60", "resnet50.gc60", "deeplab_varres.gc60"] {
        let outcome = replay(name, &RecordingOptions::default());
        assert!(!outcome.exact(), "{name}: garbage collection works only under a limit");
        let suggestion = outcome.inferred.iter().find(|line| line.contains("try --limit"));
        let suggestion = suggestion.unwrap_or_else(|| panic!("{name}: {:?}", outcome.inferred));
        let numbers: Vec<u64> =
            suggestion.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [from, to, tried] = numbers[..] else { panic!("{suggestion}") };
        let in_force = facts(name)["limit"].as_u64().unwrap();
        assert!((from..=to).contains(&in_force), "{name}: {in_force} is not in {suggestion}");
        for limit in [tried, to] {
            let options = RecordingOptions { limit: Some(limit), ..Default::default() };
            assert_eq!(replay(name, &options).difference, None, "{name}: {limit}");
        }
    }
}

#[test]
fn a_limit_without_the_total_replays_exactly_too() {
    for name in ["mlp_seed.tight", "multistream.tight", "resnet50.gc60", "cudagraph.gc60"] {
        let options = RecordingOptions { total: None, ..limit_and_total(&facts(name)) };
        assert_eq!(replay(name, &options).difference, None, "{name}");
    }
}

#[test]
fn a_wrong_limit_is_not_exact() {
    let facts = facts("resnet50.tight");
    let limit = facts["limit"].as_u64().unwrap();
    for wrong in [limit / 2, limit * 2] {
        let options = RecordingOptions { limit: Some(wrong), ..Default::default() };
        let outcome = replay("resnet50.tight", &options);
        // Twice the limit refuses nothing, so what was refused is blamed on the driver.
        let blamed = outcome.inferred.iter().any(|line| line.starts_with("limit: "));
        assert!(!outcome.exact() || blamed, "{wrong}: {:?}", outcome.inferred);
    }
}

#[test]
fn fields_that_disagree_with_the_string_win_and_are_named() {
    let path = traces().join("mlp_seed.default.pickle.zst");
    let mut file = tonnage_snapshot::open(&path).unwrap();
    let settings = file.settings.as_mut().unwrap();
    settings.conf = "expandable_segments:True".to_owned();
    let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
    assert_eq!((outcome.difference, outcome.conf.as_str()), (None, ""));
    let named = outcome.inferred.iter().any(|line| line.contains("expandable_segments"));
    assert!(named, "{:?}", outcome.inferred);
}

#[test]
fn a_file_without_history_or_without_the_device_is_refused_with_what_to_do() {
    let path = traces().join("mlp_seed.default.pickle.zst");
    let mut file = tonnage_snapshot::open(&path).unwrap();
    let options = RecordingOptions { ordinal: Some(3), ..Default::default() };
    let error = replay_recording(&file, &options).unwrap_err().to_string();
    assert!(error.contains("device 3") && error.contains("these have: 0"), "{error}");
    file.traces.clear();
    let error = replay_recording(&file, &RecordingOptions::default()).unwrap_err().to_string();
    assert!(error.contains("_record_memory_history"), "{error}");
}
