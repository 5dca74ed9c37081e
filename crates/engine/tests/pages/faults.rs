//! What went wrong once, each as the shortest program that shows it.

use std::sync::Arc;

use tonnage_device::Dry;
use tonnage_engine::{
    AllocError, Allocation, Capture, Config, Engine, Policy, Release, Slack, StreamFilter,
};
use tonnage_events::{PoolId, StreamId};

use crate::ordered::Ordered;

const MIB: u64 = 1 << 20;
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const POOL: PoolId = PoolId(0, 7);

fn engine(slack: f64) -> Engine<Ordered> {
    on(Dry::new(4 << 30), slack)
}

fn on(dry: Dry, slack: f64) -> Engine<Ordered> {
    let policy = Policy::Pages(Slack::new(slack).unwrap());
    let config = Config::parse("", Release::NEWEST).unwrap();
    Engine::with_policy(Ordered::new(dry), config, policy)
}

fn allocate(engine: &mut Engine<Ordered>, mib: u64, stream: StreamId) -> Allocation {
    engine.allocate(mib * MIB, stream).unwrap()
}

fn made(engine: &Engine<Ordered>) -> u64 {
    engine.device().dry.page_calls().created
}

/// Two free blocks with a live one between them.
fn two_holes(engine: &mut Engine<Ordered>, mib: u64) {
    let first = allocate(engine, mib, ONE);
    allocate(engine, 8, ONE);
    let second = allocate(engine, mib, ONE);
    allocate(engine, 8, ONE);
    engine.free(&first).unwrap();
    engine.free(&second).unwrap();
}

/// Requests of a pool's graph.
fn capture(
    engine: &mut Engine<Ordered>,
    pool: PoolId,
    requests: &[(u64, StreamId)],
) -> Vec<Allocation> {
    engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    engine.device_mut().capturing = true;
    let blocks = requests.iter().map(|&(mib, stream)| allocate(engine, mib, stream)).collect();
    engine.device_mut().capturing = false;
    engine.end_capture().unwrap();
    engine.end_allocate_to_pool(pool).unwrap();
    blocks
}

#[test]
fn no_event_is_recorded_while_another_thread_captures() {
    let mut engine = engine(0.0);
    let block = allocate(&mut engine, 64, ONE);
    let shared = allocate(&mut engine, 64, ONE);
    engine.free(&block).unwrap();
    engine.begin_capture(Capture::When(Arc::new(|| false)));
    engine.device_mut().capturing = true;
    let other = allocate(&mut engine, 64, TWO);
    engine.record_stream_of(&shared, TWO).unwrap();
    engine.free(&shared).unwrap();
    engine.free(&other).unwrap();
    engine.empty_cache().unwrap();
    assert!(engine.allocate(8 << 30, ONE).is_err());
    engine.device_mut().capturing = false;
    engine.end_capture().unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 0, "and what was freed meanwhile is free");
}

#[test]
fn a_private_pool_serves_each_stream_again() {
    let mut engine = engine(0.0);
    let blocks = capture(&mut engine, POOL, &[(20, ONE), (20, TWO), (20, ONE), (20, TWO)]);
    for block in &blocks {
        engine.free(block).unwrap();
    }
    let before = made(&engine);
    capture(&mut engine, POOL, &[(20, TWO), (20, ONE), (20, ONE), (20, TWO)]);
    assert_eq!(made(&engine), before, "what streams freed serves them again");
}

#[test]
fn no_stream_is_made_to_wait_for_another() {
    let mut engine = engine(0.0);
    engine.device_mut().dry.hold_events();
    let block = allocate(&mut engine, 64, ONE);
    engine.free(&block).unwrap();
    let other = allocate(&mut engine, 64, TWO);
    assert_ne!(other.address, block.address, "its work is not done");
    engine.free(&other).unwrap();
    engine.device_mut().dry.complete_events();
    let before = made(&engine);
    allocate(&mut engine, 128, StreamId(3));
    assert_eq!(made(&engine), before, "all of it serves any stream once the work is done");
}

