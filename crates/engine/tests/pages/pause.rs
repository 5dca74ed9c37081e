//! Memory that others have for a while.

use tonnage_device::{Dry, FailNth};
use tonnage_engine::{AllocError, Allocation, Config, Engine, PauseError, Policy, Release, Slack};
use tonnage_events::StreamId;

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
