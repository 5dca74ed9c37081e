//! Memory that others have for a while.

use std::sync::Arc;

use tonnage_device::{Dry, FailNth};
use tonnage_engine::{
    AllocError, Allocation, Capture, Config, Engine, PauseError, Policy, PoolSource, Release,
    ResumeError, Slack, StreamFilter,
};
use tonnage_events::{Address, PoolId, StreamId};

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);

/// What can keep addresses.
fn engines() -> [Engine<FailNth<Dry>>; 2] {
    [("", Policy::Pages(Slack::DEFAULT)), ("expandable_segments:True", Policy::Pytorch)].map(
        |(conf, policy)| {
            let config = Config::parse(conf, Release::NEWEST).unwrap();
            let device = FailNth::new(Dry::new(1 << 30), u64::MAX);
            Engine::with_policy(device, config, policy)
        },
    )
}

const POOL: PoolId = PoolId(0, 7);

/// Blocks of a private pool, one of them cached there, beside those of [`work`].
fn work_in_pool(engine: &mut Engine<FailNth<Dry>>) -> (Vec<Allocation>, Vec<Allocation>) {
    let outside = work(engine);
    engine.begin_allocate_to_pool(POOL, StreamFilter::Any).unwrap();
    let mut inside: Vec<_> = [30, 1, 7, 12]
        .into_iter()
        .map(|mib| engine.allocate(mib * MIB + 500, STREAM).unwrap())
        .collect();
    engine.free(&inside.pop().unwrap()).unwrap();
    engine.end_allocate_to_pool(POOL).unwrap();
    (outside, inside)
}

fn in_pool(
    engine: &mut Engine<FailNth<Dry>>,
    bytes: u64,
) -> Result<Allocation, tonnage_engine::AllocError> {
    engine.begin_allocate_to_pool(POOL, StreamFilter::Any).unwrap();
    let allocated = engine.allocate(bytes, STREAM);
    engine.end_allocate_to_pool(POOL).unwrap();
    engine.release_pool(POOL).unwrap();
    allocated
}

/// Blocks that share pages, one in a view under `pages`, and cached ones.
fn work(engine: &mut Engine<FailNth<Dry>>) -> Vec<Allocation> {
    let blocks: Vec<_> = [64, 8, 64, 8, 5, 3]
        .into_iter()
        .map(|mib| engine.allocate(mib * MIB + 1000, STREAM).unwrap())
        .collect();
    engine.free(&blocks[0]).unwrap();
    engine.free(&blocks[2]).unwrap();
    let mut live = vec![blocks[1], blocks[3], blocks[4], blocks[5]];
    live.push(engine.allocate(120 * MIB, STREAM).unwrap());
    live.push(engine.allocate(700, STREAM).unwrap());
    live
}

fn pages_under(engine: &Engine<FailNth<Dry>>, block: &Allocation) -> u64 {
    engine.device().inner.pages_under(block.address, block.size).map(|part| part.bytes).sum()
}

#[test]
fn a_paused_allocator_holds_nothing_and_goes_on_where_it_was() {
    for mut engine in engines() {
        let live = work(&mut engine);
        let before = engine.stats().memory_reserved();
        assert_eq!(engine.pause().unwrap(), before);
        assert_eq!(engine.device().inner.used(), 0);
        assert!(engine.is_paused());
        assert_eq!(engine.pause(), Err(PauseError::Paused));
        assert_eq!(engine.allocate(1000, STREAM), Err(AllocError::Paused));
        assert_eq!(engine.release(u64::MAX), Ok(0));
        engine.empty_cache().unwrap();
        // Blocks may be freed meanwhile.
        engine.free(&live[0]).unwrap();
        engine.resume().unwrap();
        assert_eq!(engine.device().inner.used(), engine.stats().memory_reserved());
        for block in &live[1..] {
            assert_eq!(pages_under(&engine, block), block.size, "{block:?}");
        }
        engine.check_invariants().unwrap();
        let more = engine.allocate(30 * MIB, STREAM).unwrap();
        for block in live[1..].iter().chain([&more]) {
            engine.free(block).unwrap();
        }
        engine.empty_cache().unwrap();
        assert_eq!((engine.device().inner.used(), engine.device().inner.handles()), (0, 0));
    }
}