#[test]
fn rather_than_fail_the_host_waits_for_other_streams() {
    let mut engine = engine(0.0);
    engine.set_limit(Some(64 * MIB));
    engine.device_mut().dry.hold_events();
    let block = allocate(&mut engine, 64, ONE);
    engine.free(&block).unwrap();
    assert_eq!(allocate(&mut engine, 64, TWO).address, block.address);
}

#[test]
fn a_request_that_fails_is_no_reason_to_hold_more() {
    let mut engine = on(Dry::new(4 << 30).with_capacity(1 << 30), 0.02);
    two_holes(&mut engine, 64);
    assert!(engine.allocate(3 << 30, ONE).is_err());
    let reserved = engine.stats().memory_reserved();
    allocate(&mut engine, 120, ONE);
    assert_eq!(engine.stats().memory_reserved(), reserved);
}

#[test]
fn a_request_that_cannot_be_served_makes_no_pages() {
    let mut engine = on(Dry::new(1 << 30), 0.0);
    two_holes(&mut engine, 64);
    let before = made(&engine);
    assert!(engine.allocate(2 << 30, ONE).is_err());
    assert!(engine.allocate(1016 * MIB, ONE).is_err());
    assert_eq!(made(&engine), before);
    allocate(&mut engine, 900, ONE);
}

#[test]
fn memory_of_a_released_pool_stays_mapped_until_its_graph_has_run_wherever_it_runs() {
    let mut engine = engine(0.0);
    let blocks = capture(&mut engine, POOL, &[(20, ONE)]);
    // A graph runs on a stream that no request ever named.
    let replays = StreamId(9);
    engine.device_mut().uses(replays, blocks[0].address, blocks[0].size);
    engine.free(&blocks[0]).unwrap();
    engine.release_pool(POOL).unwrap();
    // The device refuses to unmap what may be in use.
    engine.empty_cache().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 0);
}

#[test]
fn what_a_released_pool_leaves_serves_before_new_pages_once_nothing_uses_it() {
    let mut engine = engine(0.0);
    let blocks = capture(&mut engine, POOL, &[(100, ONE)]);
    engine.free(&blocks[0]).unwrap();
    engine.release_pool(POOL).unwrap();
    let before = made(&engine);
    let block = allocate(&mut engine, 100, TWO);
    assert_eq!(made(&engine), before);
    engine.free(&block).unwrap();
    // And the next graph, if it is free again.
    let next = PoolId(0, 8);
    let blocks = capture(&mut engine, next, &[(50, ONE)]);
    engine.free(&blocks[0]).unwrap();
    engine.release_pool(next).unwrap();
    let before = made(&engine);
    capture(&mut engine, PoolId(0, 9), &[(50, TWO)]);
    assert_eq!(made(&engine), before);
    engine.check_invariants().unwrap();
}

#[test]
fn what_a_released_pool_leaves_stays_its_own_while_its_graph_may_run() {
    let mut engine = engine(0.0);
    let blocks = capture(&mut engine, POOL, &[(100, ONE)]);
    engine.free(&blocks[0]).unwrap();
    engine.device_mut().uses(StreamId(9), blocks[0].address, blocks[0].size);
    engine.device_mut().dry.hold_events();
    engine.release_pool(POOL).unwrap();
    assert_ne!(allocate(&mut engine, 100, ONE).address, blocks[0].address);
    engine.device_mut().dry.complete_events();
    assert_eq!(allocate(&mut engine, 100, ONE).address, blocks[0].address);
}

#[test]
fn of_a_view_that_serves_again_only_what_is_needed_leaves_its_home() {
    let mut engine = engine(0.0);
    two_holes(&mut engine, 64);
    let block = allocate(&mut engine, 120, ONE);
    engine.free(&block).unwrap();
    let again = allocate(&mut engine, 110, ONE);
    assert_eq!(again.address, block.address);
    engine.empty_cache().unwrap();
    let held = engine.stats().memory_reserved();
    // Sixteen around the holes, and the view's last page.
    assert!(held <= (16 + 110 + 8) * MIB, "{} MiB", held / MIB);
}

#[test]
fn a_device_that_cannot_map_a_view_is_asked_for_new_pages() {
    let mut engine = engine(0.0);
    two_holes(&mut engine, 64);
    engine.device_mut().refuse_map = Some(3);
    allocate(&mut engine, 120, ONE);
    engine.check_invariants().unwrap();
}

