//! Pools that are gone by the end of a history, named by its entries (from PyTorch 2.12 on) or not.

use crate::synthetic::Program;
use tonnage_device::Dry;
use tonnage_engine::{
    Capture, Config, DeviceId, Engine, PoolId, RecordOptions, Release, StreamFilter, StreamId,
};
use tonnage_replay::job::Job;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::snapshot_file;
use tonnage_replay::what_if::{Upgrade, WhatIf};

/// Programs of each release.
const PROGRAMS: u64 = 300;

/// How many of them are read wrongly at most. With 2.11 all have expandable segments, where a range of one pool is
/// given back in parts that the entries show in another order than the pools found.
#[test]
fn programs_with_pools_are_nearly_all_read_exactly() {
    read_all_but(6, Release::V2_11);
}

/// Entries name their pools, and tell what was inside a capture where not every pool in use is one.
#[test]
fn programs_with_pools_are_all_read_exactly_where_entries_name_them() {
    for release in [Release::V2_12, Release::V2_13, Release::V2_15] {
        read_all_but(0, release);
    }
}

fn read_all_but(most: usize, release: Release) {
    let mut misread = Vec::new();
    for seed in 0..PROGRAMS {
        let conf = ["", "expandable_segments:True", "max_split_size_mb:25"][(seed % 3) as usize];
        let mut program = Program::new(release, seed, conf);
        program.run(5 + seed % 40);
        let file = program.file();
        let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
        // Where no reading fits, it is said that one may have been missed, or that the cause lies earlier.
        let says = |what: &str| outcome.inferred.iter().any(|line| line.starts_with(what));
        let told = says("pools: ") || says("difference: ");
        assert!(outcome.exact() || told, "seed {seed}: {:?}", outcome.inferred);
        misread.extend(outcome.difference.map(|difference| (seed, difference)));
    }
    assert!(misread.len() <= most, "{release}: {} misread: {misread:#?}", misread.len());
}

/// In a pool that is in use the cache goes back before a request fails; in a capture it does not, and only that tells.
#[test]
fn a_request_that_fails_with_memory_cached_was_inside_a_capture() {
    for release in [Release::V2_13, Release::V2_15] {
        for captured in [false, true] {
            let mut engine = Engine::new(Dry::new(100 << 20), Config::for_release(release));
            engine.record_history(Some(RecordOptions::default()));
            let cached = engine.allocate(60 << 20, StreamId(0)).unwrap();
            engine.free(&cached).unwrap();
            engine.begin_allocate_to_pool(PoolId(0, 5), StreamFilter::Any).unwrap();
            let _kept = engine.allocate(2 << 20, StreamId(0)).unwrap();
            if captured {
                engine.begin_capture(Capture::Everywhere);
            }
            let served = engine.allocate(60 << 20, StreamId(0)).is_ok();
            assert_eq!(served, !captured, "{release}");
            let file = snapshot_file(engine.snapshot(), DeviceId(0));
            let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
            assert_eq!(outcome.difference, None, "{release}, {captured}: {:?}", outcome.inferred);
            let says = outcome.inferred.iter().any(|line| line.starts_with("captures: "));
            assert_eq!(says, captured, "{release}: {:?}", outcome.inferred);
            // Another allocator is asked for the same, inside a capture too.
            let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
            let what_if = WhatIf { total: Some(100 << 20), ..WhatIf::new(Config::default()) };
            for other in [release, Release::V2_11] {
                let upgrade = Upgrade::new(&outcome, &job, other, None, &what_if).unwrap();
                let (own, other) = (upgrade.own.figures(), upgrade.other.figures());
                let recorded = [outcome.stats.num_ooms, outcome.stats.num_alloc_retries];
                assert_eq!([own.ooms, own.retries], recorded, "{release}, {captured}");
                assert_eq!(own.ooms == other.ooms, captured || release == upgrade.other.release);
            }
        }
    }
}
