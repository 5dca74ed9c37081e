//! Histories without their beginning, of releases where the age of equal blocks decides which one serves.

use tonnage_engine::Release;
use tonnage_events::{
    Action, Address, BlockState, DeviceId, PoolId, PoolKind, SnapshotBlock, SnapshotSegment,
    StreamId, TraceEntry,
};
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::{HistoryKind, Outcome};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

use crate::synthetic::{Program, without_head};

/// Programs of each release, and cuts of each.
const PROGRAMS: u64 = 24;
const CUTS: usize = 5;

fn replay_cuts(release: Release, mut check: impl FnMut(&str, Outcome)) {
    for seed in 0..PROGRAMS {
        let conf = ["", "expandable_segments:True", "max_split_size_mb:25"][(seed % 3) as usize];
        let mut program = Program::new(release, seed, conf);
        program.run_with_ties(600);
        let file = program.file();
        let length = file.traces[0].len();
        for cut in 1..=CUTS {
            // Not inside a call.
            let ends = |at: &usize| {
                let before = file.traces[0][at - 1].action;
                matches!(before, Action::Alloc | Action::FreeCompleted)
                    && file.traces[0][*at].action != Action::FreeCompleted
            };
            let at = (length * cut / (CUTS + 1)..length).find(ends).unwrap();
            let file = without_head(&file, at);
            let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
            check(&format!("{release}, seed {seed}, cut {cut}, {conf}"), outcome);
        }
    }
}

fn tells_of_ages(outcome: &Outcome) -> bool {
    outcome.inferred.iter().any(|line| line.starts_with("ages: "))
}

#[test]
fn what_came_first_is_learnt_from_which_of_equal_blocks_served() {
    for release in [Release::V2_12, Release::V2_13, Release::V2_15] {
        let (mut learnt, mut cuts, mut misread) = (0, 0, Vec::new());
        replay_cuts(release, |what, outcome| {
            cuts += usize::from(outcome.history == HistoryKind::Partial);
            learnt += usize::from(tells_of_ages(&outcome));
            if let Some(difference) = &outcome.difference {
                misread.push(format!("{what}: {difference:?} {:#?}", outcome.inferred));
            }
        });
        assert!(
            misread.is_empty(),
            "{release}: {} of {cuts}: {}",
            misread.len(),
            misread.join("\n")
        );
        // Else nothing was learnt, and the test tells nothing.
        assert!(learnt > 10, "{release}: ties told something in {learnt} of {cuts}");
    }
}

#[test]
fn where_addresses_decide_nothing_is_said_of_ages() {
    replay_cuts(Release::V2_11, |what, outcome| {
        assert_eq!(outcome.difference, None, "{what}: {:?}", outcome.inferred);
        assert!(!tells_of_ages(&outcome), "{what}");
    });
}

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn entry(action: Action, address: u64, size: u64) -> TraceEntry {
    let (address, stream) = (Address(address), StreamId(0));
    TraceEntry { action, address, size, stream, time_us: 0, stack: None }
}

/// A segment with one block, at the end of a history.
fn segment(address: u64, size: u64, in_use: bool) -> SnapshotSegment {
    let (address, used) = (Address(address), if in_use { size } else { 0 });
    let state = if in_use { BlockState::ActiveAllocated } else { BlockState::Inactive };
    let kind = if size > 2 * MIB { PoolKind::Large } else { PoolKind::Small };
    let (allocated_size, active_size, requested_size) = (used, used, used);
    let block = SnapshotBlock { address, size, requested_size, state, stack: None };
    SnapshotSegment {
        device: DeviceId(0),
        address,
        total_size: size,
        allocated_size,
        active_size,
        requested_size,
        stream: StreamId(0),
        kind,
        pool: PoolId::DEFAULT,
        expandable: false,
        stack: None,
        blocks: vec![block],
    }
}

fn replay(conf: &str, entries: Vec<TraceEntry>, segments: Vec<SnapshotSegment>) -> Outcome {
    let settings = AllocatorSettings { conf: conf.to_owned(), ..AllocatorSettings::default() };
    let (traces, settings) = (vec![entries], Some(settings));
    let file = SnapshotFile { traces, segments, settings, ..SnapshotFile::default() };
    let options = RecordingOptions { release: Some(Release::V2_15), ..Default::default() };
    replay_recording(&file, &options).unwrap()
}

/// Of oversize segments that are too small for a request by themselves, the youngest go back first.
#[test]
fn oversize_segments_go_back_youngest_first() {
    let (low, high, new) = (BASE, BASE + 64 * MIB, BASE + 256 * MIB);
    for [first, second] in [[low, high], [high, low]] {
        let entries = vec![
            entry(Action::SegmentFree, first, 30 * MIB),
            entry(Action::SegmentFree, second, 30 * MIB),
            entry(Action::SegmentAlloc, new, 60 * MIB),
            entry(Action::Alloc, new, 60 * MIB),
        ];
        let outcome = replay("max_split_size_mb:25", entries, vec![segment(new, 60 * MIB, true)]);
        assert_eq!(outcome.difference, None, "{:?}", outcome.inferred);
        assert_eq!(tells_of_ages(&outcome), first == low, "{:?}", outcome.inferred);
    }
}

/// Sixty pairs of equal segments, of each of which the higher is the older one, far from each other in a long history.
#[test]
fn many_ties_far_apart_are_all_learnt() {
    let (mut entries, mut segments) = (Vec::new(), Vec::new());
    let small = BASE - 2 * MIB;
    entries.push(entry(Action::SegmentAlloc, small, 2 * MIB));
    segments.push(segment(small, 2 * MIB, false));
    // A free block keeps what was asked for last.
    segments[0].blocks[0].requested_size = 512;
    let mut at = BASE;
    for pair in 0..60 {
        let size = (30 + 2 * pair) * MIB;
        let (low, high) = (at, at + size);
        at = high + size;
        segments.extend([segment(low, size, false), segment(high, size, true)]);
        for _ in 0..300 {
            let actions = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
            entries.extend(actions.map(|action| entry(action, small, 512)));
        }
        entries.push(entry(Action::Alloc, high, size));
    }
    let outcome = replay("", entries, segments);
    assert_eq!(outcome.difference, None, "{:?}", outcome.inferred);
    assert!(tells_of_ages(&outcome), "{:?}", outcome.inferred);
}
