//! Recordings whose keys leave the release open: the one whose rules reproduce the entries is followed.

use tonnage_device::Dry;
use tonnage_engine::config::Tie;
use tonnage_engine::{Config, DeviceId, Engine, RecordOptions, Release, StreamId};
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::snapshot_file;
use tonnage_snapshot::SnapshotFile;

/// Blocks of one size whose order decides: which of two free ones serves differs between 2.11, 2.12 and 2.13.
fn recorded_by(release: Release) -> SnapshotFile {
    let mut engine = Engine::new(Dry::new(8 << 30), Config::for_release(release));
    engine.record_history(Some(RecordOptions::default()));
    let mut allocate = |engine: &mut Engine<Dry>, size| engine.allocate(size, StreamId(0)).unwrap();
    // Another of two equal blocks than in 2.11 serves in 2.12.
    let first = allocate(&mut engine, 524_288);
    let _second = allocate(&mut engine, 524_288);
    let _third = allocate(&mut engine, 524_288);
    let fourth = allocate(&mut engine, 524_288);
    engine.free(first).unwrap();
    engine.free(fourth).unwrap();
    let _again = allocate(&mut engine, 524_288);
    // And in 2.13.
    let big = allocate(&mut engine, 20_971_520);
    engine.free(big).unwrap();
    let one = allocate(&mut engine, 1_572_864);
    let _other = allocate(&mut engine, 1_572_864);
    engine.empty_cache().unwrap();
    engine.free(one).unwrap();
    let _last = allocate(&mut engine, 1_572_864);
    snapshot_file(engine.snapshot(), DeviceId(0))
}

/// The same without what tells the release apart from others that write pools: settings and pinned memory.
fn without_settings(mut file: SnapshotFile) -> SnapshotFile {
    file.settings = None;
    file.pinned = None;
    file.keys.pool_id = true;
    file
}

#[test]
fn what_an_engine_writes_is_told_and_replayed_by_its_own_rules() {
    for release in Release::ALL {
        let outcome =
            replay_recording(&recorded_by(release), &RecordingOptions::default()).unwrap();
        assert!(outcome.exact(), "{release}: {:?}", outcome.difference);
        assert!(outcome.candidates.contains(&release), "{release}: {:?}", outcome.candidates);
        assert_eq!(outcome.release.tie(), release.tie(), "{release}");
    }
}

#[test]
fn entries_tell_the_release_where_keys_do_not() {
    let file = without_settings(recorded_by(Release::V2_12));
    let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
    assert_eq!((outcome.exact(), outcome.release), (true, Release::V2_12));
    assert_eq!(outcome.candidates.len(), 4);
    let first = &outcome.inferred[0];
    assert_eq!(first, "release: 2.12, by its keys and its entries: 2.15 would have done otherwise");
    // The same answer each time.
    let again = replay_recording(&file, &RecordingOptions::default()).unwrap();
    assert_eq!(again.inferred, outcome.inferred);
}

#[test]
fn of_releases_that_all_reproduce_the_entries_the_newest_is_followed_and_the_others_are_named() {
    let mut engine = Engine::new(Dry::new(8 << 30), Config::for_release(Release::V2_12));
    engine.record_history(Some(RecordOptions::default()));
    engine.allocate(1000, StreamId(0)).unwrap();
    let file = without_settings(snapshot_file(engine.snapshot(), DeviceId(0)));
    let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
    assert_eq!((outcome.exact(), outcome.release), (true, Release::NEWEST));
    assert!(
        outcome.inferred[0].contains("say --pytorch 2.12 if it was that"),
        "{:?}",
        outcome.inferred
    );
}

#[test]
fn a_release_that_was_asked_for_is_followed_alone() {
    let file = without_settings(recorded_by(Release::V2_12));
    let options = RecordingOptions { release: Some(Release::V2_13), ..Default::default() };
    let outcome = replay_recording(&file, &options).unwrap();
    assert_eq!((outcome.exact(), outcome.release), (false, Release::V2_13));
    assert_eq!(Release::V2_13.tie(), Tie::Segment);
}
