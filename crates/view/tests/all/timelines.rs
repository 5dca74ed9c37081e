//! What the page draws adds up, for every recording there is.

use std::time::Instant;

use tonnage_events::{Action, Address, Frame, Stacks, StreamId, TraceEntry};
use tonnage_snapshot::SnapshotFile;

use crate::support::{Columns, Page, late, testdata, trace};

/// Live blocks are what is allocated, segments what is reserved, at every moment; rows refer to each other rightly.
fn check(columns: &Columns, name: &str) {
    let moments = columns.moments();
    assert_eq!(moments, columns.get("time").len() + 1, "{name}");
    let allocated = columns.sums("allocations.size", "allocations.begin", "allocations.end");
    assert_eq!(allocated, columns.get("allocated"), "{name}: allocated");
    let reserved = columns.sums("segments.size", "segments.begin", "segments.end");
    assert_eq!(reserved, columns.get("reserved"), "{name}: reserved");
    let begins = columns.get("allocations.begin");
    assert!(begins.is_sorted(), "{name}");
    let most = |of: &str| columns.get(of).iter().copied().fold(0.0, f64::max);
    let peak = &columns.head["peak"];
    for level in ["allocated", "reserved"] {
        assert_eq!(peak[level].as_f64(), Some(most(level)), "{name}");
        let at = peak[format!("{level}At")].as_u64().unwrap() as usize;
        assert_eq!(columns.get(level)[at], most(level), "{name}");
    }
    let rows = begins.len();
    for row in 0..rows {
        let of = |column: &str| columns.get(&format!("allocations.{column}"))[row];
        assert!(of("begin") <= of("end") && of("end") <= of("done"), "{name}: row {row}");
        assert!(of("done") <= moments as f64, "{name}: row {row}");
        let segment = of("segment") as usize;
        assert_ne!(segment, 0, "{name}: row {row} lies in no segment");
        let held = |column: &str| columns.get(&format!("segments.{column}"))[segment - 1];
        let inside =
            held("address") <= of("address") && of("address") < held("address") + held("size");
        let there = held("begin") <= of("begin") && of("done") <= held("end");
        assert!(inside && there, "{name}: row {row} is not in its segment");
        assert_eq!(held("stream"), of("stream"), "{name}: row {row}");
    }
    for (column, list) in [
        ("allocations.stream", "streams"),
        ("allocations.site", "sites"),
        ("allocations.purpose", "purposes"),
        ("segments.pool", "pools"),
    ] {
        let length = columns.head[list].as_array().unwrap().len() as f64;
        assert!(columns.get(column).iter().all(|&it| it < length), "{name}: {column}");
    }
}

#[test]
fn live_blocks_add_up_to_allocated_and_segments_to_reserved_in_every_recording() {
    let mut names: Vec<_> = std::fs::read_dir(testdata().join("traces"))
        .unwrap()
        .filter_map(|it| {
            let name = it.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".pickle.zst").map(str::to_owned)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 60);
    for name in names {
        let page = Page::of([trace(&name)]);
        check(&page.timeline(0), &name);
    }
}

#[test]
fn a_history_that_lost_its_beginning_adds_up_too() {
    for name in ["gpt2_varlen.default", "llama_ckpt_accum.expandable", "cudagraph.default"] {
        let (_, whole) = trace(name);
        let length = whole.traces[0].len();
        for lost in [1, length / 3, length - 1, length] {
            let (_, file) = trace(name);
            let page = Page::of([(name.to_owned(), late(file, lost))]);
            let columns = page.timeline(0);
            let allocated =
                columns.sums("allocations.size", "allocations.begin", "allocations.end");
            assert_eq!(allocated, columns.get("allocated"), "{name} without {lost}");
            let reserved = columns.sums("segments.size", "segments.begin", "segments.end");
            assert_eq!(reserved, columns.get("reserved"), "{name} without {lost}");
        }
    }
}

