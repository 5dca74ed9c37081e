//! One device call fails, whichever it is: nothing is lost, and the allocator goes on.

use tonnage_device::{Dry, FailNth};
use tonnage_engine::{Allocation, Config, Engine, Policy, Slack, StreamFilter};
use tonnage_events::{PoolId, StreamId};

use crate::ordered::shared_pages;
use crate::random::Random;

const POOL: PoolId = PoolId(0, 3);

/// A program that grows, lends between streams, stitches, drops views, and gives back. Failures are passed over. Returns what it holds
/// in the end, and how often a page was in use in two places.
fn work(engine: &mut Engine<FailNth<Dry>>, seed: u64) -> (Vec<Allocation>, usize) {
    let mut random = Random(seed + 1);
    let mut live: Vec<Allocation> = Vec::new();
    let mut shared = 0;
    for step in 0..160 {
        let stream = StreamId(random.below(2));
        if step == 60 && engine.begin_allocate_to_pool(POOL, StreamFilter::Any).is_ok() {
            live.extend(engine.allocate(20 << 20, stream).ok());
            engine.end_allocate_to_pool(POOL).unwrap();
        }
        if step == 100 {
            let _ = engine.release_pool(POOL);
        }
        if step % 50 == 49 {
            let _ = engine.empty_cache();
        }
        live.extend(engine.allocate(random.size(), stream).ok());
        while live.len() as u64 > 2 + random.below(12) {
            let block = live.swap_remove(random.below(live.len() as u64) as usize);
            if random.below(4) == 0 {
                engine.record_stream_of(&block, StreamId(9)).unwrap();
            }
            // It is freed, whatever the device says.
            let _ = engine.free(&block);
        }
        shared += shared_pages(&engine.device().inner, live.iter());
    }
    (live, shared)
}

#[test]
fn whichever_device_call_fails_nothing_is_lost() {
    for (seed, limit) in [(0, None), (1, Some(160 << 20))] {
        let mut swept = 0;
        for n in 0.. {
            let policy = Policy::Pages(Slack::new(0.0).unwrap());
            let device = FailNth::new(Dry::new(1 << 30), n);
            let mut engine = Engine::with_policy(device, Config::default(), policy);
            engine.set_limit(limit);
            let (live, shared) = work(&mut engine, seed);
            let who = format!("seed {seed}, call {n}");
            engine.check_invariants().unwrap_or_else(|broken| panic!("{who}: {broken}"));
            for block in live {
                let freed = engine.free(&block);
                assert!(freed.is_ok() || engine.device().failed(), "{who}: {freed:?}");
            }
            for _ in 0..3 {
                let emptied = engine.empty_cache();
                assert!(emptied.is_ok() || engine.device().failed(), "{who}: {emptied:?}");
            }
            engine.check_invariants().unwrap_or_else(|broken| panic!("{who}: {broken}"));
            assert_eq!(engine.stats().memory_reserved(), 0, "{who}");
            assert_eq!(engine.device().inner.used(), engine.stranded_bytes(), "{who}");
            swept = n;
            if !engine.device().failed() {
                assert_eq!(shared > 0, limit.is_some(), "{who}: {shared} pages in two places");
                break;
            }
        }
        assert!(swept > 200, "{swept} calls are no sweep");
    }
}
