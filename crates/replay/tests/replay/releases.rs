//! Recordings whose keys leave the release open: the one whose rules reproduce the entries is followed.

use tonnage_device::Dry;
use tonnage_engine::config::Tie;
use tonnage_engine::{
    Config, DeviceId, Engine, PoolId, RecordOptions, Release, StreamFilter, StreamId,
};
use tonnage_replay::job::Job;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::snapshot_file;
use tonnage_replay::what_if::{Upgrade, UpgradeError, WhatIf};
use tonnage_snapshot::SnapshotFile;

/// Blocks of one size whose order decides: another of two free ones serves in 2.12 than in the releases before and after.
fn recorded_by(release: Release) -> SnapshotFile {
    let mut engine = Engine::new(Dry::new(8 << 30), Config::for_release(release));
    engine.record_history(Some(RecordOptions::default()));
    let allocate = |engine: &mut Engine<Dry>, size| engine.allocate(size, StreamId(0)).unwrap();
    let first = allocate(&mut engine, 524_288);
    let _second = allocate(&mut engine, 524_288);
    let _third = allocate(&mut engine, 524_288);
    let fourth = allocate(&mut engine, 524_288);
    engine.free(&first).unwrap();
    engine.free(&fourth).unwrap();
    let _again = allocate(&mut engine, 524_288);
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

#[test]
fn pools_of_entries_are_written_from_the_release_on_that_names_them() {
    for (release, written) in [(Release::V2_11, false), (Release::V2_12, true)] {
        let mut engine = Engine::new(Dry::new(8 << 30), Config::for_release(release));
        let options = RecordOptions { max_entries: 5.try_into().unwrap(), ..Default::default() };
        engine.record_history(Some(options));
        let pool = PoolId(0, 7);
        engine.create_or_use_pool(pool).unwrap();
        engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
        let inside = engine.allocate(1000, StreamId(0)).unwrap();
        engine.end_allocate_to_pool(pool).unwrap();
        let _outside = engine.allocate(1000, StreamId(0)).unwrap();
        // Of six entries the first is gone: obtained and handed out inside, the same outside, freed inside.
        engine.free(&inside).unwrap();
        let file = snapshot_file(engine.snapshot(), DeviceId(0));
        let pools: Vec<_> = file.notes.iter().map(|note| (note.entry, note.pool)).collect();
        let expected = if written { vec![(0, pool), (3, pool), (4, pool)] } else { vec![] };
        assert_eq!(pools, expected, "{release}");
        let mut bytes = Vec::new();
        tonnage_snapshot::write(&mut bytes, &file).unwrap();
        assert_eq!(tonnage_snapshot::parse(&bytes).unwrap(), file, "{release}");
    }
}

/// A job of three segments, recorded under these settings.
fn job_under(conf: &str) -> (tonnage_replay::Outcome, Job) {
    let config = Config::parse(conf, Release::V2_15).unwrap();
    let mut engine = Engine::new(Dry::new(8 << 30), config);
    engine.record_history(Some(RecordOptions::default()));
    for _ in 0..3 {
        engine.allocate(30 << 20, StreamId(0)).unwrap();
    }
    let file = snapshot_file(engine.snapshot(), DeviceId(0));
    Job::read(&file, &RecordingOptions::default()).unwrap()
}

#[test]
fn an_upgrade_is_refused_where_either_side_cannot_be_predicted() {
    let (outcome, job) = job_under("per_process_memory_fraction:0.5");
    let like = |total| WhatIf { total, ..WhatIf::new(Config::for_release(Release::V2_15)) };
    let refused = Upgrade::new(&outcome, &job, Release::V2_11, Some(""), &like(None)).unwrap_err();
    let text = refused.to_string();
    assert!(text.starts_with("by the rules of PyTorch 2.15") && text.contains("--total"), "{text}");
    Upgrade::new(&outcome, &job, Release::V2_11, Some(""), &like(Some(8 << 30))).unwrap();
    let (outcome, job) = job_under("");
    let other = Some("backend:cudaMallocAsync");
    let refused = Upgrade::new(&outcome, &job, Release::V2_11, other, &like(None)).unwrap_err();
    assert!(refused.to_string().starts_with("by the rules of PyTorch 2.11"), "{refused}");
    let refused = Upgrade::new(&outcome, &job, Release::V2_11, Some("x:1"), &like(None));
    assert!(matches!(refused, Err(UpgradeError::Settings { release: Release::V2_11, .. })));
}

#[test]
fn a_rejected_request_is_a_failure_in_every_figure() {
    let (outcome, job) = job_under("");
    let like = WhatIf { total: Some(80 << 20), ..WhatIf::new(Config::for_release(Release::V2_15)) };
    let conf = Some("throw_on_cudamalloc_oom:True");
    let upgrade = Upgrade::new(&outcome, &job, Release::V2_15, conf, &like).unwrap();
    let stats = &upgrade.other.prediction.stats;
    assert_eq!((stats.num_ooms, stats.num_oom_rejections, stats.failed_requests()), (0, 1, 1));
    assert_eq!((upgrade.own.figures().ooms, upgrade.other.figures().ooms), (1, 1));
    assert_eq!(upgrade.own.prediction.stopped_at, upgrade.other.prediction.stopped_at);
}
