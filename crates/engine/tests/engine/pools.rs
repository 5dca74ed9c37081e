//! Private pools where the vectors stop: lifetimes, spare pools, and streams recorded around
//! captures.

use std::sync::{Arc, Mutex};

use tonnage_device::{Dry, FailNth};
use tonnage_engine::{
    AllocError, Capture, Config, Engine, FreeError, Policy, PoolError, PoolId, PoolSource, Release,
    Slack, SourceFailed, StreamFilter, StreamId,
};
use tonnage_events::{Action, Address};

const MIB: u64 = 1 << 20;
const S0: StreamId = StreamId(0);
const S1: StreamId = StreamId(1);
const S2: StreamId = StreamId(2);
const P: PoolId = PoolId(0, 1);
const Q: PoolId = PoolId(0, 2);

fn engine(capacity: u64, conf: &str) -> Engine<Dry> {
    let config = Config::parse(conf, Release::default()).unwrap();
    Engine::new(Dry::new(8 << 30).with_capacity(capacity), config)
}

#[test]
fn a_released_pool_without_memory_is_gone_and_its_id_free() {
    for conf in ["", "expandable_segments:True"] {
        let mut engine = engine(1 << 30, conf);
        engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
        let block = engine.allocate(30 * MIB, S0).unwrap();
        engine.end_allocate_to_pool(P).unwrap();
        engine.release_pool(P).unwrap();
        engine.empty_cache().unwrap();
        assert!(engine.create_or_use_pool(P).is_err(), "a live block keeps it: {conf}");
        engine.free(&block).unwrap();
        engine.empty_cache().unwrap();
        assert_eq!(engine.stats().memory_reserved(), 0, "{conf}");
        engine.create_or_use_pool(P).unwrap();
        assert_eq!(engine.pool_use_count(P), 1, "{conf}");
    }
}

#[test]
fn a_released_pool_that_never_got_a_page_leaves_its_range_behind() {
    let mut engine = engine(10 * MIB, "expandable_segments:True");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.allocate(5 * MIB, S0).unwrap_err();
    engine.end_allocate_to_pool(P).unwrap();
    engine.release_pool(P).unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.device().handles(), 1, "its range is still reserved");
    let before = engine.stats().num_sync_all_streams;
    engine.empty_cache_of(P).unwrap();
    assert_eq!(engine.stats().num_sync_all_streams, before, "there is nothing to wait for");
    engine.create_or_use_pool(P).unwrap();
    // Behind the lost range, which is an eighth larger than the device, in whole pages of 20 MiB.
    let block = engine.allocate(100, S0).unwrap();
    assert_eq!(block.address.0, 0x6000_0000_0000 + 9_667_870_720);
}

#[test]
fn two_growths_given_back_in_one_part_keep_the_pool() {
    let mut engine = engine(1 << 30, "expandable_segments:True");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let blocks = [3_000_000, 30_000_000].map(|bytes| engine.allocate(bytes, S0).unwrap());
    engine.end_allocate_to_pool(P).unwrap();
    engine.release_pool(P).unwrap();
    blocks.iter().for_each(|block| engine.free(block).unwrap());
    for syncs in 1..=3 {
        engine.empty_cache_of(P).unwrap();
        let stats = engine.stats();
        assert_eq!((stats.memory_reserved(), stats.num_device_free), (0, 1));
        assert_eq!(stats.num_sync_all_streams, syncs, "it is still there to be emptied");
    }
    // PyTorch asserts here.
    engine.create_or_use_pool(P).unwrap();
    engine.release_pool(P).unwrap();
    engine.empty_cache_of(P).unwrap();
    engine.empty_cache_of(P).unwrap();
    assert_eq!(engine.stats().num_sync_all_streams, 4, "begun anew, it goes with its memory");
}