#[test]
fn a_freed_block_unmaps_nothing() {
    let mut engine = engine(0.0);
    let holes: Vec<_> = (0..40)
        .map(|_| {
            let hole = allocate(&mut engine, 16, ONE);
            allocate(&mut engine, 8, ONE);
            hole
        })
        .collect();
    for hole in holes {
        engine.free(&hole).unwrap();
    }
    for round in 0..300 {
        let block = engine.allocate(40 * MIB + round * 600 * 1024, ONE).unwrap();
        let before = engine.device().dry.page_calls();
        engine.free(&block).unwrap();
        assert_eq!(engine.device().dry.page_calls(), before, "round {round}");
    }
    assert!(engine.device().dry.page_calls().unmapped > 0, "old views go nevertheless");
}

#[test]
fn what_is_left_of_a_view_is_merged_with_what_lies_free_behind_it() {
    let mut engine = engine(0.0);
    two_holes(&mut engine, 64);
    let block = allocate(&mut engine, 116, ONE);
    // It shares the view's last page.
    allocate(&mut engine, 4, ONE);
    engine.free(&block).unwrap();
    assert_eq!(allocate(&mut engine, 110, ONE).address, block.address);
    engine.check_invariants().unwrap();
}

#[test]
fn what_a_released_pool_leaves_waits_for_streams_that_only_the_pool_has_seen() {
    let policy = Policy::Pages(Slack::new(0.0).unwrap());
    let config = Config::parse("", Release::NEWEST).unwrap();
    // A device that knows no streams.
    let mut engine = Engine::with_policy(Dry::new(1 << 30), config, policy);
    engine.begin_allocate_to_pool(POOL, StreamFilter::Any).unwrap();
    let block = engine.allocate(100 * MIB, ONE).unwrap();
    engine.end_allocate_to_pool(POOL).unwrap();
    engine.device_mut().hold_events();
    engine.free(&block).unwrap();
    engine.release_pool(POOL).unwrap();
    engine.device_mut().complete_events_of(TWO);
    let other = engine.allocate(100 * MIB, TWO).unwrap();
    assert_ne!(other.address, block.address, "its work is not done");
    engine.device_mut().complete_events();
    assert_eq!(engine.allocate(100 * MIB, TWO).unwrap().address, block.address);
}

#[test]
fn a_pool_that_is_released_twice_leaves_its_memory_once() {
    let mut engine = engine(0.0);
    engine.begin_allocate_to_pool(POOL, StreamFilter::Only(vec![ONE])).unwrap();
    engine.release_pool(POOL).unwrap();
    // It holds nothing, and is forgotten once no requests go there.
    allocate(&mut engine, 8, TWO);
    engine.create_or_use_pool(POOL).unwrap();
    engine.release_pool(POOL).unwrap();
    engine.end_allocate_to_pool(POOL).unwrap();
    allocate(&mut engine, 20, TWO);
    engine.create_or_use_pool(POOL).unwrap();
    engine.check_invariants().unwrap();
}

#[test]
fn what_a_view_lacks_is_made_where_there_is_room_for_it() {
    let mut engine = engine(0.0);
    let free = allocate(&mut engine, 32, ONE);
    let gap = allocate(&mut engine, 2, ONE);
    allocate(&mut engine, 8, ONE);
    engine.free(&gap).unwrap();
    engine.empty_cache().unwrap();
    engine.free(&free).unwrap();
    // Nothing is left but what the view lacks, and the first gap has no room for that.
    engine.set_limit(Some(68 * MIB));
    allocate(&mut engine, 60, ONE);
    engine.check_invariants().unwrap();
}

#[test]
fn streams_that_have_ended_are_not_asked_for_ever() {
    let mut engine = engine(0.0);
    for number in 100..600 {
        let stream = StreamId(number);
        let block = allocate(&mut engine, 20, stream);
        engine.device_mut().uses(stream, block.address, block.size);
        engine.free(&block).unwrap();
        engine.device_mut().end(stream);
    }
    let block = &capture(&mut engine, POOL, &[(40, ONE)])[0];
    engine.free(block).unwrap();
    let before = engine.device().recorded;
    engine.release_pool(POOL).unwrap();
    let asked = engine.device().recorded - before;
    assert!(asked < 50, "{asked} streams were asked");
    assert_eq!(allocate(&mut engine, 40, TWO).address, block.address);
}

