//! One device call fails, whichever it is: nothing is lost, and the allocator goes on.
//!
//! Each command stream runs once for every n with the n-th device call failing. Afterwards
//! everything is freed, and then the device must have got all of its memory back.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tonnage_device::{Dry, FailNth};
use tonnage_engine::{Config, Engine, Release};
use tonnage_events::{Address, BlockState, PoolId, StreamId};
use tonnage_replay::stream::{Command, Stream, run_commands};

const MIB: u64 = 1 << 20;

/// How events behave during a run.
#[derive(Clone, Copy, Debug)]
enum Events {
    /// Complete at once.
    Complete,
    /// Complete only when they are waited for, so that freed blocks pile up.
    Held,
    /// Those of one stream complete at once, the others only when they are waited for.
    HeldBut(StreamId),
}

fn streams() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/streams");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_stream = |path: &PathBuf| path.extension().is_some_and(|it| it == "jsonl");
    let mut files: Vec<_> = entries.filter(is_stream).collect();
    files.sort();
    assert_eq!(files.len(), 40);
    files
}

fn read(path: &Path) -> Stream {
    Stream::read(BufReader::new(File::open(path).unwrap())).unwrap()
}

fn engine_for(stream: &Stream, events: Events, calls_left: u64) -> Engine<FailNth<Dry>> {
    let header = &stream.header;
    let mut device = Dry::new(header.device_total).with_capacity(header.device_capacity);
    match events {
        Events::Complete => {}
        Events::Held => device.hold_events(),
        Events::HeldBut(stream) => {
            device.hold_events();
            device.complete_events_of(stream);
        }
    }
    let release: Release = header.library.parse().unwrap();
    let config = Config::parse(&header.conf, release).unwrap();
    let mut engine = Engine::new(FailNth::new(device, calls_left), config);
    if let Some(fraction) = header.fraction {
        engine.set_memory_fraction(fraction).unwrap();
    }
    engine
}

fn pools_of(stream: &Stream) -> Vec<PoolId> {
    let begun = stream.lines.iter().filter_map(|line| match line.command {
        Command::PoolBegin { pool: (first, second) } => Some(PoolId(first, second)),
        _ => None,
    });
    let mut pools: Vec<_> = begun.collect();
    pools.sort_unstable();
    pools.dedup();
    pools
}

fn live(engine: &Engine<FailNth<Dry>>) -> Vec<Address> {
    let segments = engine.segments();
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
    live.map(|block| block.address).collect()
}

/// Bytes that the device has given out and the engine does not count as reserved: a page that the
/// device would not take back, which waits to be used again.
fn stranded(engine: &Engine<FailNth<Dry>>) -> u64 {
    let used = engine.device().inner.used();
    used.checked_sub(engine.stats().memory_reserved()).expect("reserved memory is the device's")
}

/// Gives everything back. Only one call fails, so what failed works the second time.
fn give_everything_back(engine: &mut Engine<FailNth<Dry>>, pools: &[PoolId]) {
    for &pool in pools {
        // Not all of them are still diverted to.
        let _ = engine.end_allocate_to_pool(pool);
        while engine.pool_use_count(pool) > 0 {
            engine.release_pool(pool).unwrap();
        }
    }
    for address in live(engine) {
        // If the device fails here the block is freed nevertheless.
        let _ = engine.free_address(address);
    }
    if engine.empty_cache().is_err() {
        assert!(engine.device().failed());
        engine.empty_cache().unwrap();
    }
}

/// The n-th call fails. Whether there was such a call.
fn fail_one_call(stream: &Stream, events: Events, n: u64) -> bool {
    let mut engine = engine_for(stream, events, n);
    run_commands(&mut engine, stream);
    engine.check_invariants().unwrap();
    let pages = [0, 2 * MIB, engine.config().large_segment_size(), 20 * MIB];
    assert!(pages.contains(&stranded(&engine)), "{} bytes are lost", stranded(&engine));

    give_everything_back(&mut engine, &pools_of(stream));
    engine.check_invariants().unwrap();
    assert_eq!(engine.stats().memory_reserved(), 0);
    assert_eq!(engine.stats().active_bytes.all.current, 0);
    assert!(engine.segments().is_empty());
    serves_again(&mut engine);
    engine.device().failed()
}

/// Small and large requests are served, and what they took goes back. A stranded page serves first.
fn serves_again(engine: &mut Engine<FailNth<Dry>>) {
    let lost = stranded(engine);
    if lost > 0 {
        engine.configure("expandable_segments:True").unwrap();
    }
    engine.set_limit(None);
    let blocks: Vec<_> =
        [100, 5 * MIB].into_iter().map(|bytes| engine.allocate(bytes, StreamId(4096))).collect();
    for block in blocks {
        match block {
            Ok(block) => engine.free(&block).unwrap(),
            // The one failure may strike only now.
            Err(error) => assert!(engine.device().failed(), "{error}"),
        }
    }
    if lost > 0 {
        assert_eq!(stranded(engine), 0, "a stranded page was not used again");
    }
    if engine.empty_cache().is_err() {
        engine.empty_cache().unwrap();
    }
    engine.check_invariants().unwrap();
    let left = (engine.stats().memory_reserved(), engine.device().inner.used());
    let stranded_now = lost == 0 && [2 * MIB, 20 * MIB].contains(&left.1);
    assert!(left.0 == 0 && (left.1 == 0 || stranded_now), "{left:?} bytes are left");
}

/// Lets every call of every stream fail once.
fn sweep(events: Events) {
    let mut failures = 0;
    for path in streams() {
        let stream = read(&path);
        for n in 0.. {
            let run = std::panic::catch_unwind(|| fail_one_call(&stream, events, n));
            match run {
                Ok(true) => failures += 1,
                Ok(false) => break,
                Err(panic) => {
                    eprintln!("{}, events {events:?}: device call {n} failed", path.display());
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
    assert!(failures > 5_000, "only {failures} calls were made to fail");
}

#[test]
fn whichever_device_call_fails_everything_goes_back_to_the_device() {
    sweep(Events::Complete);
}

#[test]
fn whichever_device_call_fails_blocks_that_wait_for_events_go_back_too() {
    sweep(Events::Held);
}

#[test]
fn whichever_device_call_fails_blocks_that_wait_for_some_of_their_events_go_back_too() {
    sweep(Events::HeldBut(StreamId(4096)));
}