#[test]
fn one_growth_given_back_in_two_parts_lets_the_pool_go() {
    // PyTorch counts growths of each pool, and trips over this (Q2).
    let mut engine = engine(1 << 30, "expandable_segments:True");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let whole = engine.allocate(60 * MIB, S0).unwrap();
    engine.free(&whole).unwrap();
    let parts = [(); 3].map(|()| engine.allocate(20 * MIB, S0).unwrap());
    assert_eq!(engine.stats().num_device_alloc, 1);
    engine.end_allocate_to_pool(P).unwrap();
    engine.release_pool(P).unwrap();
    engine.free(&parts[0]).unwrap();
    engine.free(&parts[2]).unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 20 * MIB);
    engine.free(&parts[1]).unwrap();
    engine.empty_cache().unwrap();
    assert_eq!((engine.stats().memory_reserved(), engine.device().used()), (0, 0));
    engine.create_or_use_pool(P).unwrap();
}

#[test]
fn a_pool_may_be_released_before_its_diversion_ends() {
    let mut engine = engine(1 << 30, "");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.release_pool(P).unwrap();
    engine.empty_cache().unwrap();
    let block = engine.allocate(30 * MIB, S0).unwrap();
    assert_eq!(engine.segments()[0].pool, P);
    engine.end_allocate_to_pool(P).unwrap();
    engine.free(&block).unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 0);
    engine.create_or_use_pool(P).unwrap();
}

#[test]
fn a_pool_that_is_over_goes_when_its_diversion_ends() {
    // PyTorch has destroyed it by then, and makes it anew.
    let mut engine = engine(1 << 30, "");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.release_pool(P).unwrap();
    let emptied = engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap_err();
    assert_eq!(emptied, PoolError::Diverting(P));
    engine.empty_cache().unwrap();
    let before = engine.stats().num_sync_all_streams;
    engine.empty_cache_of(P).unwrap();
    assert_eq!(engine.stats().num_sync_all_streams, before, "there is nothing to wait for");
    engine.end_allocate_to_pool(P).unwrap();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    assert_eq!(engine.pool_use_count(P), 1);
}

#[test]
fn a_pool_that_is_over_may_get_a_range_before_its_diversion_ends() {
    let mut engine = engine(10 * MIB, "expandable_segments:True");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.release_pool(P).unwrap();
    engine.empty_cache().unwrap();
    // PyTorch asserts here.
    engine.allocate(5 * MIB, S0).unwrap_err();
    engine.end_allocate_to_pool(P).unwrap();
    engine.check_invariants().unwrap();
    engine.empty_cache().unwrap();
    engine.check_invariants().unwrap();
    engine.create_or_use_pool(P).unwrap();
}

#[test]
fn a_pool_without_splits_hands_out_whole_blocks() {
    let mut engine = engine(1 << 30, "");
    engine.set_pool_no_split(P).unwrap();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    assert_eq!(engine.allocate(100, S0).unwrap().size, 2 * MIB);
    assert_eq!(engine.allocate(5 * MIB, S0).unwrap().size, 20 * MIB);
    engine.end_allocate_to_pool(P).unwrap();
    assert_eq!(engine.allocate(100, S0).unwrap().size, 512);
}

#[test]
fn a_spare_pool_serves_the_default_pool_only() {
    let mut engine = engine(40 * MIB, "");
    let other = PoolId(0, 2);
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let block = engine.allocate(40 * MIB, S0).unwrap();
    engine.free(&block).unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    engine.allocate(30 * MIB, S0).unwrap_err();
    engine.set_pool_use_on_oom(P, true);
    engine.begin_allocate_to_pool(other, StreamFilter::Any).unwrap();
    engine.allocate(30 * MIB, S0).unwrap_err();
    engine.end_allocate_to_pool(other).unwrap();
    let served = engine.allocate(30 * MIB, S0).unwrap();
    assert_eq!(served.address, block.address);
    engine.free(&served).unwrap();
    engine.set_pool_use_on_oom(P, false);
    engine.allocate(30 * MIB, S0).unwrap_err();
}

