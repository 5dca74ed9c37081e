//! Pools that a history does not name, and that are gone by its end.

use crate::synthetic::Program;
use tonnage_replay::recording::{RecordingOptions, replay_recording};

/// Programs, and how many of them are read wrongly at most: all with expandable segments, where a range
/// of one pool is given back in parts that the entries show in another order than the pools found.
const PROGRAMS: u64 = 300;
const MOST_MISREAD: usize = 6;

#[test]
fn programs_with_pools_are_nearly_all_read_exactly() {
    let mut misread = Vec::new();
    for seed in 0..PROGRAMS {
        let conf = ["", "expandable_segments:True", "max_split_size_mb:25"][(seed % 3) as usize];
        let mut program = Program::new(seed, conf);
        program.run(5 + seed % 40);
        let file = program.file();
        let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
        // Where no reading fits, it is said that one may have been missed, or that the cause lies earlier.
        let says = |what: &str| outcome.inferred.iter().any(|line| line.starts_with(what));
        let told = says("pools: ") || says("difference: ");
        assert!(outcome.exact() || told, "seed {seed}: {:?}", outcome.inferred);
        misread.extend(outcome.difference.map(|difference| (seed, difference)));
    }
    assert!(misread.len() <= MOST_MISREAD, "{} misread: {misread:#?}", misread.len());
}
