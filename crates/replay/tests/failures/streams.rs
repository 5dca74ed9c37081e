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
    assert_eq!(files.len(), 70);
    files
}

fn read(path: &Path) -> Stream {
    Stream::read(BufReader::new(File::open(path).unwrap())).unwrap()
}

fn engine_for(stream: &Stream, events: Events, calls_left: u64) -> Engine<FailNth<Dry>> {
    let header = &stream.header;
    let mut device = stream.device();
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

/// The device has given out what the engine has reserved, and a page that it would not take back.
fn assert_nothing_is_lost(engine: &Engine<FailNth<Dry>>) {
    engine.check_invariants().unwrap();
    let known = engine.stats().memory_reserved() + engine.stranded_bytes();
    assert_eq!(engine.device().inner.used(), known);
}

/// Gives everything back. Only one call fails, so what failed works the second time.
fn give_everything_back(engine: &mut Engine<FailNth<Dry>>, pools: &[PoolId]) {
    while engine.end_capture().is_ok() {}
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
    assert_nothing_is_lost(&engine);

    give_everything_back(&mut engine, &pools_of(stream));
    assert_nothing_is_lost(&engine);
    assert_eq!(engine.stats().memory_reserved(), 0);
    assert_eq!(engine.stats().active_bytes.all.current, 0);
    assert!(engine.segments().is_empty());

    if engine.device().failed() {
        serves_again(&mut engine);
        return true;
    }
    false
}

/// Small and large requests are served, and what they took goes back. A stranded page serves first,
/// and then goes back too.
fn serves_again(engine: &mut Engine<FailNth<Dry>>) {
    let stranded = engine.stranded_bytes();
    if stranded > 0 {
        engine.configure("expandable_segments:True").unwrap();
    }
    engine.set_limit(None);
    // With segments beyond any device only small requests are served.
    let wraps = engine.config().large_segment_size() > 1 << 40;
    let sizes = if wraps { [100, 200] } else { [100, 5 * MIB] };
    let blocks = sizes.map(|bytes| engine.allocate(bytes, StreamId(4096)).unwrap());
    assert_eq!(engine.stranded_bytes(), 0, "of {stranded} bytes");
    assert_nothing_is_lost(engine);
    for block in blocks {
        engine.free(&block).unwrap();
    }
    engine.empty_cache().unwrap();
    assert_nothing_is_lost(engine);
    assert_eq!(engine.device().inner.used(), 0);
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
