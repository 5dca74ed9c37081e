//! Every recording of PyTorch 2.11 replays exactly: entries, final blocks, statistics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tonnage_device::Dry;
use tonnage_engine::{Config, Engine, RecordOptions, Release};
use tonnage_events::{DeviceId, StreamId};
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::{Outcome, snapshot_file};

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

#[test]
fn ranges_that_a_failed_request_leaves_behind_are_found_again() {
    let config = Config::parse("expandable_segments:True", Release::default()).unwrap();
    let total = 8 << 30;
    let mut engine = Engine::new(Dry::new(total), config);
    engine.record_history(Some(RecordOptions::default()));
    let [one, two] = [0, 64].map(StreamId);
    let kept = engine.allocate(30 << 20, one).unwrap();
    for stream in [two, one, two] {
        engine.allocate(1 << 48, stream).unwrap_err();
    }
    // In new ranges, in those left behind, and in one that has room; of small pools too.
    for stream in [one, two] {
        engine.allocate(1_000, stream).unwrap();
        let block = engine.allocate(50 << 20, stream).unwrap();
        engine.allocate(70 << 20, stream).unwrap();
        engine.free(&block).unwrap();
    }
    engine.free(&kept).unwrap();
    engine.empty_cache().unwrap();
    engine.allocate(1 << 48, two).unwrap_err();
    engine.allocate(90 << 20, two).unwrap();
    let file = snapshot_file(engine.snapshot(), DeviceId(0));
    let options = RecordingOptions { total: Some(total), ..Default::default() };
    let outcome = replay_recording(&file, &options).unwrap();
    assert_eq!(outcome.difference, None);
    assert_eq!(outcome.stats.num_ooms, 4);
}

#[test]
fn blocks_that_wait_for_several_streams_are_found_unused_in_the_recorded_order() {
    for conf in ["", "expandable_segments:True"] {
        let config = Config::parse(conf, Release::default()).unwrap();
        let mut engine = Engine::new(Dry::new(8 << 30), config);
        engine.record_history(Some(RecordOptions::default()));
        let allocate = |engine: &mut Engine<Dry>, size| engine.allocate(size, StreamId(0)).unwrap();
        for round in 0..6 {
            let sizes = (0..300).map(|number| 500 + number % 7 * 700_000);
            let blocks: Vec<_> = sizes.map(|size| allocate(&mut engine, size)).collect();
            engine.device_mut().hold_events();
            for (number, block) in blocks.iter().enumerate() {
                let stream = StreamId(1 + number as u64 % 3);
                engine.record_stream_of(block, stream).unwrap();
                engine.free(block).unwrap();
            }
            match round % 3 {
                0 => engine.empty_cache().unwrap(),
                1 => engine.device_mut().complete_events_of(StreamId(2)),
                _ => engine.device_mut().complete_events(),
            }
            allocate(&mut engine, 1_000);
        }
        let file = snapshot_file(engine.snapshot(), DeviceId(0));
        let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
        assert_eq!(outcome.difference, None, "{conf}");
    }
}

#[test]
fn requested_sizes_beyond_all_numbers_do_no_harm() {
    let path = traces().join("mlp_seed.default.pickle.zst");
    let mut file = tonnage_snapshot::open(&path).unwrap();
    // The state before the first entry is rebuilt from what the end says of blocks.
    let half = file.traces[0].len() / 2;
    file.traces[0].drain(..half);
    for block in file.segments.iter_mut().flat_map(|segment| &mut segment.blocks) {
        block.requested_size = u64::MAX / 2;
    }
    let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
    assert!(!outcome.exact());
}