/// What 2.10.0 and 2.15.0 do with a pool that was marked and never used.
#[test]
fn a_spare_pool_that_is_not_there_is_made_and_released_to_look_into_it() {
    for release in [Release::V2_10, Release::V2_15] {
        let device = Dry::new(8 << 30).with_capacity(40 * MIB);
        let mut engine = Engine::new(device, Config::for_release(release));
        engine.set_pool_use_on_oom(P, true);
        engine.set_pool_no_split(P).unwrap();
        engine.allocate(50 * MIB, S0).unwrap_err();
        // In 2.10 it was the last thing tried, in 2.15 it went with the flush behind it, and lost its mark.
        let left = release == Release::V2_10;
        let before = engine.stats().num_sync_all_streams;
        engine.empty_cache_of(P).unwrap();
        assert_eq!(engine.stats().num_sync_all_streams - before, i64::from(left), "{release}");
        engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
        let whole = engine.allocate(100, S0).unwrap().size;
        assert_eq!(whole, if left { 2 * MIB } else { 512 }, "{release}");
    }
}

#[test]
fn a_stream_recorded_in_a_capture_is_waited_for_if_the_block_is_freed_later() {
    let mut engine = engine(1 << 30, "");
    engine.device_mut().hold_events();
    let block = engine.allocate(3 * MIB, S0).unwrap();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    engine.record_stream(block.address, S1).unwrap();
    engine.end_capture().unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    engine.free(&block).unwrap();
    let next = engine.allocate(3 * MIB, S0).unwrap();
    assert_ne!(next.address, block.address);
}

#[test]
fn a_stream_recorded_in_a_capture_is_waited_for_even_if_the_first_event_fails() {
    // The second call of the device is the event's: the first obtains the segment.
    let inner = Dry::new(8 << 30);
    let mut engine = Engine::new(FailNth::new(inner, 1), Config::default());
    engine.device_mut().inner.hold_events();
    let block = engine.allocate(3 * MIB, S0).unwrap();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    engine.record_stream(block.address, S1).unwrap();
    engine.end_capture().unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    assert!(matches!(engine.free(&block), Err(FreeError::Device(_))));
    let next = engine.allocate(3 * MIB, S0).unwrap();
    assert_ne!(next.address, block.address, "stream 1 may still use it");
}

/// Segments that a source has given.
type Given = Arc<Mutex<Vec<(Address, u64)>>>;

/// A source with room for so many bytes, and the segments that it has given.
fn source(room: u64) -> (PoolSource, Given) {
    let given = Given::default();
    let (giving, taking) = (Arc::clone(&given), Arc::clone(&given));
    let acquire = move |size: u64| {
        let mut given = giving.lock().unwrap();
        let used: u64 = given.iter().map(|it| it.1).sum();
        let address = Address(0x7700_0000_0000 + (given.len() as u64) * (1 << 30));
        Ok((used + size <= room).then(|| given.push((address, size))).map(|()| address))
    };
    let release = move |address| taking.lock().unwrap().retain(|it| it.0 != address);
    (PoolSource { acquire: Arc::new(acquire), release: Arc::new(release) }, given)
}

#[test]
fn a_pool_with_a_source_has_segments_of_it_alone() {
    for conf in ["", "expandable_segments:True"] {
        let mut engine = engine(1 << 30, conf);
        let (source, given) = source(100 * MIB);
        engine.create_or_use_pool_from(P, source).unwrap();
        let outside = engine.allocate(3 * MIB, S0).unwrap();
        let held = engine.device().used();
        engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
        let blocks = [500, MIB, 30 * MIB].map(|size| engine.allocate(size, S0).unwrap());
        assert_eq!(engine.device().used(), held, "the device is not asked: {conf}");
        assert_eq!(given.lock().unwrap().len(), 2, "{conf}");
        // What it does not have nobody else gives.
        engine.allocate(80 * MIB, S0).unwrap_err();
        engine.end_allocate_to_pool(P).unwrap();
        for block in &blocks {
            let segment = engine.segment_of(block.address).unwrap();
            assert!(given.lock().unwrap().contains(&(segment.address, segment.size)), "{conf}");
        }
        // It keeps them while it is used, and while a block is live.
        engine.release_pool(P).unwrap();
        for block in &blocks {
            engine.empty_cache().unwrap();
            assert_eq!(engine.pool_use_count(P), 1);
            engine.free(block).unwrap();
        }
        engine.empty_cache().unwrap();
        assert_eq!(given.lock().unwrap().len(), 2, "{conf}");
        engine.release_pool(P).unwrap();
        engine.empty_cache().unwrap();
        assert!(given.lock().unwrap().is_empty(), "{conf}");
        assert_eq!(Arc::strong_count(&given), 1, "the source is forgotten with its pool: {conf}");
        engine.free(&outside).unwrap();
        engine.empty_cache().unwrap();
        assert_eq!((engine.device().used(), engine.stats().memory_reserved()), (0, 0), "{conf}");
    }
}

