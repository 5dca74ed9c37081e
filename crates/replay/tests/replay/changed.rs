//! A copy of a recording with one thing changed is found, at that entry.

use std::path::Path;

use tonnage_device::Dry;
use tonnage_engine::{Config, Engine, RestoreError, Start};
use tonnage_events::{Action, Address, BlockState, StreamId, TraceEntry};
use tonnage_replay::Difference;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_snapshot::SnapshotFile;

/// Small recordings, and every how many entries one is changed.
const RECORDINGS: [(&str, usize); 8] = [
    ("mlp_seed.default", 1),
    ("mlp_seed.expandable", 2),
    ("mlp_seed.tight", 1),
    ("cudagraph.default", 2),
    ("cudagraph.expandable", 3),
    ("cudagraph.tight", 3),
    ("multistream.default", 7),
    ("multistream.expandable", 7),
];

fn open(name: &str) -> SnapshotFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    tonnage_snapshot::open(&folder.join(format!("{name}.pickle.zst"))).unwrap()
}

fn difference(file: &SnapshotFile) -> Option<Difference> {
    replay_recording(file, &RecordingOptions::default()).unwrap().difference
}

/// Changes every so many-th entry of each recording, one at a time, and expects to hear of it.
fn each_is_found(what: &str, change: impl Fn(&mut TraceEntry)) {
    for (name, stride) in RECORDINGS {
        let original = open(name);
        for index in (0..original.traces[0].len()).step_by(stride) {
            let entry = original.traces[0][index];
            // The size, stream and free bytes of a failed request are told nowhere else.
            if entry.action == Action::Oom {
                continue;
            }
            let mut file = original.clone();
            change(&mut file.traces[0][index]);
            let found = difference(&file).map(|difference| difference.event);
            assert_eq!(found, Some(index), "{name}: {what} of entry {index}, {entry}");
        }
    }
}

#[test]
fn a_changed_address_is_found_at_its_entry() {
    each_is_found("address a little off", |entry| entry.address = Address(entry.address.0 + 512));
    each_is_found("address far off", |entry| entry.address = Address(entry.address.0 ^ (1 << 40)));
}

#[test]
fn a_changed_size_is_found_at_its_entry() {
    each_is_found("size", |entry| entry.size += 512);
    each_is_found("size within the rounding", |entry| entry.size += 1);
}

#[test]
fn a_changed_stream_is_found_at_its_entry() {
    each_is_found("stream", |entry| entry.stream = StreamId(entry.stream.0 + 1));
}

#[test]
fn a_changed_order_is_found_at_the_first_entry_out_of_place() {
    for (name, stride) in RECORDINGS {
        let original = open(name);
        let trace = &original.traces[0];
        for index in (0..trace.len() - 1).step_by(stride) {
            let (one, next) = (trace[index], trace[index + 1]);
            // Two that happened in the same microsecond may well have happened the other way round.
            if one.time_us == next.time_us {
                continue;
            }
            let mut file = original.clone();
            file.traces[0].swap(index, index + 1);
            let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
            let Some(difference) = outcome.difference else {
                // It would have gone the other way round too; only the times tell.
                let said = format!("time: entry {index} is out of order");
                let told = outcome.inferred.iter().any(|line| line.starts_with(&said));
                assert!(told, "{name}: {one} exchanged with {next}: {:?}", outcome.inferred);
                continue;
            };
            assert_eq!(difference.event, index, "{name}: {one} exchanged with {next}");
        }
    }
}

/// Half as many entries of each recording, and no failed requests, which leave no other trace.
fn each_entry(mut test: impl FnMut(&str, &SnapshotFile, usize, TraceEntry)) {
    for (name, stride) in RECORDINGS {
        let original = open(name);
        for index in (0..original.traces[0].len()).step_by(2 * stride) {
            let entry = original.traces[0][index];
            if entry.action != Action::Oom {
                test(name, &original, index, entry);
            }
        }
    }
}

#[test]
fn a_repeated_entry_is_found_where_it_comes_again() {
    each_entry(|name, original, index, entry| {
        let mut file = original.clone();
        file.traces[0].insert(index, entry);
        let found = difference(&file).map(|difference| difference.event);
        assert_eq!(found, Some(index + 1), "{name}: entry {index} twice, {entry}");
    });
}

