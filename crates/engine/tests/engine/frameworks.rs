//! What allocators of frameworks ask for: requests in two steps, stacks of their own, pools that go back to a state.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use tonnage_device::Dry;
use tonnage_engine::{
    Address, Allocation, Config, Context, Engine, PoolId, PoolStateError, RecordOptions, Release,
    StackDepth, StreamFilter, StreamId,
};
use tonnage_events::{Action, PoolKind, StackId};

const POOL: PoolId = PoolId(0, 7);
const MIB: u64 = 1 << 20;

fn engine() -> Engine<Dry> {
    Engine::new(Dry::new(1 << 30), Config::default())
}

fn recording(context: Context) -> RecordOptions {
    RecordOptions {
        max_entries: NonZeroUsize::new(1000).unwrap(),
        context,
        stacks: StackDepth::Foreign,
        ..RecordOptions::default()
    }
}

fn in_pool(engine: &mut Engine<Dry>, bytes: u64) -> Allocation {
    engine.begin_allocate_to_pool(POOL, StreamFilter::Any).unwrap();
    let allocation = engine.allocate(bytes, StreamId::DEFAULT).unwrap();
    engine.end_allocate_to_pool(POOL).unwrap();
    allocation
}

#[test]
fn a_request_in_two_steps_is_the_request() {
    let sizes = [100, 3 * MIB, 700_000, 20 * MIB, 512, 3 * MIB, 11 * MIB];
    let (mut whole, mut steps) = (engine(), engine());
    for round in 0..3 {
        let served: Vec<_> = sizes
            .iter()
            .map(|&bytes| {
                let expected = whole.allocate(bytes, StreamId::DEFAULT).unwrap();
                let cached = steps.allocate_cached(bytes, StreamId::DEFAULT).unwrap();
                assert_eq!(
                    cached.is_some(),
                    round > 0 || steps.stats().num_device_alloc == whole.stats().num_device_alloc
                );
                let served = cached.unwrap_or_else(|| {
                    steps.allocate_uncached(bytes, StreamId::DEFAULT, false).unwrap()
                });
                assert_eq!(served.address, expected.address);
                (served, expected)
            })
            .collect();
        for (served, expected) in served {
            steps.free(&served).unwrap();
            whole.free(&expected).unwrap();
        }
        assert_eq!(steps.stats(), whole.stats());
    }
}

#[test]
fn segments_are_numbered_in_the_order_in_which_they_were_obtained() {
    let numbers = |engine: &Engine<Dry>| -> Vec<Address> {
        let mut numbers = engine.segment_numbers();
        let places: Vec<_> = engine.segments().iter().map(|it| it.address).collect();
        assert!(numbers.iter().map(|it| it.0).eq(places));
        numbers.sort_by_key(|it| it.1);
        numbers.into_iter().map(|it| it.0).collect()
    };
    for release in [Release::V2_11, Release::V2_12, Release::V2_13] {
        let mut engine = Engine::new(Dry::new(1 << 30), Config::for_release(release));
        let [first, second, third] =
            [40, 30, 20].map(|mib| engine.allocate(mib * MIB, StreamId::DEFAULT).unwrap());
        engine.free(&first).unwrap();
        engine.empty_cache().unwrap();
        // Smaller than its segment, where the first one was or behind the others.
        let fourth = in_pool(&mut engine, 3 * MIB);
        assert_eq!(numbers(&engine), [&second, &third, &fourth].map(|it| it.address), "{release}");
        // The beginning of a segment is another block now.
        let fifth = in_pool(&mut engine, 5 * MIB);
        engine.free(&fourth).unwrap();
        let sixth = in_pool(&mut engine, 2 * MIB);
        assert_eq!(sixth.address, fourth.address);
        assert_eq!(numbers(&engine), [&second, &third, &sixth].map(|it| it.address), "{release}");
        engine.free(&fifth).unwrap();
    }
}

#[test]
fn memory_that_callbacks_freed_is_looked_at_before_the_device_is_asked() {
    let mut engine = engine();
    let held = engine.allocate(20 * MIB, StreamId::DEFAULT).unwrap();
    assert!(engine.allocate_cached(20 * MIB, StreamId::DEFAULT).unwrap().is_none());
    engine.free(&held).unwrap();
    let served = engine.allocate_uncached(20 * MIB, StreamId::DEFAULT, true).unwrap();
    assert_eq!((served.address, engine.stats().num_device_alloc), (held.address, 1));
}

#[test]
fn stacks_are_the_callers_numbers_and_forgotten_when_nothing_names_them() {
    let mut engine = engine();
    engine.record_history(Some(recording(Context::All)));
    let stack = |number| StackId::new(number);
    engine.set_stack(stack(3));
    let block = engine.allocate_cached(100, StreamId::DEFAULT).unwrap();
    assert!(block.is_none());
    let block = engine.allocate_uncached(100, StreamId::DEFAULT, false).unwrap();
    engine.set_stack(stack(9));
    engine.free_address(block.address).unwrap();
    let named: Vec<_> =
        engine.history().unwrap().entries().map(|it| (it.action, it.stack)).collect();
    assert_eq!(
        named,
        [
            (Action::SegmentAlloc, stack(3)),
            (Action::Alloc, stack(3)),
            (Action::FreeRequested, stack(9)),
            (Action::FreeCompleted, stack(9)),
        ]
    );
    assert_eq!(engine.stacks_in_use(), [stack(3).unwrap(), stack(9).unwrap()]);
    // The segment is there still, and who asked for it is known.
    engine.record_history(None);
    assert_eq!(engine.stacks_in_use(), [stack(3).unwrap()]);
    // Below the level, none is kept.
    engine.record_history(Some(recording(Context::Alloc)));
    engine.set_stack(stack(4));
    let block = engine.allocate(100, StreamId::DEFAULT).unwrap();
    engine.set_stack(stack(5));
    engine.free(&block).unwrap();
    assert_eq!(engine.stacks_in_use(), [stack(3).unwrap(), stack(4).unwrap()]);
    engine.record_history(None);
    engine.empty_cache().unwrap();
    assert_eq!(engine.stacks_in_use(), []);
}