#[test]
fn a_pool_with_a_source_is_refused_where_pages_move() {
    let config = Config::parse("", Release::default()).unwrap();
    let policy = Policy::Pages(Slack::DEFAULT);
    let mut engine = Engine::with_policy(Dry::new(1 << 30), config, policy);
    let refused = engine.create_or_use_pool_from(P, source(MIB).0);
    assert_eq!(refused, Err(PoolError::SourceUnderPages(P)));
    assert_eq!(engine.pool_use_count(P), 0);
}

#[test]
fn a_block_freed_in_a_capture_comes_back_when_its_caller_knows_the_order() {
    let mut engine = engine(1 << 30, "");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    let block = engine.allocate(MIB, S0).unwrap();
    assert_eq!(engine.stream_at(block.address), Some(S0));
    engine.record_stream(block.address, S1).unwrap();
    engine.free(&block).unwrap();
    assert_eq!(engine.stream_at(block.address), None);
    let other = engine.allocate(MIB, S0).unwrap();
    assert_ne!(other.address, block.address, "a stream may use it");
    assert!(!engine.finish_captured(other.address), "it is live");
    assert!(engine.finish_captured(block.address));
    assert!(!engine.finish_captured(block.address), "once");
    engine.check_invariants().unwrap();
    assert_eq!(engine.allocate(MIB, S0).unwrap().address, block.address);
    engine.record_stream(block.address, S1).unwrap();
    engine.free_address(block.address).unwrap();
    engine.end_capture().unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    assert!(!engine.finish_captured(block.address), "no capture is under way");
    engine.check_invariants().unwrap();
}

#[test]
fn a_block_that_was_used_before_the_capture_stays_until_the_capture_ends() {
    let mut engine = engine(1 << 30, "");
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let block = engine.allocate(MIB, S0).unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    engine.record_stream(block.address, S2).unwrap();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    engine.record_stream(block.address, S1).unwrap();
    engine.free(&block).unwrap();
    assert!(!engine.finish_captured(block.address), "stream 2 may still use it");
    assert_ne!(engine.allocate(MIB, S0).unwrap().address, block.address);
    engine.check_invariants().unwrap();
}

#[test]
fn a_tag_is_a_capture_under_no_release() {
    for release in Release::ALL {
        let config = Config::parse("", release).unwrap();
        let mut device = Dry::new(256 * MIB);
        device.hold_events();
        let mut engine = Engine::new(device, config);
        engine.create_or_use_pool(P).unwrap();
        engine.set_pool_tag(P, "weights").unwrap();
        let [used, large] = [3 * MIB, 200 * MIB].map(|size| engine.allocate(size, S0).unwrap());
        engine.free(&large).unwrap();
        engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
        assert!(!engine.leaves_events_alone(), "{release}");
        // The other stream's use lasts beyond the tag.
        engine.record_stream(used.address, S1).unwrap();
        engine.free(&used).unwrap();
        // What is cached goes back for a request that finds no room; no event is complete but by waiting.
        engine.allocate(200 * MIB, S0).unwrap();
        assert_eq!(engine.stats().num_alloc_retries, 1, "{release}");
        let used = engine.allocate(20 * MIB, S0).unwrap();
        engine.record_stream(used.address, S1).unwrap();
        engine.free(&used).unwrap();
        engine.end_allocate_to_pool(P).unwrap();
        engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
        let next = engine.allocate(20 * MIB, S0).unwrap();
        assert_ne!(next.address, used.address, "{release}: stream 1 may still use it");
        // A capture inside of it is one.
        engine.begin_allocate_to_pool(Q, StreamFilter::Any).unwrap();
        engine.begin_capture(Capture::Everywhere);
        assert!(engine.leaves_events_alone(), "{release}");
        engine.check_invariants().unwrap();
    }
}