#[test]
fn a_missing_entry_is_found_where_the_file_first_contradicts_itself() {
    let (mut allocs, mut at_place) = (0, 0);
    each_entry(|name, original, index, entry| {
        let mut file = original.clone();
        file.traces[0].remove(index);
        let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
        let says = |what: &str| outcome.inferred.iter().any(|line| line.contains(what));
        let case = format!("{name}: without entry {index}, {entry}: {:?}", outcome.inferred);
        let Some(found) = outcome.difference.as_ref().map(|difference| difference.event) else {
            // A segment that nothing else could have used may have been there before the first
            // entry; then it is said where it is used first.
            assert!(matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap), "{case}");
            assert!(
                says(&format!("an unused segment was there, first used by entry {index};")),
                "{case}"
            );
            return;
        };
        let names = |it: &TraceEntry, action| it.action == action && it.address == entry.address;
        let next = |action| {
            let next = file.traces[0][index..].iter().position(|it| names(it, action));
            next.map_or(file.traces[0].len(), |ahead| index + ahead)
        };
        match entry.action {
            // Whoever completes what was not freed gives it away.
            Action::FreeRequested => assert_eq!(found, next(Action::FreeCompleted), "{case}"),
            // Most complete at once; when one that waited was found complete, no other entry tells.
            Action::FreeCompleted => {
                let before = &file.traces[0][..index];
                let free = before.iter().rposition(|it| names(it, Action::FreeRequested));
                assert_eq!(Some(found), free.map(|free| free + 1), "{case}");
            }
            // A block that was not handed out is free until it would be handed out again, or is freed.
            Action::Alloc => {
                assert!((index..=next(Action::FreeRequested)).contains(&found), "{found}: {case}");
                let told = says("the cause may lie earlier") && says(&entry.address.to_string());
                assert!(found == index || told, "{found}: {case}");
                allocs += 1;
                at_place += usize::from(found == index);
            }
            // A cache may keep what another pool's memory goes back without.
            Action::SegmentFree | Action::SegmentUnmap => {
                assert!(found >= index, "{found}: {case}");
                assert!(found == index || says("the cause may lie earlier"), "{found}: {case}");
            }
            _ => assert_eq!(found, index, "{case}"),
        }
    });
    assert!(
        at_place * 5 > allocs * 2,
        "{at_place} of {allocs} missing allocations found at their place"
    );
}

#[test]
fn a_changed_block_or_segment_at_the_end_is_found_after_the_last_entry() {
    let original = open("mlp_seed.default");
    let end = original.traces[0].len();
    let changes: [fn(&mut SnapshotFile); 7] = [
        |file| file.segments[0].stream = StreamId(5),
        |file| file.segments[0].total_size += 512,
        |file| file.segments[0].active_size += 512,
        |file| file.segments[1].blocks[0].size += 512,
        |file| file.segments[1].blocks[0].state = BlockState::ActivePendingFree,
        |file| drop(file.segments.pop()),
        |file| file.segments[2].address = Address(file.segments[2].address.0 + 512),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut file = original.clone();
        change(&mut file);
        let found = difference(&file).map(|difference| difference.event);
        assert_eq!(found, Some(end), "change {number}");
    }
}

#[test]
fn absurd_numbers_differ_and_never_panic() {
    let original = open("mlp_seed.expandable");
    let fixed = open("mlp_seed.default");
    for original in [original, fixed] {
        for index in 0..original.traces[0].len().min(40) {
            for absurd in [0, 1, 1 << 59, 1 << 62, u64::MAX] {
                let mut sized = original.clone();
                sized.traces[0][index].size = absurd;
                let mut placed = original.clone();
                placed.traces[0][index].address = Address(absurd);
                let mut streamed = original.clone();
                streamed.traces[0][index].stream = StreamId(absurd);
                assert!(difference(&sized).is_some(), "size {absurd} at {index}");
                assert!(difference(&placed).is_some(), "address {absurd} at {index}");
                let unchanged = original.traces[0][index].stream == StreamId(absurd);
                assert!(unchanged || difference(&streamed).is_some(), "stream {absurd} at {index}");
            }
        }
    }
}

/// Two segments and two blocks of 2^63 bytes each.
#[test]
fn sizes_whose_sum_does_not_fit_are_refused_by_the_engine_and_parted_from_by_a_replay() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/odd/sizes_of_2_63.pickle");
    let file = tonnage_snapshot::open(path.as_ref()).unwrap();
    let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
    assert!(outcome.difference.is_some());
    let start = Start { segments: file.segments, ..Start::default() };
    let mut engine = Engine::new(Dry::new(8 << 30), Config::default());
    assert!(matches!(engine.restore(&start), Err(RestoreError::TooLarge)));
}