#[test]
fn sites_iterations_and_phases_are_told_where_the_file_has_them() {
    let page = Page::of([trace("gpt2_varlen.default.stacks")]);
    let columns = page.timeline(0);
    assert!(columns.head["sites"][0].is_null());
    let site = &columns.head["sites"][1];
    assert!(site["file"].as_str().unwrap().ends_with(".py"), "{site}");
    assert!(site["line"].as_u64().unwrap() > 0);
    assert!(columns.get("allocations.site").iter().filter(|&&it| it > 0.0).count() > 1000);
    assert!(columns.head["iterations"].as_array().unwrap().len() >= 3);
    assert_eq!(columns.head["timed"], true);
    let stack = columns.get("allocations.stack").iter().copied().find(|&it| it > 0.0).unwrap();
    let frames = page.get(&format!("api/recordings/0/stacks/{}", stack - 1.0)).json();
    assert!(frames.as_array().unwrap().len() > 1);
    let purposes: std::collections::BTreeSet<_> =
        columns.get("allocations.purpose").iter().map(|&it| it as u8).collect();
    assert!(purposes.len() >= 3, "{purposes:?}");
}

#[test]
fn of_very_many_failed_requests_the_last_are_listed_and_all_are_counted() {
    let (name, mut file) = trace("mlp_seed.default");
    let last = file.traces[0].len() + 10_002;
    let failed = TraceEntry { action: Action::Oom, stack: None, ..file.traces[0][0] };
    file.traces[0].extend(std::iter::repeat_n(failed, 10_003));
    let columns = Page::of([(name, file)]).timeline(0);
    let ooms = columns.head["ooms"].as_array().unwrap();
    assert_eq!((ooms.len(), &columns.head["failed"]), (10_000, &10_003.into()));
    assert_eq!(ooms[9_999]["entry"], last);
}

/// A history of a million entries: blocks of many sizes and stacks, 5,000 of them live at once.
fn million() -> SnapshotFile {
    const SLOTS: u64 = 5_000;
    const SEGMENT: u64 = 20 << 20;
    let mut stacks = Stacks::default();
    let stack: Vec<_> = (0..1_000)
        .map(|number| {
            let frame = |depth: u32| Frame {
                name: format!("layer_{depth}").into(),
                filename: format!("/home/me/model_{}.py", number % 37).into(),
                line: number * 7 + depth,
            };
            stacks.intern((0..12).map(frame).collect())
        })
        .collect();
    let mut entries = Vec::with_capacity(1_000_000);
    let mut push = |action, address, size, stack| {
        let time_us = 1_700_000_000_000_000 + entries.len() as u64;
        let (address, stream) = (Address(address), StreamId::DEFAULT);
        entries.push(TraceEntry { action, address, size, stream, time_us, stack });
        entries.len()
    };
    let place = |slot: u64| (1 << 40) + slot * (SEGMENT / 10);
    for segment in 0..SLOTS / 10 {
        push(Action::SegmentAlloc, place(segment * 10), SEGMENT, None);
    }
    let size = |block: u64| (block * 7_919 % 900 + 1_100) << 10;
    let mut block = 0;
    while push(
        Action::Alloc,
        place(block % SLOTS),
        size(block),
        Some(stack[block as usize % 1_000]),
    ) < 999_998
    {
        block += 1;
        if let Some(old) = block.checked_sub(SLOTS) {
            push(Action::FreeRequested, place(old % SLOTS), size(old), None);
            push(Action::FreeCompleted, place(old % SLOTS), size(old), None);
        }
    }
    SnapshotFile { traces: vec![entries], stacks, ..SnapshotFile::default() }
}

#[test]
fn a_million_events_are_columns_that_add_up_and_are_kept() {
    let page = Page::of([("million".to_owned(), million())]);
    let began = Instant::now();
    let columns = page.get("api/recordings/0/timeline");
    let first = began.elapsed();
    let again = Instant::now();
    let same = page.get("api/recordings/0/timeline");
    eprintln!(
        "{} MB: {first:.2?} the first time, {:.2?} from then on",
        columns.body.len() / 1_000_000,
        again.elapsed()
    );
    assert_eq!(columns.body, same.body);
    let columns = Columns::read(&columns.body);
    assert!(columns.get("time").len() > 999_000);
    let allocated = columns.sums("allocations.size", "allocations.begin", "allocations.end");
    assert_eq!(allocated, columns.get("allocated"));
}
