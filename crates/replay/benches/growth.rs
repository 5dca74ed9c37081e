//! How time grows with the work: each case with n, twice and four times as much, and what the last doubling cost.
//!
//! About 2 is linear, 4 quadratic. No test decides on these times; `--test` runs each case once, with little.
//!
//! - `pending`: n blocks freed while two other streams use them, found unused by the next request: all of one stream, then
//!   all of the other.
//! - `pending at a flush`: the same, found unused while the cache is emptied.
//! - `failed requests`: n live blocks, and one request that fails for every fifty of them.

use std::hint::black_box;
use std::time::Instant;

use tonnage_device::Dry;
use tonnage_engine::{Config, Engine, RecordOptions, StreamId};
use tonnage_events::DeviceId;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::snapshot_file;
use tonnage_snapshot::SnapshotFile;

/// Of each size, the fastest counts.
const ROUNDS: usize = 3;

fn main() {
    let test = std::env::args().any(|it| it == "--test");
    let n = if test { 500 } else { 25_000 };
    println!("{:<24}{:>10}{:>12}{:>12}{:>12}{:>8}", "case", "n", "n", "2n", "4n", "4n/2n");
    let replays_exactly = |file: &SnapshotFile| {
        let outcome = replay_recording(file, &RecordingOptions::default());
        assert!(outcome.is_ok_and(|outcome| outcome.exact()));
    };
    grows("pending", n, test, |n| pending(n, false), replays_exactly);
    grows("pending at a flush", n, test, |n| pending(n, true), replays_exactly);
    grows("failed requests", n, test, failed_requests, replays_exactly);
}

/// Measures work on something of three sizes.
fn grows<T>(name: &str, n: usize, test: bool, make: impl Fn(usize) -> T, work: impl Fn(&T)) {
    let sizes = [n, 2 * n, 4 * n];
    let seconds = sizes.map(|n| {
        let made = make(n);
        let rounds = if test { 1 } else { ROUNDS };
        let round = || {
            let started = Instant::now();
            work(black_box(&made));
            started.elapsed().as_secs_f64()
        };
        (0..rounds).map(|_| round()).fold(f64::INFINITY, f64::min)
    });
    let [one, two, four] = seconds.map(|it| it * 1e3);
    let grown = four / two;
    println!("{name:<24}{n:>10}{one:>9.1} ms{two:>9.1} ms{four:>9.1} ms{grown:>8.2}");
}

/// The recording of an allocator with so many pending blocks at once.
fn pending(n: usize, empties_cache: bool) -> SnapshotFile {
    let mut engine = Engine::new(Dry::new(64 << 30), Config::default());
    engine.record_history(Some(RecordOptions::default()));
    let blocks: Vec<_> = (0..n)
        .map(|_| engine.allocate(1_000, StreamId(0)).expect("the device is large enough"))
        .collect();
    engine.device_mut().hold_events();
    for (number, block) in blocks.iter().enumerate() {
        let stream = StreamId(1 + number as u64 % 2);
        engine.record_stream_of(block, stream).expect("the block is live");
        engine.free(block).expect("the block is live");
    }
    if empties_cache {
        engine.empty_cache().expect("a dry device does not fail");
    } else {
        engine.device_mut().complete_events();
    }
    engine.allocate(1_000, StreamId(0)).expect("the device is large enough");
    snapshot_file(engine.snapshot(), DeviceId(0))
}

/// The recording of an allocator that holds so many blocks under a limit, and is asked in vain.
fn failed_requests(n: usize) -> SnapshotFile {
    let mut engine = Engine::new(Dry::new(64 << 30), Config::default());
    engine.explain_failures(false);
    engine.record_history(Some(RecordOptions::default()));
    engine.set_limit(Some(n as u64 * 1024 + (64 << 20)));
    for _ in 0..n {
        engine.allocate(1_000, StreamId(0)).expect("the limit is high enough");
    }
    for _ in 0..n / 50 {
        let failed = engine.allocate(1 << 30, StreamId(0));
        assert!(failed.is_err(), "the limit is lower");
    }
    snapshot_file(engine.snapshot(), DeviceId(0))
}
