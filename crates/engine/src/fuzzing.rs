//! Bytes read as commands to an engine: for the fuzzer, and for its corpus as a test.
//!
//! Whatever the bytes say, the engine must answer with a result, keep its invariants, and give
//! everything back to the device in the end.

use tonnage_device::{Dry, FailNth};
use tonnage_events::{PoolId, StreamId};

use crate::{Allocation, Config, Engine, Release, StreamFilter};

/// Settings to begin with or change to.
const SETTINGS: [&str; 8] = [
    "",
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:20",
    "max_split_size_mb:40,max_non_split_rounding_mb:64",
    "garbage_collection_threshold:0.3",
    "roundup_power2_divisions:[1:2,4:8,>:4]",
    "large_segment_size_mb:32,garbage_collection_threshold:0.6,expandable_segments:True",
];

/// Runs the commands that `data` spells.
///
/// # Panics
///
/// If an invariant breaks or memory is lost: a bug in the engine.
pub fn run_commands(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let mut next = || bytes.next();
    let Some(first) = next() else { return };
    let release = Release::ALL[usize::from(first) % Release::ALL.len()];
    let fails_at = if first & 0x80 == 0 { u64::MAX } else { u64::from(first & 0x7f) * 3 };
    let device = FailNth::new(Dry::new(4 << 30).with_capacity(300 << 20), fails_at);
    let mut engine = Engine::new(device, Config::for_release(release));
    let mut blocks: Vec<Allocation> = Vec::new();
    let (mut diverting, mut used): (Vec<PoolId>, Vec<PoolId>) = Default::default();
    while let (Some(op), Some(argument)) = (next(), next()) {
        let stream = StreamId(u64::from(argument % 3) * 4096);
        let pool = PoolId(0, 1 + u64::from(argument % 3));
        match op % 16 {
            0..=5 => {
                let size = 1_u64 << (argument % 28);
                let size = size + size * u64::from(op / 16) / 16 + u64::from(argument / 28);
                if let Ok(block) = engine.allocate(size, stream) {
                    blocks.push(block);
                }
            }
            6..=8 if !blocks.is_empty() => {
                let block = blocks.swap_remove(usize::from(argument) % blocks.len());
                // A failing device frees the block all the same.
                let _ = engine.free(&block);
                assert!(engine.free(&block).is_err(), "a block is freed once");
            }
            9 if !blocks.is_empty() => {
                let block = blocks[usize::from(argument) % blocks.len()];
                engine.record_stream(block.address, stream).expect("the block is live");
            }
            10 => match argument % 4 {
                0 => engine.device_mut().inner.hold_events(),
                1 => engine.device_mut().inner.complete_events(),
                _ => engine.device_mut().inner.complete_events_of(stream),
            },
            11 => drop(engine.empty_cache_of(if argument < 200 { PoolId::DEFAULT } else { pool })),
            12 if engine.begin_allocate_to_pool(pool, StreamFilter::Any).is_ok() => {
                diverting.push(pool);
                used.push(pool);
            }
            13 => {
                if let Some(pool) = diverting.pop() {
                    engine.end_allocate_to_pool(pool).expect("it was begun");
                }
                if argument % 2 == 0
                    && let Some(pool) = used.pop()
                {
                    engine.release_pool(pool).expect("it has a use");
                }
            }
            14 => match argument {
                0..=127 => {
                    let conf = SETTINGS[usize::from(argument) % SETTINGS.len()];
                    // Some keys are unknown to some releases.
                    let _ = engine.configure(conf);
                }
                _ => {
                    let fraction = f64::from(argument - 127) / 1024.0;
                    engine.set_memory_fraction(fraction).expect("a fraction");
                }
            },
            15 => {
                // Refused by releases without such pools.
                let _ = engine.set_pool_no_split(pool);
                engine.set_pool_use_on_oom(pool, argument % 2 == 0);
            }
            _ => {}
        }
        if let Err(broken) = engine.check_invariants() {
            panic!("after command {op} {argument}: {broken}");
        }
    }
    give_everything_back(engine, &blocks, &diverting, &used);
}

fn give_everything_back(
    mut engine: Engine<FailNth<Dry>>,
    blocks: &[Allocation],
    diverting: &[PoolId],
    used: &[PoolId],
) {
    for &pool in diverting {
        engine.end_allocate_to_pool(pool).expect("it was begun");
    }
    for block in blocks {
        let _ = engine.free(block);
    }
    for &pool in used {
        engine.release_pool(pool).expect("it has a use");
    }
    // The first call may be the one that the device fails.
    let _ = engine.empty_cache();
    let _ = engine.empty_cache();
    let emptied = engine.empty_cache();
    assert!(emptied.is_ok(), "the device fails once: {emptied:?}");
    assert_eq!(engine.stats().memory_reserved(), 0, "everything went back");
    let held = engine.device().inner.used();
    assert_eq!(held, engine.stranded_bytes(), "the device holds what it would not take back");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_corpus_runs_through() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/engine");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(Result::unwrap).collect();
        assert!(files.len() >= 10, "the corpus is kept");
        for file in files {
            run_commands(&std::fs::read(file.path()).unwrap());
        }
    }
}
