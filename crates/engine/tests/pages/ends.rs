//! Near the limit, where blocks begin and end within pages that others keep, and views are many: what was mapped is found again, little is
//! given up, and large blocks keep their large pages.

use tonnage_device::Dry;
use tonnage_engine::{Allocation, Config, Engine, Policy, Slack};
use tonnage_events::StreamId;

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);

fn engine(slack: f64, limit_mib: Option<u64>) -> Engine<Dry> {
    let policy = Policy::Pages(Slack::new(slack).unwrap());
    let mut engine = Engine::with_policy(Dry::new(4 << 30), Config::default(), policy);
    engine.set_limit(limit_mib.map(|mib| mib * MIB));
    engine
}

fn allocate(engine: &mut Engine<Dry>, mib: u64) -> Allocation {
    engine.allocate(mib * MIB, STREAM).unwrap()
}

/// Free blocks of these sizes, each with a live one behind it.
fn holes(engine: &mut Engine<Dry>, mib: &[u64], between: u64) -> Vec<Allocation> {
    let blocks = mib.iter().map(|&mib| {
        let hole = allocate(engine, mib);
        allocate(engine, between);
        hole
    });
    let holes: Vec<_> = blocks.collect();
    for hole in &holes {
        engine.free(hole).unwrap();
    }
    holes
}

#[test]
fn ends_of_pages_that_are_large_beside_the_request_serve_again_without_a_driver_call() {
    let mut engine = engine(0.0, Some(72));
    // Eight pages of 8 MiB.
    let all = allocate(&mut engine, 64);
    engine.free(&all).unwrap();
    let tiles = [13, 6, 18, 6, 21].map(|mib| allocate(&mut engine, mib));
    for hole in [&tiles[1], &tiles[3]] {
        engine.free(hole).unwrap();
    }
    let bytes = 13 * MIB / 2;
    let block = engine.allocate(bytes, STREAM).unwrap();
    let parts = engine.device().pages_under(block.address, block.size);
    assert_eq!(parts.filter(|part| part.bytes < part.page_size).count(), 2, "it has two ends");
    engine.free(&block).unwrap();
    let before = engine.device().page_calls();
    for _ in 0..20 {
        let again = engine.allocate(bytes, STREAM).unwrap();
        assert_eq!(again.address, block.address);
        engine.free(&again).unwrap();
    }
    assert_eq!(engine.device().page_calls(), before);
    engine.check_invariants().unwrap();
}

#[test]
fn one_new_view_retires_one_that_its_pages_have_in_common() {
    let mut engine = engine(0.0, None);
    holes(&mut engine, &[64; 20], 8);
    // Fourteen views, none of which serves the next size. The first pages are in all of them.
    let sizes: Vec<_> = (0..14).map(|power| (100.0 * 1.2_f64.powi(power)) as u64).collect();
    for &mib in &sizes {
        let block = allocate(&mut engine, mib);
        engine.free(&block).unwrap();
    }
    let before = engine.device().page_calls();
    for &mib in sizes.iter().rev() {
        let block = allocate(&mut engine, mib);
        engine.free(&block).unwrap();
    }
    // The second view serves the size of the first too.
    assert_eq!(engine.device().page_calls(), before);
}

#[test]
fn where_memory_is_not_short_no_page_is_in_use_in_two_places() {
    let mut engine = engine(0.0, None);
    holes(&mut engine, &[64, 64], 8);
    let view = allocate(&mut engine, 120);
    let first = engine.device().pages_under(view.address, 1).next().unwrap().page;
    engine.free(&view).unwrap();
    let at_home = engine.allocate(MIB + 512, STREAM).unwrap();
    let part = engine.device().pages_under(at_home.address, 1).next().unwrap();
    assert_eq!(
        (part.page, part.offset),
        (first, 0),
        "it has the beginning of the view's first page"
    );
    let block = allocate(&mut engine, 116);
    let dry = engine.device();
    let ends: Vec<_> = dry.pages_under(block.address, block.size).map(|part| part.page).collect();
    assert!(!ends.contains(&first));
}

#[test]
fn where_more_may_lie_free_there_are_new_pages_before_ends_of_others_are_used() {
    for (slack, moves) in [(0.0, true), (0.5, false)] {
        let mut engine = engine(slack, Some(18));
        holes(&mut engine, &[3, 3], 3);
        allocate(&mut engine, 5);
        let calls = engine.device().page_calls();
        assert_eq!(calls.mapped > calls.created, moves, "slack {slack}");
    }
}

#[test]
fn near_the_limit_too_large_blocks_have_large_pages_while_these_can_be_made() {
    let mut engine = engine(0.02, Some(1024));
    for _ in 0..13 {
        allocate(&mut engine, 56);
    }
    // Pages of 2 MiB, and ends of such.
    holes(&mut engine, &[51, 51], 1);
    let block = allocate(&mut engine, 96);
    let dry = engine.device();
    let smallest = dry.pages_under(block.address, block.size).map(|part| part.page_size).min();
    assert!(smallest >= Some(4 * MIB), "{smallest:?}");
}

#[test]
fn a_page_that_is_part_of_many_views_in_use_serves_rather_than_that_a_request_fails() {
    const TURNS: u64 = 16;
    let mut engine = engine(0.0, Some(TURNS * 12 + 6));
    let pairs: Vec<_> = (0..TURNS)
        .map(|_| {
            [0; 2].map(|_| {
                let hole = allocate(&mut engine, 4);
                allocate(&mut engine, 2);
                hole
            })
        })
        .collect();
    let common = allocate(&mut engine, 4);
    allocate(&mut engine, 2);
    engine.free(&common).unwrap();
    for (turn, pair) in pairs.iter().enumerate() {
        for hole in pair {
            engine.free(hole).unwrap();
        }
        let all = allocate(&mut engine, 12);
        engine.free(&all).unwrap();
        // Its view stays in use, and the last pages are free again.
        let most = allocate(&mut engine, 8);
        assert_eq!(most.address, all.address, "turn {turn}");
    }
    engine.check_invariants().unwrap();
}