#[test]
fn changes_are_tracked_whether_a_history_is_kept_or_not() {
    let mut engine = engine();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    engine
        .track(Some(Arc::new(move |entry, pool| tell.lock().unwrap().push((entry.action, pool)))));
    let block = in_pool(&mut engine, 100);
    engine.free(&block).unwrap();
    engine.track(None);
    engine.allocate(100, StreamId::DEFAULT).unwrap();
    let actions =
        [Action::SegmentAlloc, Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
    assert_eq!(*told.lock().unwrap(), actions.map(|action| (action, POOL)));
}

#[test]
fn a_pool_goes_back_to_a_state_in_the_same_places() {
    let mut engine = engine();
    let outside = engine.allocate(3 * MIB, StreamId::DEFAULT).unwrap();
    let first = in_pool(&mut engine, 3 * MIB);
    let second = in_pool(&mut engine, 5 * MIB);
    let small = in_pool(&mut engine, 300);
    let large = in_pool(&mut engine, 30 * MIB);
    engine.free(&second).unwrap();
    let state = engine.pool_state(POOL);
    let segments = engine.segments();
    let live = engine.live_in_pool(POOL);
    // The graph behind it uses the pool otherwise.
    engine.free(&first).unwrap();
    let others = [4 * MIB, 700, 6 * MIB].map(|bytes| in_pool(&mut engine, bytes));
    assert_ne!(engine.live_in_pool(POOL), live);
    for _ in 0..2 {
        let before = engine.live_in_pool(POOL);
        let change = engine.set_pool_state(&state).unwrap();
        assert_eq!(change.freed, before);
        let handed_out: Vec<Address> = change.handed_out.iter().map(|it| it.address).collect();
        assert_eq!(handed_out, live);
        assert_eq!(engine.live_in_pool(POOL), live);
        let places = |segments: &[tonnage_events::SnapshotSegment]| -> Vec<_> {
            let blocks = segments.iter().flat_map(|segment| &segment.blocks);
            blocks.map(|it| (it.address, it.size, it.state)).collect()
        };
        assert_eq!(places(&engine.segments()), places(&segments));
        engine.check_invariants().unwrap();
    }
    // What went back is its owner's no more, and what is there is freed by its address.
    for gone in [&first, &small, &large, &others[0]] {
        assert!(engine.free(gone).is_err());
    }
    for address in live {
        engine.free_address(address).unwrap();
    }
    engine.free(&outside).unwrap();
    assert_eq!(engine.stats().memory_allocated(), 0);
}

#[test]
fn a_pool_whose_memory_is_gone_or_in_use_does_not_go_back() {
    let mut engine = engine();
    let unknown = engine.pool_state(POOL);
    assert!(matches!(engine.set_pool_state(&unknown), Err(PoolStateError::NoPool(POOL))));
    let block = in_pool(&mut engine, 3 * MIB);
    let state = engine.pool_state(POOL);
    engine.record_stream(block.address, StreamId(5)).unwrap();
    assert!(
        matches!(engine.set_pool_state(&state), Err(PoolStateError::InUse(it)) if it == block.address)
    );
    engine.free(&block).unwrap();
    engine.release_pool(POOL).unwrap();
    engine.empty_cache().unwrap();
    assert!(engine.set_pool_state(&state).is_err());
    engine.check_invariants().unwrap();
}

#[test]
fn segments_are_found_by_their_blocks() {
    let mut engine = engine();
    let blocks: Vec<_> =
        [600, 700, 800].map(|bytes| engine.allocate(bytes, StreamId::DEFAULT).unwrap()).to_vec();
    for block in &blocks {
        let segment = engine.segment_of(block.address).unwrap();
        assert_eq!(
            (segment.address, segment.size, segment.pages),
            (blocks[0].address, 2 * MIB, false)
        );
        assert_eq!(engine.size_at(block.address), Some(block.size));
    }
    assert!(engine.segment_of(Address(1)).is_none());
    let used: u64 = blocks.iter().map(|it| it.size).sum();
    assert_eq!(engine.largest_free(), 2 * MIB - used);
}

#[test]
fn expandable_segments_are_told_of_each_once_and_leave_no_trace() {
    let config = Config::parse("expandable_segments:True", Release::NEWEST).unwrap();
    let mut engine = Engine::new(Dry::new(1 << 30), config);
    assert!(engine.expandable_segments().is_empty());
    engine.record_history(Some(recording(Context::Never)));
    let (first, second) = (StreamId(4), StreamId(3));
    let blocks = [0; 3].map(|_| engine.allocate(20 * MIB, first).unwrap());
    engine.allocate(100, second).unwrap();
    // A hole in the middle makes two segments of a snapshot, and none more here.
    engine.free(&blocks[1]).unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.segments().len(), 3);
    let entries = engine.history().unwrap().entries().count();
    assert_eq!(
        engine.expandable_segments(),
        [(first, PoolKind::Large, 40 * MIB), (second, PoolKind::Small, 2 * MIB)]
    );
    assert_eq!(engine.history().unwrap().entries().count(), entries);
}
