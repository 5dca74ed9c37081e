//! Calls that make no sense are refused with a typed error, and nothing changes.

use tonnage_device::Dry;
use tonnage_engine::{
    Address, AllocError, Allocation, CacheError, Capture, Config, DeviceId, Engine, FractionError,
    FreeError, PoolError, PoolId, RecordStreamError, Release, Stats, StreamFilter, StreamId,
};
use tonnage_events::{BlockState, SnapshotSegment};

const MIB: u64 = 1 << 20;
const S0: StreamId = StreamId(0);
const S1: StreamId = StreamId(1);
const P: PoolId = PoolId(0, 1);

fn engine() -> Engine<Dry> {
    Engine::new(Dry::new(8 << 30), Config::default())
}

/// An allocator in use: live, free and pending blocks, of the default and of a private pool.
fn busy_engine() -> (Engine<Dry>, Vec<Allocation>) {
    let mut engine = engine();
    engine.device_mut().hold_events();
    engine.begin_allocate_to_pool(P, StreamFilter::Any).unwrap();
    let mut blocks = vec![engine.allocate(3 * MIB, S0).unwrap()];
    engine.end_allocate_to_pool(P).unwrap();
    for bytes in [100, 2_000, 3 * MIB, 30 * MIB, 30 * MIB] {
        blocks.push(engine.allocate(bytes, S0).unwrap());
    }
    let pending = blocks.pop().unwrap();
    engine.record_stream(pending.address, S1).unwrap();
    engine.free(&pending).unwrap();
    let free = blocks.remove(1);
    engine.free(&free).unwrap();
    (engine, blocks)
}

/// Everything that a refused call must leave as it is.
fn state(engine: &Engine<Dry>) -> (Stats, Vec<SnapshotSegment>, Option<u64>, u64, usize) {
    let device = engine.device();
    (engine.stats().clone(), engine.segments(), engine.limit(), device.used(), device.handles())
}

/// Makes a call that is refused, and looks that it changed nothing.
#[track_caller]
fn refused<T: std::fmt::Debug, E>(
    engine: &mut Engine<Dry>,
    call: impl FnOnce(&mut Engine<Dry>) -> Result<T, E>,
) -> E {
    let before = state(engine);
    let error = match call(engine) {
        Ok(answer) => panic!("this should be refused, not answered with {answer:?}"),
        Err(error) => error,
    };
    assert_eq!(state(engine), before, "a refused call changed something");
    engine.check_invariants().unwrap();
    error
}

#[test]
fn pages_that_the_device_cannot_map_are_refused_and_are_no_lack_of_memory() {
    let conf = "large_segment_size_mb:21,expandable_segments:True";
    let config = Config::parse(conf, Release::default()).unwrap();
    let mut engine = Engine::new(Dry::new(8 << 30), config);
    engine.allocate(1_000, S0).unwrap();
    let error = refused(&mut engine, |engine| engine.allocate(5 * MIB, S0));
    assert!(matches!(error, AllocError::Device(_)), "{error}");
    assert!(error.to_string().contains("`large_segment_size_mb`"), "{error}");
    assert_eq!(AllocError::Device(engine.check_pages().unwrap_err()), error);
    engine.configure("large_segment_size_mb:22").unwrap();
    engine.check_pages().unwrap();
    engine.allocate(5 * MIB, S0).unwrap();
}

#[test]
fn a_double_free_is_refused() {
    let (mut engine, blocks) = busy_engine();
    engine.free(&blocks[1]).unwrap();
    let error = refused(&mut engine, |engine| engine.free(&blocks[1]));
    assert_eq!(error, FreeError::DoubleFree(blocks[1].address));
    assert_eq!(error.to_string(), format!("the block at {} was freed already", blocks[1].address));
    let error = refused(&mut engine, |engine| engine.free_address(blocks[1].address));
    assert_eq!(error, FreeError::NotAllocated(blocks[1].address));
}