#[test]
fn what_others_hold_comes_back_later() {
    for mut engine in engines() {
        let live = work(&mut engine);
        engine.pause().unwrap();
        let taken = tonnage_device::Device::acquire(engine.device_mut(), 1000 * MIB).unwrap();
        assert!(engine.resume().is_err());
        assert_eq!(engine.allocate(1000, STREAM), Err(AllocError::Paused));
        tonnage_device::Device::release(engine.device_mut(), taken).unwrap();
        engine.resume().unwrap();
        for block in &live {
            assert_eq!(pages_under(&engine, block), block.size, "{block:?}");
        }
    }
}

#[test]
fn fixed_segments_cannot_keep_their_addresses() {
    let mut engine = Engine::new(Dry::new(1 << 30), Config::default());
    let block = engine.allocate(64 * MIB, STREAM).unwrap();
    let error = engine.pause().unwrap_err();
    assert_eq!(error, PauseError::Fixed(64 * MIB));
    assert!(error.to_string().contains("64.00 MiB in use"), "{error}");
    engine.free(&block).unwrap();
    // With nothing in use there is nothing to keep.
    engine.pause().unwrap();
    engine.resume().unwrap();
}

#[test]
fn whether_it_can_be_paused_is_told_without_a_change() {
    for conf in ["", "expandable_segments:True"] {
        let config = Config::parse(conf, Release::NEWEST).unwrap();
        let mut engine = Engine::new(Dry::new(1 << 30), config);
        let cached = engine.allocate(30 * MIB, STREAM).unwrap();
        let [small, beside] = [500, 700].map(|size| engine.allocate(size, STREAM).unwrap());
        engine.free(&cached).unwrap();
        let before = (engine.stats().clone(), engine.segments());
        let possible = engine.check_pause();
        assert_eq!((engine.stats().clone(), engine.segments()), before, "{conf}");
        if conf.is_empty() {
            // The whole segment around what is in use, and not what is cached.
            assert_eq!(possible, Err(PauseError::Fixed(2 * MIB)));
            assert_eq!(engine.pause(), possible.map(|()| 0));
            assert_eq!((engine.stats().clone(), engine.segments()), before, "nothing went");
            engine.free(&small).unwrap();
            assert!(engine.check_pause().is_err());
            engine.free(&beside).unwrap();
        } else {
            assert_eq!(possible, Ok(()));
        }
        engine.check_pause().unwrap();
        engine.pause().unwrap();
        assert_eq!(engine.check_pause(), Err(PauseError::Paused));
    }
}

#[test]
fn what_a_pool_of_ones_own_caches_is_in_use_for_a_pause() {
    let mut engine = Engine::new(Dry::new(1 << 30), Config::default());
    engine.create_or_use_pool(POOL).unwrap();
    engine.begin_allocate_to_pool(POOL, StreamFilter::Any).unwrap();
    let block = engine.allocate(30 * MIB, STREAM).unwrap();
    engine.end_allocate_to_pool(POOL).unwrap();
    engine.free(&block).unwrap();
    assert_eq!(engine.check_pause(), Err(PauseError::Fixed(30 * MIB)));
    assert_eq!(engine.check_pause_pool(POOL), Err(PauseError::Fixed(30 * MIB)));
    for _ in 0..2 {
        engine.release_pool(POOL).unwrap();
    }
    assert_eq!(engine.check_pause_pool(POOL), Err(PauseError::NoPool(POOL)));
    engine.check_pause().unwrap();
    engine.pause().unwrap();
}