/// Four blocks of three mebibytes on six pages, the second and the last of which are freed: two pages lie free, and a half of two others.
fn halves_of_pages(engine: &mut Engine<Ordered>) -> [Allocation; 2] {
    engine.set_limit(Some(12 * MIB));
    let [one, two, three, four] = [0; 4].map(|_| allocate(engine, 3, ONE));
    engine.free(&two).unwrap();
    engine.free(&four).unwrap();
    [one, three]
}

#[test]
fn rather_than_fail_a_block_begins_within_a_page_that_another_keeps() {
    let mut engine = engine(0.0);
    let [one, three] = halves_of_pages(&mut engine);
    let block = allocate(&mut engine, 5, ONE);
    assert_eq!(engine.stats().memory_reserved(), 12 * MIB);
    engine.check_invariants().unwrap();
    // What is left of the page that was not used, and nothing else.
    assert!(engine.allocate(MIB + 512, ONE).is_err());
    let rest = allocate(&mut engine, 1, ONE);
    let dry = &engine.device().dry;
    let mut parts: Vec<_> = [one, three, block, rest]
        .iter()
        .flat_map(|it| dry.pages_under(it.address, it.size))
        .map(|part| (part.page, part.offset, part.bytes))
        .collect();
    parts.sort_unstable();
    for pair in parts.windows(2) {
        let [(page, offset, bytes), (other, next, _)] = [pair[0], pair[1]];
        assert!(page != other || offset + bytes <= next, "{parts:?}");
    }
    assert_eq!(parts.iter().map(|&(.., bytes)| bytes).sum::<u64>(), 12 * MIB, "every byte is used");
    for block in [block, rest, one, three] {
        engine.free(&block).unwrap();
        engine.check_invariants().unwrap();
    }
    engine.empty_cache().unwrap();
    assert_eq!((engine.device().dry.used(), engine.device().dry.handles()), (0, 0));
}

#[test]
fn ends_of_pages_serve_again_without_a_driver_call() {
    let mut engine = engine(0.0);
    halves_of_pages(&mut engine);
    let block = allocate(&mut engine, 5, ONE);
    engine.free(&block).unwrap();
    let before = engine.device().dry.page_calls();
    for _ in 0..5 {
        let at_home = allocate(&mut engine, 3, ONE);
        engine.free(&at_home).unwrap();
        let again = allocate(&mut engine, 5, ONE);
        assert_eq!(again.address, block.address);
        engine.free(&again).unwrap();
    }
    assert_eq!(engine.device().dry.page_calls(), before);
}

#[test]
fn a_page_that_lent_its_end_is_whole_again_when_both_parts_are_free() {
    let mut engine = engine(0.0);
    let kept = halves_of_pages(&mut engine);
    let block = allocate(&mut engine, 5, ONE);
    for kept in kept {
        engine.free(&kept).unwrap();
    }
    engine.empty_cache().unwrap();
    // Its pages, and the page whose end it has.
    assert_eq!(engine.stats().memory_reserved(), 6 * MIB);
    let other = allocate(&mut engine, 6, ONE);
    engine.free(&block).unwrap();
    allocate(&mut engine, 6, ONE);
    engine.free(&other).unwrap();
    engine.check_invariants().unwrap();
}

/// Its pages were listed before anyone asked whether a device could have as many.
#[test]
fn more_than_any_device_has_is_out_of_memory_beside_free_pages_too() {
    for bytes in [5 << 30, 1 << 50, (1 << 60) - 1] {
        let mut engine = engine(0.02);
        let first = allocate(&mut engine, 4, ONE);
        allocate(&mut engine, 3, ONE);
        engine.free(&first).unwrap();
        let error = engine.allocate(bytes, ONE).unwrap_err();
        let AllocError::OutOfMemory(report) = error else { panic!("{error}") };
        assert_eq!(report.requested, bytes);
        engine.check_invariants().unwrap();
        allocate(&mut engine, 4, ONE);
    }
}