#[test]
fn a_double_free_is_refused_while_the_block_waits_for_events() {
    let mut engine = engine();
    engine.device_mut().hold_events();
    let block = engine.allocate(100, S0).unwrap();
    engine.record_stream(block.address, S1).unwrap();
    engine.free(&block).unwrap();
    assert_eq!(engine.segments()[0].blocks[0].state, BlockState::ActivePendingFree);
    let error = refused(&mut engine, |engine| engine.free(&block));
    assert_eq!(error, FreeError::DoubleFree(block.address));
}

#[test]
fn a_double_free_is_refused_after_the_segment_is_gone() {
    let mut engine = engine();
    let block = engine.allocate(30 * MIB, S0).unwrap();
    engine.free(&block).unwrap();
    engine.empty_cache().unwrap();
    let error = refused(&mut engine, |engine| engine.free(&block));
    assert_eq!(error, FreeError::DoubleFree(block.address));
}

#[test]
fn a_copy_freed_after_the_memory_was_handed_out_again_is_refused() {
    let mut engine = engine();
    let first = engine.allocate(1_000, S0).unwrap();
    engine.free(&first).unwrap();
    let second = engine.allocate(1_000, S0).unwrap();
    assert_eq!((first.address, first.size), (second.address, second.size), "the same memory");
    let error = refused(&mut engine, |engine| engine.free(&first));
    assert_eq!(error, FreeError::DoubleFree(first.address));
    engine.free(&second).unwrap();
}

#[test]
fn a_copy_is_refused_even_when_the_whole_block_was_handed_out_again() {
    // Not split, so that the block keeps its place in every list.
    let mut engine = engine();
    let first = engine.allocate(10 * MIB, S0).unwrap();
    engine.free(&first).unwrap();
    let second = engine.allocate(10 * MIB, S0).unwrap();
    assert_eq!(first.address, second.address);
    let error = refused(&mut engine, |engine| engine.free(&first));
    assert_eq!(error, FreeError::DoubleFree(first.address));
}