#[test]
fn nothing_goes_or_comes_back_while_any_thread_captures() {
    for capture in [Capture::Everywhere, Capture::When(Arc::new(|| false))] {
        for mut engine in engines() {
            let (outside, inside) = work_in_pool(&mut engine);
            engine.begin_capture(capture.clone());
            assert_eq!(engine.check_pause(), Err(PauseError::Capturing));
            assert_eq!(engine.pause(), Err(PauseError::Capturing));
            assert_eq!(engine.check_pause_pool(POOL), Err(PauseError::Capturing));
            assert_eq!(engine.pause_pool(POOL), Err(PauseError::Capturing));
            // What is not paused has nothing to come back.
            assert_eq!((engine.resume(), engine.resume_pool(POOL)), (Ok(()), Ok(())));
            engine.end_capture().unwrap();

            engine.pause_pool(POOL).unwrap();
            engine.pause().unwrap();
            let used = engine.device().inner.used();
            engine.begin_capture(capture.clone());
            assert_eq!(engine.resume(), Err(ResumeError::Capturing));
            assert_eq!(engine.resume_pool(POOL), Err(ResumeError::Capturing));
            assert_eq!(engine.device().inner.used(), used);
            assert_eq!((engine.is_paused(), engine.paused_pools()), (true, vec![POOL]));
            engine.end_capture().unwrap();
            engine.resume().unwrap();
            engine.resume_pool(POOL).unwrap();
            for block in outside.iter().chain(&inside) {
                assert_eq!(pages_under(&engine, block), block.size, "{block:?}");
            }
            engine.check_invariants().unwrap();
        }
    }
}

#[test]
fn what_has_its_memory_again_is_paused_until_its_contents_are_there() {
    for mut engine in engines() {
        let (outside, inside) = work_in_pool(&mut engine);
        engine.pause_pool(POOL).unwrap();
        engine.pause().unwrap();
        for _ in 0..2 {
            engine.obtain_again().unwrap();
            engine.obtain_pool_again(POOL).unwrap();
        }
        assert_eq!(engine.device().inner.used(), engine.stats().memory_reserved());
        assert_eq!(engine.allocate(1000, STREAM), Err(AllocError::Paused));
        engine.check_invariants().unwrap();
        engine.resume().unwrap();
        assert_eq!(in_pool(&mut engine, 1000), Err(AllocError::PoolPaused(POOL)));
        engine.resume_pool(POOL).unwrap();
        for block in outside.iter().chain(&inside) {
            assert_eq!(pages_under(&engine, block), block.size, "{block:?}");
        }
        in_pool(&mut engine, 1000).unwrap();
        engine.check_invariants().unwrap();
    }
}

#[test]
fn memory_of_a_source_is_said_to_be_the_sources() {
    let config = Config::parse("expandable_segments:True", Release::NEWEST).unwrap();
    let mut engine = Engine::new(Dry::new(1 << 30), config);
    let source = PoolSource {
        acquire: Arc::new(|_| Ok(Some(Address(0x7700_0000_0000)))),
        release: Arc::new(|_| {}),
    };
    engine.create_or_use_pool_from(POOL, source).unwrap();
    engine.begin_allocate_to_pool(POOL, StreamFilter::Any).unwrap();
    engine.allocate(30 * MIB, STREAM).unwrap();
    engine.end_allocate_to_pool(POOL).unwrap();
    let refused = Err(PauseError::OfSource(30 * MIB));
    assert_eq!((engine.check_pause(), engine.check_pause_pool(POOL)), (refused.clone(), refused));
    let text = engine.pause().unwrap_err().to_string();
    assert!(text.contains("an allocator of their own") && !text.contains("expandable"), "{text}");
}

#[test]
fn a_request_under_a_paused_tag_names_the_tag() {
    for mut engine in engines() {
        let _blocks = work_in_pool(&mut engine);
        engine.set_pool_tag(POOL, "weights").unwrap();
        engine.pause_pool(POOL).unwrap();
        let error = in_pool(&mut engine, 1000).unwrap_err();
        assert!(error.to_string().contains("the tag \"weights\""), "{error}");
    }
}

