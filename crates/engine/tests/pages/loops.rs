//! What programs do again and again: it is not paid for again, and what is free is used before more is obtained.

use tonnage_device::Dry;
use tonnage_engine::{Allocation, Config, Engine, Policy, Slack};
use tonnage_events::StreamId;

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);

fn engine(slack: f64) -> Engine<Dry> {
    let policy = Policy::Pages(Slack::new(slack).unwrap());
    Engine::with_policy(Dry::new(4 << 30), Config::default(), policy)
}

fn allocate(engine: &mut Engine<Dry>, mib: u64) -> Allocation {
    engine.allocate(mib * MIB, STREAM).unwrap()
}

/// Two blocks with a live one between them, freed: no run of their bytes is as long as both.
fn two_holes(engine: &mut Engine<Dry>, mib: u64) -> [Allocation; 2] {
    let first = allocate(engine, mib);
    let keeps_apart = allocate(engine, 8);
    let second = allocate(engine, mib);
    let behind = allocate(engine, 8);
    engine.free(&first).unwrap();
    engine.free(&second).unwrap();
    [keeps_apart, behind]
}

#[test]
fn a_block_that_fits_no_hole_is_made_of_two() {
    let mut engine = engine(0.0);
    two_holes(&mut engine, 64);
    let before = engine.device().page_calls();
    let reserved = engine.stats().memory_reserved();
    let block = allocate(&mut engine, 120);
    assert_eq!(engine.stats().memory_reserved(), reserved, "nothing new was needed");
    let calls = engine.device().page_calls() - before;
    assert_eq!((calls.created, calls.unmapped), (0, 0));
    assert!(calls.mapped > 0);
    engine.free(&block).unwrap();
    engine.check_invariants().unwrap();
}

#[test]
fn the_second_time_costs_no_driver_call() {
    let mut engine = engine(0.0);
    two_holes(&mut engine, 64);
    let block = allocate(&mut engine, 120);
    engine.free(&block).unwrap();
    let before = engine.device().page_calls();
    for _ in 0..5 {
        // Half of the pages are of use at home in between.
        let at_home = allocate(&mut engine, 60);
        engine.free(&at_home).unwrap();
        let again = allocate(&mut engine, 120);
        assert_eq!(again.address, block.address);
        engine.free(&again).unwrap();
    }
    assert_eq!(engine.device().page_calls(), before);
}

#[test]
fn only_what_is_missing_is_made() {
    let mut engine = engine(0.0);
    two_holes(&mut engine, 64);
    let reserved = engine.stats().memory_reserved();
    allocate(&mut engine, 150);
    assert_eq!(engine.stats().memory_reserved(), reserved + 22 * MIB);
}

#[test]
fn within_the_slack_memory_is_made_rather_than_moved() {
    let mut engine = engine(1.0);
    two_holes(&mut engine, 64);
    let reserved = engine.stats().memory_reserved();
    allocate(&mut engine, 120);
    assert!(engine.stats().memory_reserved() > reserved);
    let calls = engine.device().page_calls();
    assert_eq!(calls.created, calls.mapped);
}

#[test]
fn a_freed_block_serves_another_stream_before_the_device_is_asked() {
    let mut engine = engine(0.0);
    let block = allocate(&mut engine, 100);
    engine.free(&block).unwrap();
    let other = engine.allocate(100 * MIB, StreamId(5)).unwrap();
    assert_eq!(other.address, block.address);
    assert_eq!(engine.device().handles() as u64, 1 + engine.device().page_calls().created);
}

#[test]
fn neighbours_share_pages() {
    let mut engine = engine(0.0);
    let blocks: Vec<_> =
        (0..8).map(|_| engine.allocate(5 * MIB + 300_000, STREAM).unwrap()).collect();
    let bytes: u64 = blocks.iter().map(|block| block.size).sum();
    assert_eq!(engine.stats().memory_reserved(), bytes.next_multiple_of(2 * MIB));
}

#[test]
fn a_limit_holds_and_what_is_live_fits_under_it() {
    let mut engine = engine(0.02);
    engine.set_limit(Some(200 * MIB));
    two_holes(&mut engine, 64);
    let block = allocate(&mut engine, 180);
    assert!(engine.stats().memory_reserved() <= 200 * MIB);
    assert!(engine.allocate(20 * MIB, STREAM).is_err());
    engine.free(&block).unwrap();
    allocate(&mut engine, 180);
    engine.check_invariants().unwrap();
}

#[test]
fn an_emptied_cache_holds_what_is_live_and_no_more_than_its_pages() {
    let mut engine = engine(0.0);
    let [one, two] = two_holes(&mut engine, 64);
    let stitched = allocate(&mut engine, 120);
    engine.free(&stitched).unwrap();
    engine.empty_cache().unwrap();
    engine.check_invariants().unwrap();
    assert!(engine.stats().memory_reserved() <= 24 * MIB, "{}", engine.stats().memory_reserved());
    assert_eq!(engine.device().used(), engine.stats().memory_reserved());
    let again = allocate(&mut engine, 120);
    for block in [one, two, again] {
        engine.free(&block).unwrap();
    }
    engine.empty_cache().unwrap();
    assert_eq!((engine.device().used(), engine.device().handles()), (0, 0));
}

#[test]
fn sizes_that_never_repeat_need_nothing_new_and_old_views_are_dropped() {
    let mut engine = engine(0.0);
    let apart: Vec<_> = (0..40)
        .flat_map(|_| {
            let hole = allocate(&mut engine, 16);
            [hole, allocate(&mut engine, 8)]
        })
        .collect();
    for hole in apart.iter().step_by(2) {
        engine.free(hole).unwrap();
    }
    let reserved = engine.stats().memory_reserved();
    for round in 0..400 {
        let block = engine.allocate((40 << 20) + round * 600 * 1024, STREAM).unwrap();
        engine.free(&block).unwrap();
        engine.check_invariants().unwrap();
    }
    let calls = engine.device().page_calls();
    assert!(calls.unmapped > 0, "old views stay for ever");
    assert_eq!(engine.stats().memory_reserved(), reserved, "there was enough");
}
