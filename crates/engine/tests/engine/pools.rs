//! Private pools where the vectors stop: lifetimes, spare pools, and streams recorded around
//! captures.

use tonnage_device::{Dry, FailNth};
use tonnage_engine::{
    Capture, Config, Engine, FreeError, PoolError, PoolId, Release, StreamFilter, StreamId,
};

const MIB: u64 = 1 << 20;
const S0: StreamId = StreamId(0);
const S1: StreamId = StreamId(1);
const P: PoolId = PoolId(0, 1);

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
