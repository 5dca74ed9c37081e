//! No recording is searched longer than its length warrants, whatever is in it. What that takes in time, the benchmark
//! `growth` shows.

use tonnage_device::Dry;
use tonnage_engine::{Config, DeviceId, Engine, RecordOptions, Release, StreamId};
use tonnage_events::{Action, Address, TraceEntry};
use tonnage_replay::job::Job;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::tune::{Conditions, tune_until};
use tonnage_replay::{Until, snapshot_file};
use tonnage_snapshot::SnapshotFile;

/// A program that holds many blocks under a limit, and then asks in vain.
fn failed_requests(live: u64, failures: u64, conf: &str) -> SnapshotFile {
    let config = Config::parse(conf, Release::default()).unwrap();
    let mut engine = Engine::new(Dry::new(64 << 30), config);
    engine.record_history(Some(RecordOptions::default()));
    engine.set_limit(Some(live * 1024 + (64 << 20)));
    for _ in 0..live {
        engine.allocate(1000, StreamId(0)).unwrap();
    }
    for failure in 0..failures {
        let _ = engine.allocate((1 << 30) + failure, StreamId(0)).unwrap_err();
    }
    snapshot_file(engine.snapshot(), DeviceId(0))
}

#[test]
fn many_failed_requests_with_many_live_blocks_are_read_within_the_budget() {
    let (live, failures) = (20_000, 400);
    for conf in ["", "expandable_segments:True"] {
        let file = failed_requests(live, failures, conf);
        for head in [0, live as usize / 2] {
            let mut file = file.clone();
            file.traces[0].drain(..head);
            let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
            assert_eq!(outcome.difference, None, "{conf:?} from {head} on");
            assert_eq!(outcome.stats.num_ooms, failures as i64, "{conf:?} from {head} on");
        }
    }
}

#[test]
fn a_search_that_leads_nowhere_gives_up_and_says_so() {
    // A limit that explains no failure: each has to be read twice, and there is much to copy.
    let file = failed_requests(2_000, 400, "");
    let options = RecordingOptions { limit: Some(1 << 40), ..Default::default() };
    let outcome = replay_recording(&file, &options).unwrap();
    let says = |what: &str| outcome.inferred.iter().any(|line| line.starts_with(what));
    assert!(outcome.exact() || says("search: it gave up"), "{:?}", outcome.inferred);
}

/// Each of these segments serves although the first would have: a belief about pools for each.
#[test]
fn many_beliefs_about_pools_are_given_up_within_the_budget() {
    let mut file = SnapshotFile { traces: vec![Vec::new()], ..SnapshotFile::default() };
    for segment in 0..2_000 {
        let address = Address(0x7f00_0000_0000 + segment * (32 << 20));
        let all =
            [Action::SegmentAlloc, Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
        file.traces[0].extend(all.map(|action| {
            let (size, stream, time_us, stack) = (30 << 20, StreamId(0), 0, None);
            TraceEntry { action, address, size, stream, time_us, stack }
        }));
    }
    let options = RecordingOptions { release: Some(Release::V2_11), ..Default::default() };
    let outcome = replay_recording(&file, &options).unwrap();
    let says = |what: &str| outcome.inferred.iter().any(|line| line.starts_with(what));
    assert!(says("search: it gave up"), "{:?}", outcome.inferred);
}

#[test]
fn what_is_to_end_before_it_is_done_ends_with_what_there_is() {
    let file = failed_requests(2_000, 400, "");
    let options = RecordingOptions { limit: Some(1 << 40), ..Default::default() };
    let (until, stop) = Until::told();
    stop.now();
    let (outcome, job) = Job::read_until(&file, &options, &until).unwrap();
    let says = |what: &str| outcome.inferred.iter().any(|line| line.starts_with(what));
    assert!(says("search: it gave up"), "{:?}", outcome.inferred);
    let conditions = Conditions {
        release: outcome.release,
        recorded: outcome.conf.clone(),
        limit: None,
        total: None,
    };
    let tuning = tune_until(&job, &conditions, &until, &|_, _| {});
    assert!(tuning.candidates.is_empty() && tuning.untried > 0 && tuning.need.is_none());
}
