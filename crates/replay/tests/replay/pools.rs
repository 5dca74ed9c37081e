//! Pools that are gone by the end of a history, named by its entries (from PyTorch 2.12 on) or not.

use crate::synthetic::Program;
use tonnage_engine::Release;
use tonnage_replay::recording::{RecordingOptions, replay_recording};

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