#[test]
fn a_pointer_from_elsewhere_is_refused() {
    let (mut engine, blocks) = busy_engine();
    for address in [0, 1, 0xdead_beef, u64::MAX].map(Address) {
        let error = refused(&mut engine, |engine| engine.free_address(address));
        assert_eq!(error, FreeError::NotAllocated(address));
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
    let interior = blocks[0].address.offset(512);
    let error = refused(&mut engine, |engine| engine.free_address(interior));
    assert_eq!(error, FreeError::NotAllocated(interior));
    let mut moved = blocks[0];
    moved.address = interior;
    let error = refused(&mut engine, |engine| engine.free(&moved));
    assert_eq!(error, FreeError::DoubleFree(interior));
}

#[test]
fn a_free_blocks_own_address_is_refused() {
    let (mut engine, _) = busy_engine();
    let segments = engine.segments();
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let mut tried = 0;
    for block in blocks.filter(|block| block.state != BlockState::ActiveAllocated) {
        let error = refused(&mut engine, |engine| engine.free_address(block.address));
        assert_eq!(error, FreeError::NotAllocated(block.address));
        tried += 1;
    }
    assert!(tried >= 3, "free and pending blocks are there to try");
}

#[test]
fn another_devices_block_is_refused() {
    let (mut engine, _) = busy_engine();
    let other = Dry::new(8 << 30).with_id(DeviceId(3));
    let mut other = Engine::new(other, Config::default());
    let block = other.allocate(100, S0).unwrap();
    assert_eq!(block.device, DeviceId(3));
    let error = refused(&mut engine, |engine| engine.free(&block));
    let (of, here) = (DeviceId(3), DeviceId(0));
    assert_eq!(error, FreeError::WrongDevice { address: block.address, of, here });
    other.free(&block).unwrap();
}

#[test]
fn no_bytes_and_absurdly_many_are_refused() {
    for conf in ["", "expandable_segments:True", "roundup_power2_divisions:64"] {
        let (mut engine, _) = busy_engine();
        engine.configure(conf).unwrap();
        let error = refused(&mut engine, |engine| engine.allocate(0, S0));
        assert_eq!(error, AllocError::ZeroBytes);
        for bytes in [1 << 60, (1 << 60) + 1, 1 << 63, u64::MAX - 511, u64::MAX] {
            let error = refused(&mut engine, |engine| engine.allocate(bytes, S0));
            assert_eq!(error, AllocError::TooLarge(bytes), "{conf}");
            assert!(error.to_string().contains("more than 1 EB"), "{error}");
        }
    }
}

#[test]
fn more_than_any_device_has_is_out_of_memory_and_no_overflow() {
    for conf in
        ["", "expandable_segments:True", "max_split_size_mb:40", "roundup_power2_divisions:2"]
    {
        for limit in [None, Some(0), Some(u64::MAX)] {
            let mut engine = engine();
            engine.configure(conf).unwrap();
            engine.set_limit(limit);
            for bytes in [9 << 30, 1 << 50, (1 << 60) - 1] {
                let error = engine.allocate(bytes, S0).unwrap_err();
                let AllocError::OutOfMemory(report) = error else { panic!("{conf}: {error}") };
                assert_eq!((report.requested, report.reserved), (bytes, 0), "{conf}");
                engine.check_invariants().unwrap();
            }
            engine.set_limit(None);
            engine.allocate(100, S0).unwrap();
        }
    }
}

#[test]
fn a_stream_is_recorded_for_live_blocks_only() {
    let (mut engine, blocks) = busy_engine();
    engine.free(&blocks[1]).unwrap();
    let interior = blocks[0].address.offset(512);
    for address in [blocks[1].address, interior, Address(0)] {
        let error = refused(&mut engine, |engine| engine.record_stream(address, S1));
        assert_eq!(error, RecordStreamError(address));
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}

#[test]
fn pool_calls_that_do_not_fit_are_refused() {
    let (mut engine, _) = busy_engine();
    let unknown = PoolId(0, 99);
    let default = PoolId::DEFAULT;
    let divert = |pool| {
        move |engine: &mut Engine<Dry>| engine.begin_allocate_to_pool(pool, StreamFilter::Any)
    };
    let end = |pool| move |engine: &mut Engine<Dry>| engine.end_allocate_to_pool(pool);
    let release = |pool| move |engine: &mut Engine<Dry>| engine.release_pool(pool);
    let add_use = |pool| move |engine: &mut Engine<Dry>| engine.create_or_use_pool(pool);

    assert_eq!(refused(&mut engine, end(P)), PoolError::NotDiverting(P));
    assert_eq!(refused(&mut engine, end(default)), PoolError::NotDiverting(default));
    assert_eq!(refused(&mut engine, end(unknown)), PoolError::NotDiverting(unknown));
    assert_eq!(refused(&mut engine, release(unknown)), PoolError::Unknown(unknown));
    for call in [divert(default)(&mut engine), release(default)(&mut engine)] {
        assert_eq!(call, Err(PoolError::Default));
    }
    assert_eq!(refused(&mut engine, add_use(default)), PoolError::Default);

    divert(P)(&mut engine).unwrap();
    assert_eq!(engine.pool_use_count(P), 2);
    assert_eq!(refused(&mut engine, divert(P)), PoolError::Diverting(P));
    assert_eq!(engine.pool_use_count(P), 2, "a refused diversion is no use");
    end(P)(&mut engine).unwrap();
    release(P)(&mut engine).unwrap();
    release(P)(&mut engine).unwrap();
    assert_eq!(refused(&mut engine, release(P)), PoolError::Released(P));
    assert_eq!(refused(&mut engine, divert(P)), PoolError::Released(P));
    assert_eq!(refused(&mut engine, add_use(P)), PoolError::Released(P));
    assert_eq!(engine.pool_use_count(P), 0);
}

#[test]
fn pools_without_splits_are_unknown_to_2_9() {
    let config = Config::for_release(Release::V2_9);
    let mut engine = Engine::new(Dry::new(8 << 30), config);
    let error = refused(&mut engine, |engine| engine.set_pool_no_split(P));
    assert_eq!(error, PoolError::NoSplitUnsupported);
}

#[test]
fn a_pools_memory_cannot_be_given_back_during_a_capture() {
    let (mut engine, _) = busy_engine();
    engine.release_pool(P).unwrap();
    let other = PoolId(0, 2);
    engine.begin_allocate_to_pool(other, StreamFilter::Any).unwrap();
    engine.begin_capture(Capture::Everywhere);
    let before = state(&engine);
    assert_eq!(engine.empty_cache_of(P), Err(CacheError::Capturing(P)));
    let after = state(&engine);
    // PyTorch counts the wait before it finds that it may not: nothing else changes.
    assert_eq!(after.0.num_sync_all_streams, before.0.num_sync_all_streams + 1);
    let counted = Stats { num_sync_all_streams: before.0.num_sync_all_streams, ..after.0 };
    assert_eq!((counted, after.1, after.3), (before.0, before.1, before.3));
    // A pool that is used, or unknown, is left alone without complaint.
    engine.empty_cache_of(other).unwrap();
    engine.empty_cache_of(PoolId(0, 99)).unwrap();
}

#[test]
fn a_fraction_lies_between_zero_and_one() {
    let (mut engine, _) = busy_engine();
    engine.set_memory_fraction(0.5).unwrap();
    for fraction in [-0.1, -f64::MIN_POSITIVE, 1.000_001, 2.0, f64::INFINITY, f64::NEG_INFINITY] {
        let error = refused(&mut engine, |engine| engine.set_memory_fraction(fraction));
        assert_eq!(error, FractionError(fraction));
    }
    let error = refused(&mut engine, |engine| engine.set_memory_fraction(f64::NAN));
    assert!(error.0.is_nan() && error.to_string().contains("NaN"), "{error}");
    assert_eq!(engine.memory_fraction(), 0.5);
    for (fraction, limit) in [(0.0, Some(0)), (0.25, Some(2 << 30)), (1.0, None)] {
        engine.set_memory_fraction(fraction).unwrap();
        assert_eq!((engine.limit(), engine.memory_fraction()), (limit, fraction));
    }
}

#[test]
fn bad_settings_are_refused_and_touch_no_memory() {
    for release in Release::ALL {
        for (settings, key) in [
            ("max_split_size_mb:19", "max_split_size_mb"),
            ("max_split_size_mb:none", "max_split_size_mb"),
            ("garbage_collection_threshold:1", "garbage_collection_threshold"),
            ("roundup_power2_divisions:3", "roundup_power2_divisions"),
            ("expandable_segments:yes", "expandable_segments"),
            ("expandable_segments", "expandable_segments"),
            ("expandable_segments_handle_type:posix_fd", "expandable_segments_handle_type"),
            (",expandable_segments:True", ","),
        ] {
            let config = Config::for_release(release);
            let mut engine = Engine::new(Dry::new(8 << 30), config);
            let block = engine.allocate(3 * MIB, S0).unwrap();
            let error = refused(&mut engine, |engine| engine.configure(settings));
            assert_eq!(error.key(), key, "{settings}, {release}: {error}");
            engine.free(&block).unwrap();
            engine.allocate(30 * MIB, S0).unwrap();
        }
    }
}

#[test]
fn settings_before_the_wrong_one_hold_as_in_pytorch() {
    let mut engine = engine();
    engine.configure("max_split_size_mb:40").unwrap();
    engine.configure("garbage_collection_threshold:0.5,max_split_size_mb:1").unwrap_err();
    assert_eq!(engine.config().garbage_collection_threshold(), 0.5);
    assert_eq!(engine.config().max_split_size_limit(), None, "every string begins with a reset");
}