#[test]
fn what_is_allocated_under_a_tag_inside_of_another_is_the_inner_ones_under_every_release() {
    for release in Release::ALL {
        let config = Config::parse("", release).unwrap();
        let mut engine = Engine::new(Dry::new(1 << 30), config);
        for (pool, tag) in [(P, "weights"), (Q, "cache")] {
            engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
            engine.set_pool_tag(pool, tag).unwrap();
        }
        let block = engine.allocate(3 * MIB, S0).unwrap();
        assert_eq!(engine.live_in_pool(Q), [block.address], "{release}");
        assert_eq!(engine.live_in_pool(P), [], "{release}");
    }
}

#[test]
fn a_source_that_fails_ends_its_request_at_once() {
    let mut engine = engine(1 << 30, "");
    let source = PoolSource {
        acquire: Arc::new(|_| Err(SourceFailed)),
        release: Arc::new(|_| unreachable!("it gave nothing")),
    };
    engine.create_or_use_pool_from(P, source).unwrap();
    let cached = engine.allocate(3 * MIB, S0).unwrap();
    engine.free(&cached).unwrap();
    let before = engine.stats().clone();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let error = engine.allocate(MIB, S0).unwrap_err();
    assert_eq!(error, AllocError::Source(P));
    assert!(error.to_string().contains("the allocator of pool (0, 1)"), "{error}");
    assert_eq!(engine.stats(), &before, "nothing was given back for it");
    engine.end_allocate_to_pool(P).unwrap();
    assert_eq!(engine.allocate(3 * MIB, S0).unwrap().address, cached.address);
}

#[test]
fn who_listens_is_told_of_a_segments_end_while_it_is_there() {
    let mut engine = engine(1 << 30, "");
    let (source, given) = source(100 * MIB);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (see, there) = (Arc::clone(&seen), Arc::clone(&given));
    engine.track(Some(Arc::new(move |entry, _| {
        see.lock().unwrap().push((entry.action, there.lock().unwrap().len()));
    })));
    engine.create_or_use_pool_from(P, source).unwrap();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let block = engine.allocate(MIB, S0).unwrap();
    engine.end_allocate_to_pool(P).unwrap();
    engine.free(&block).unwrap();
    for _ in 0..2 {
        engine.release_pool(P).unwrap();
    }
    engine.empty_cache().unwrap();
    let segments = [Action::SegmentAlloc, Action::SegmentFree];
    let mut seen = seen.lock().unwrap().clone();
    seen.retain(|(action, _)| segments.contains(action));
    assert_eq!(seen, segments.map(|action| (action, 1)));
    assert!(given.lock().unwrap().is_empty());
}

#[test]
fn a_segment_that_the_device_does_not_take_back_is_there_as_before() {
    let device = FailNth::new(Dry::new(1 << 30), u64::MAX);
    let mut engine = Engine::new(device, Config::default());
    let block = engine.allocate(20 * MIB, S0).unwrap();
    engine.free(&block).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    engine.track(Some(Arc::new(move |entry, _| {
        tell.lock().unwrap().push((entry.action, entry.address));
    })));
    let before = engine.stats().clone();
    let device = engine.device().inner.clone();
    *engine.device_mut() = FailNth::new(device, 0);
    engine.empty_cache().unwrap_err();
    assert_eq!(engine.stats().memory_reserved(), before.memory_reserved());
    assert_eq!(engine.stats().num_device_free, before.num_device_free);
    engine.check_invariants().unwrap();
    engine.empty_cache().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 0);
    let actions = [Action::SegmentFree, Action::SegmentAlloc, Action::SegmentFree];
    assert_eq!(*told.lock().unwrap(), actions.map(|action| (action, block.address)));
}