#[test]
fn a_pool_that_joins_a_paused_tag_is_paused_with_it() {
    for mut engine in engines() {
        let _blocks = work_in_pool(&mut engine);
        engine.set_pool_tag(POOL, "weights").unwrap();
        engine.pause_pool(POOL).unwrap();
        let [joins, other] = [8, 9].map(|number| PoolId(0, number));
        for (pool, tag) in [(joins, "weights"), (other, "cache")] {
            engine.create_or_use_pool(pool).unwrap();
            engine.set_pool_tag(pool, tag).unwrap();
        }
        assert_eq!(engine.paused_pools(), [POOL, joins]);
        engine.begin_allocate_to_pool(joins, StreamFilter::Any).unwrap();
        let refused = Err(AllocError::TagPaused("weights".into()));
        assert_eq!(engine.allocate(1000, STREAM), refused);
        assert_eq!(engine.pause_pool(joins), Err(PauseError::Paused));
        engine.check_invariants().unwrap();
        for pool in [POOL, joins] {
            engine.resume_pool(pool).unwrap();
        }
        engine.allocate(1000, STREAM).unwrap();
        // One that holds memory has to give it back, which is its owner's to ask for.
        engine.pause_pool(POOL).unwrap();
        engine.set_pool_tag(joins, "weights").unwrap();
        assert_eq!(engine.paused_pools(), [POOL]);
        engine.check_invariants().unwrap();
    }
}

#[test]
fn whichever_call_fails_all_comes_back_in_the_end() {
    for which in 0..2 {
        for n in 0.. {
            let [pages, expandable] = engines();
            let mut engine = if which == 0 { pages } else { expandable };
            let live = work(&mut engine);
            let who = format!("{which}, call {n}");
            let device = engine.device().inner.clone();
            *engine.device_mut() = FailNth::new(device, n);
            let paused = engine.pause();
            assert!(paused.is_ok() || engine.device().failed(), "{who}: {paused:?}");
            for _ in 0..2 {
                let resumed = engine.resume();
                assert!(resumed.is_ok() || engine.device().failed(), "{who}: {resumed:?}");
            }
            assert!(!engine.is_paused(), "{who}");
            engine.check_invariants().unwrap_or_else(|broken| panic!("{who}: {broken}"));
            for block in &live {
                assert_eq!(pages_under(&engine, block), block.size, "{who}: {block:?}");
            }
            if !engine.device().failed() {
                assert!(n > 20, "{n} calls are no sweep");
                break;
            }
        }
    }
}

#[test]
fn as_much_is_given_back_as_is_asked_for() {
    for policy in Policy::ALL {
        let mut engine = Engine::with_policy(Dry::new(1 << 30), Config::default(), policy);
        let blocks = [0; 4].map(|_| engine.allocate(64 * MIB, STREAM).unwrap());
        for block in &blocks[..3] {
            engine.free(block).unwrap();
        }
        let gone = engine.release(70 * MIB).unwrap();
        assert!((70 * MIB..=128 * MIB).contains(&gone), "{policy}: {gone}");
        assert_eq!(engine.stats().memory_reserved(), 256 * MIB - gone, "{policy}");
        assert_eq!(engine.release(u64::MAX).unwrap(), 192 * MIB - gone, "{policy}");
        assert_eq!(engine.release(u64::MAX).unwrap(), 0, "{policy}");
        assert_eq!(engine.device().used(), 64 * MIB, "{policy}");
        engine.check_invariants().unwrap();
    }
}

#[test]
fn a_paused_pool_holds_nothing_and_all_others_go_on() {
    for mut engine in engines() {
        assert_eq!(engine.pause_pool(POOL), Err(PauseError::NoPool(POOL)));
        let (outside, inside) = work_in_pool(&mut engine);
        let (used, reserved) = (engine.device().inner.used(), engine.stats().memory_reserved());
        let gone = engine.pause_pool(POOL).unwrap();
        assert!(gone >= 38 * MIB, "{gone}");
        assert_eq!(engine.device().inner.used(), used - gone);
        assert_eq!(engine.stats().memory_reserved(), reserved);
        assert_eq!((engine.is_paused(), engine.paused_pools()), (false, vec![POOL]));
        assert_eq!(engine.pause_pool(POOL), Err(PauseError::Paused));
        assert_eq!(in_pool(&mut engine, 1000), Err(AllocError::PoolPaused(POOL)));
        assert_eq!(engine.release_pool_memory(POOL), Ok(0));
        assert!(engine.contents_of(POOL).is_empty());
        // Outside of it everything goes on, also what gives memory back.
        for block in &outside {
            assert_eq!(pages_under(&engine, block), block.size, "{block:?}");
        }
        let more = engine.allocate(90 * MIB, STREAM).unwrap();
        engine.free(&more).unwrap();
        engine.empty_cache().unwrap();
        engine.free(&inside[0]).unwrap();
        engine.check_invariants().unwrap();
        engine.resume_pool(POOL).unwrap();
        assert_eq!(engine.device().inner.used(), engine.stats().memory_reserved());
        for block in &inside[1..] {
            assert_eq!(pages_under(&engine, block), block.size, "{block:?}");
        }
        let again = in_pool(&mut engine, 25 * MIB).unwrap();
        engine.check_invariants().unwrap();
        for block in outside.iter().chain(&inside[1..]).chain([&again]) {
            engine.free(block).unwrap();
        }
        assert!(engine.release_pool_memory(POOL).unwrap() > 0);
        engine.release_pool(POOL).unwrap();
        engine.empty_cache().unwrap();
        assert_eq!((engine.device().inner.used(), engine.device().inner.handles()), (0, 0));
    }
}

