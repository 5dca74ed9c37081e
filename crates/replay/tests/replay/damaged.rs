//! Files that no allocator wrote: whatever they say, a replay takes little memory, parts from them, and goes on.

use tonnage_engine::Release;
use tonnage_events::{Action, Address, StreamId, TraceEntry};
use tonnage_replay::Outcome;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;

type Entry = (Action, u64, u64, u64);

fn file(conf: &str, entries: &[Entry]) -> SnapshotFile {
    let entry = |&(action, address, size, stream): &Entry| {
        let (address, stream) = (Address(address), StreamId(stream));
        TraceEntry { action, address, size, stream, time_us: 0, stack: None }
    };
    let settings = AllocatorSettings { conf: conf.to_owned(), ..AllocatorSettings::default() };
    let traces = vec![entries.iter().map(entry).collect()];
    SnapshotFile { traces, settings: Some(settings), ..SnapshotFile::default() }
}

fn replay(file: &SnapshotFile, release: Release, total: Option<u64>) -> Outcome {
    let options = RecordingOptions { release: Some(release), total, ..Default::default() };
    replay_recording(file, &options).unwrap()
}

/// Ranges that lie 2^60 bytes apart would be those of a device as large.
#[test]
fn no_file_makes_a_device_larger_than_there_are() {
    let apart = 1 << 60;
    let entries = [
        (Action::SegmentMap, BASE, 20 * MIB, 0),
        (Action::Alloc, BASE, 1 << 59, 0),
        (Action::SegmentMap, BASE + apart, 20 * MIB, 64),
        (Action::Alloc, BASE + apart, 5 * MIB, 64),
    ];
    let file = file("expandable_segments:True", &entries);
    assert_eq!(tonnage_replay::recording::told_total(&file, 0), None);
    let outcome = replay(&file, Release::V2_15, None);
    let told = outcome.inferred.iter().find(|line| line.starts_with("device total: "));
    assert!(told.unwrap().contains("taken as 1.00 TiB"), "{told:?}");
    assert_eq!(outcome.difference.unwrap().event, 0);
}

/// Pages are kept one by one.
#[test]
fn more_pages_than_any_device_has_are_refused() {
    let entries = [(Action::SegmentMap, BASE, 20 * MIB, 0), (Action::Alloc, BASE, 1 << 46, 0)];
    let file = file("expandable_segments:True", &entries);
    let difference = replay(&file, Release::V2_15, Some(1 << 60)).difference.unwrap();
    assert_eq!(difference.event, 0);
    assert!(difference.got.starts_with("oom"), "{}", difference.got);
}

/// A segment inside another, of a release where addresses decide between equal blocks.
#[test]
fn memory_is_never_given_out_twice() {
    let whole = [
        (Action::SegmentAlloc, BASE, 40 * MIB, 0),
        (Action::Alloc, BASE, 40 * MIB, 0),
        (Action::FreeRequested, BASE, 40 * MIB, 0),
        (Action::FreeCompleted, BASE, 40 * MIB, 0),
        (Action::Alloc, BASE, 10 * MIB, 0),
        (Action::Alloc, BASE + 10 * MIB, 30 * MIB, 0),
        (Action::SegmentAlloc, BASE + 20 * MIB, 20 * MIB, 0),
        (Action::Alloc, BASE + 20 * MIB, 20 * MIB, 0),
        (Action::FreeRequested, BASE + 10 * MIB, 30 * MIB, 0),
        (Action::FreeCompleted, BASE + 10 * MIB, 30 * MIB, 0),
        (Action::Alloc, BASE + 10 * MIB, 10 * MIB, 0),
        (Action::FreeRequested, BASE + 20 * MIB, 20 * MIB, 0),
        (Action::FreeCompleted, BASE + 20 * MIB, 20 * MIB, 0),
        (Action::FreeRequested, BASE + 10 * MIB, 10 * MIB, 0),
        (Action::FreeCompleted, BASE + 10 * MIB, 10 * MIB, 0),
        (Action::Alloc, BASE + 10 * MIB, 11 * MIB, 0),
        (Action::Alloc, BASE + 10 * MIB, 20 * MIB, 0),
    ];
    let outcome = replay(&file("", &whole), Release::V2_11, None);
    assert_eq!(outcome.difference.unwrap().event, 6);
    // The same with the pages of two ranges.
    let pages = [
        (Action::SegmentMap, BASE, 40 * MIB, 0),
        (Action::Alloc, BASE, 40 * MIB, 0),
        (Action::SegmentMap, BASE + 20 * MIB, 20 * MIB, 64),
        (Action::Alloc, BASE + 20 * MIB, 20 * MIB, 64),
    ];
    let outcome = replay(&file("expandable_segments:True", &pages), Release::V2_11, Some(1 << 40));
    assert_eq!(outcome.difference.unwrap().event, 2);
}

/// Pages that no driver maps: the request fails for another reason than want of memory.
#[test]
fn settings_that_the_device_refuses_part_like_any_other_difference() {
    let entries = [(Action::SegmentMap, BASE, 21 * MIB, 0), (Action::Alloc, BASE, 5 * MIB, 0)];
    let file = file("large_segment_size_mb:21,expandable_segments:True", &entries);
    let outcome = replay(&file, Release::V2_15, None);
    assert_eq!(outcome.difference.unwrap().event, 0);
}
