//! Cached requests under the policy `pages` beside the same under PyTorch's rules: a request and its free, in nanoseconds, and
//! what the first takes of the second.
//!
//! Both are measured in turns, so that what else the machine does meets both; of each the fastest round counts. No test
//! decides on these times; `--test` runs each case once, with little.
//!
//! - `pair`: one block at a time, among others that stay.
//! - `three`: three blocks of different sizes at a time, freed in another order: each is merged with what lies free beside it.
//! - `mix`: 512 live blocks of repeating sizes, of which a random one goes for each that comes.

use std::hint::black_box;
use std::time::Instant;

use tonnage_device::Dry;
use tonnage_engine::{Allocation, Config, Engine, Policy, Slack, StreamId};

const ROUNDS: usize = 15;
const STREAM: StreamId = StreamId::DEFAULT;
const POLICIES: [Policy; 2] = [Policy::Pytorch, Policy::Pages(Slack::DEFAULT)];

/// Bytes of pairs: a small block, one of each half of a pool, and those under which pages of several sizes lie.
const SIZES: [u64; 5] = [512, 64 << 10, 1 << 20, 32 << 20, 1 << 30];

fn main() {
    let test = std::env::args().any(|it| it == "--test");
    let requests = if test { 1_000 } else { 200_000 };
    println!("{:<24}{:>10}{:>10}{:>8}", "case", "pytorch", "pages", "ratio");
    let mut product = 1.0;
    let mut cases = 0;
    let mut measure = |name: String, run: &dyn Fn(&mut Engine<Dry>, u64)| {
        let [pytorch, pages] = compare(requests, if test { 1 } else { ROUNDS }, run);
        println!("{name:<24}{pytorch:>7.1} ns{pages:>7.1} ns{:>8.3}", pages / pytorch);
        product *= pages / pytorch;
        cases += 1;
    };
    for bytes in SIZES {
        measure(format!("pair {bytes}"), &move |engine, requests| pairs(engine, bytes, requests));
    }
    measure("three".to_owned(), &three);
    measure("mix".to_owned(), &mix);
    println!("geometric mean{:>38.3}", f64::powf(product, 1.0 / f64::from(cases)));
}

/// Nanoseconds of a request and its free under each policy.
fn compare(requests: u64, rounds: usize, run: &dyn Fn(&mut Engine<Dry>, u64)) -> [f64; 2] {
    let mut engines = POLICIES.map(|policy| {
        let mut engine = Engine::with_policy(Dry::new(256 << 30), Config::default(), policy);
        // Whatever it needs, it holds from now on.
        run(&mut engine, requests);
        engine
    });
    let mut least = [f64::INFINITY; 2];
    for _ in 0..rounds {
        for (engine, least) in engines.iter_mut().zip(&mut least) {
            let started = Instant::now();
            run(black_box(engine), requests);
            *least = least.min(started.elapsed().as_nanos() as f64 / requests as f64);
        }
    }
    least
}

fn allocate(engine: &mut Engine<Dry>, bytes: u64) -> Allocation {
    engine.allocate(bytes, STREAM).expect("the device is large enough")
}

fn free(engine: &mut Engine<Dry>, block: &Allocation) {
    engine.free(block).expect("the block is live");
}

fn pairs(engine: &mut Engine<Dry>, bytes: u64, requests: u64) {
    for _ in 0..requests {
        let block = allocate(engine, black_box(bytes));
        free(engine, &block);
    }
}

fn three(engine: &mut Engine<Dry>, requests: u64) {
    for _ in 0..requests / 3 {
        let [one, two, three] = [3 << 20, 700, 20 << 20].map(|bytes| allocate(engine, bytes));
        for block in [two, one, three] {
            free(engine, &block);
        }
    }
}

fn mix(engine: &mut Engine<Dry>, requests: u64) {
    let mut random = 1_u64;
    let mut next = |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    let size = |random: u64| 512 << (random % 16);
    let mut live: Vec<_> = (0..512).map(|_| allocate(engine, size(next(1 << 32)))).collect();
    for _ in 0..requests - 512 {
        let at = next(512) as usize;
        free(engine, &live[at]);
        live[at] = allocate(engine, size(next(1 << 32)));
    }
    for block in &live {
        free(engine, block);
    }
}