#[test]
fn a_pool_that_is_released_while_it_is_paused_goes_once_it_is_back() {
    for mut engine in engines() {
        let (outside, inside) = work_in_pool(&mut engine);
        engine.pause_pool(POOL).unwrap();
        for block in outside.iter().chain(&inside) {
            engine.free(block).unwrap();
        }
        engine.release_pool(POOL).unwrap();
        engine.empty_cache().unwrap();
        engine.empty_cache_of(POOL).unwrap();
        engine.check_invariants().unwrap();
        engine.resume_pool(POOL).unwrap();
        engine.empty_cache().unwrap();
        assert_eq!((engine.device().inner.used(), engine.device().inner.handles()), (0, 0));
        assert_eq!(engine.stats().memory_reserved(), 0);
    }
}

#[test]
fn a_pool_and_then_all_the_rest_can_be_paused_and_come_back_in_any_order() {
    for pool_first in [true, false] {
        for mut engine in engines() {
            let (outside, inside) = work_in_pool(&mut engine);
            let reserved = engine.stats().memory_reserved();
            let of_pool = engine.pause_pool(POOL).unwrap();
            assert_eq!(engine.pause().unwrap(), reserved - of_pool);
            assert_eq!(engine.device().inner.used(), 0);
            if pool_first {
                engine.resume_pool(POOL).unwrap();
                assert_eq!(engine.device().inner.used(), of_pool);
                assert_eq!(engine.pause_pool(POOL), Err(PauseError::Paused));
                engine.resume().unwrap();
            } else {
                engine.resume().unwrap();
                let used = engine.stats().memory_reserved() - of_pool;
                assert_eq!(engine.device().inner.used(), used);
                engine.resume_pool(POOL).unwrap();
            }
            for block in outside.iter().chain(&inside) {
                assert_eq!(pages_under(&engine, block), block.size, "{block:?}");
            }
            // What was cached outside went with the pause.
            assert!(engine.stats().memory_reserved() <= reserved);
            assert_eq!(engine.device().inner.used(), engine.stats().memory_reserved());
            engine.check_invariants().unwrap();
        }
    }
}

#[test]
fn whichever_driver_call_fails_a_pool_comes_back_whole() {
    for which in 0..2 {
        for n in 0..400 {
            let [pages, expandable] = engines();
            let mut engine = if which == 0 { pages } else { expandable };
            let (outside, inside) = work_in_pool(&mut engine);
            let device = engine.device().inner.clone();
            *engine.device_mut() = FailNth::new(device, n);
            let paused = engine.pause_pool(POOL);
            if engine.is_pool_paused(POOL) {
                while engine.resume_pool(POOL).is_err() {}
            }
            let failed = engine.device().failed();
            assert!(paused.is_ok() || failed, "{paused:?}");
            for block in outside.iter().chain(&inside) {
                assert_eq!(pages_under(&engine, block), block.size, "call {n}: {block:?}");
            }
            engine.check_invariants().unwrap();
            if !failed {
                assert!(n > 10);
                break;
            }
        }
    }
}
