//! `tonnage bench`: the allocator's hot path on this machine, next to the driver's own.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tonnage::device::Device as _;
use tonnage::device::cuda::Cuda;
use tonnage::engine::{RecordOptions, StackDepth};
use tonnage::memory::{Block, Device};
use tonnage::{Bytes, StreamId};

use crate::Answer;
use crate::output::{counted, print, print_json};

/// Measure the allocator's hot path on this machine
///
/// Pairs of allocate and free at five sizes, a mix of 512 live blocks, 64 KiB pairs from several
/// threads, and what recording history costs; on a GPU next to the driver's own allocators. Statistics
/// are always on. Each case runs several rounds: the median counts, and the least and the most say how far to trust it.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Where to measure: `dry`, `host` or `cuda:N`
    #[arg(long, default_value = "dry", value_name = "DEVICE")]
    device: DeviceName,

    /// Pairs in each round of a case
    #[arg(long, default_value_t = 50_000, value_name = "N")]
    pairs: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A device by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceName {
    Dry,
    Host,
    Cuda(u32),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let ordinal = match name {
            "dry" => return Ok(Self::Dry),
            "host" => return Ok(Self::Host),
            "cuda" => "0",
            _ => name.strip_prefix("cuda:").unwrap_or("?"),
        };
        let ordinal = ordinal.parse();
        ordinal.map(Self::Cuda).map_err(|_| "devices are `dry`, `host` and `cuda:N`".to_owned())
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dry => f.write_str("dry"),
            Self::Host => f.write_str("host"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Bytes of the pairs.
const SIZES: [u64; 5] = [512, 64 << 10, 1 << 20, 32 << 20, 1 << 30];

/// Bytes that threads ask for.
const THREADS_BYTES: u64 = 64 << 10;

/// Room for the mix of 512 blocks of up to 128 MiB; costs nothing until touched.
const CAPACITY: &str = "120 GiB";

/// Rounds of each case: an odd number, so that one of them is the median.
const ROUNDS: usize = 5;

/// The form of the JSON; counts up when a field changes its meaning or goes.
const SCHEMA: u32 = 2;

/// All measurements.
#[derive(Serialize)]
struct Measured<'a> {
    schema: u32,
    device: String,
    cases: &'a [Case],
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Case {
    case: &'static str,
    bytes: u64,
    threads: usize,
    /// Nanoseconds for each pair, and for the mix for each call: the median of all rounds.
    ns: f64,
    /// Of the fastest round.
    ns_least: f64,
    /// Of the slowest round.
    ns_most: f64,
    rounds: usize,
    /// Allocations that a round served, on average, to show that all did the same work.
    allocations: u64,
}

impl Case {
    /// A case of which each round took so many nanoseconds for a pair; all together served `served` requests.
    fn new(
        case: &'static str,
        (bytes, threads): (u64, usize),
        mut rounds: [f64; ROUNDS],
        served: u64,
    ) -> Self {
        rounds.sort_by(f64::total_cmp);
        let [ns_least, .., ns_most] = rounds;
        let ns = rounds[ROUNDS / 2];
        let allocations = served / ROUNDS as u64;
        Self { case, bytes, threads, ns, ns_least, ns_most, rounds: ROUNDS, allocations }
    }
}

/// Measures every round.
fn rounds(mut round: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<[f64; ROUNDS]> {
    let mut measured = [0.0; ROUNDS];
    for ns in &mut measured {
        *ns = round()?;
    }
    Ok(measured)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    if arguments.pairs == 0 {
        bail!("--pairs must be at least 1");
    }
    let pairs = arguments.pairs;
    let mut cases = Vec::new();
    for bytes in SIZES {
        cases.push(pair(&open(arguments.device)?, "pair", bytes, pairs)?);
    }
    cases.push(mix(&open(arguments.device)?, pairs)?);
    for threads in [1, 2, 4, 8] {
        cases.push(from_threads(&open(arguments.device)?, threads, pairs)?);
    }
    for (case, depth) in
        [("history", StackDepth::CallSite), ("history_stacks", StackDepth::Backtrace)]
    {
        let device = open(arguments.device)?;
        // A ring that wraps around: what a long run costs.
        let max_entries = 10_000.try_into().context("not zero")?;
        let options = RecordOptions { stacks: depth, max_entries, ..RecordOptions::default() };
        device.memory().record_history(Some(options));
        // A backtrace takes a hundred times as long as a pair.
        let pairs = if depth == StackDepth::Backtrace { pairs.min(5_000) } else { pairs };
        cases.push(pair(&device, case, THREADS_BYTES, pairs)?);
    }
    if let DeviceName::Cuda(ordinal) = arguments.device {
        driver_cases(ordinal, pairs, &mut cases)?;
    }
    if arguments.json {
        let measured =
            Measured { schema: SCHEMA, device: arguments.device.to_string(), cases: &cases };
        print_json(&serde_json::to_string_pretty(&measured)?)?;
        return Ok(Answer::Yes);
    }
    let mut text = String::new();
    for case in &cases {
        let Case { case, bytes, threads, ns, ns_least, ns_most, .. } = case;
        let size = if *bytes == 0 { "mixed".to_owned() } else { Bytes(*bytes).to_string() };
        let threads = counted(*threads, "thread");
        let _ = writeln!(
            text,
            "{case:<18} {size:>12} {threads:>9} {ns:>12.1} ns  ({ns_least:.1} to {ns_most:.1})"
        );
    }
    print(&text)?;
    Ok(Answer::Yes)
}

fn open(name: DeviceName) -> anyhow::Result<Device> {
    Ok(match name {
        DeviceName::Dry => Device::dry(CAPACITY)?,
        DeviceName::Host => Device::host(CAPACITY)?,
        DeviceName::Cuda(ordinal) => Device::cuda(ordinal)?,
    })
}

fn per_pair(took: Duration, pairs: u64) -> f64 {
    took.as_nanos() as f64 / pairs as f64
}

fn served(device: &Device) -> u64 {
    device.memory().stats().allocation.all.allocated.cast_unsigned()
}

fn pair(device: &Device, case: &'static str, bytes: u64, pairs: u64) -> anyhow::Result<Case> {
    drop(device.allocate(bytes)?);
    let measured = rounds(|| {
        let started = Instant::now();
        for _ in 0..pairs {
            drop(device.allocate(bytes)?);
        }
        Ok(per_pair(started.elapsed(), pairs))
    })?;
    Ok(Case::new(case, (bytes, 1), measured, served(device) - 1))
}

/// A generator of numbers that look random and are the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// 512 places that are filled and emptied at random, with sizes from 512 B to 256 MiB; what comes before the first
/// round fills them.
fn mix(device: &Device, calls: u64) -> anyhow::Result<Case> {
    let mut random = Random(1);
    let sizes: Vec<_> = (0..4096)
        .map(|_| {
            let power = 1 << (9 + random.below(18));
            power + random.below(power)
        })
        .collect();
    let mut live: Vec<Option<Block>> = (0..512).map(|_| None).collect();
    let mut round = || -> anyhow::Result<f64> {
        let started = Instant::now();
        for (_, &size) in (0..calls).zip(sizes.iter().cycle()) {
            let place = &mut live[random.below(512) as usize];
            *place = match place.take() {
                Some(_) => None,
                None => Some(device.allocate(size)?),
            };
        }
        Ok(per_pair(started.elapsed(), calls))
    };
    round()?;
    let before = served(device);
    let measured = rounds(round)?;
    Ok(Case::new("mix512", (0, 1), measured, served(device) - before))
}

fn from_threads(device: &Device, threads: usize, pairs: u64) -> anyhow::Result<Case> {
    drop(device.allocate(THREADS_BYTES)?);
    let measured = rounds(|| {
        let took = round_of_threads(device, threads, pairs)?;
        // The time for all pairs of all threads, as the device sees it.
        Ok(per_pair(took, pairs * threads as u64))
    })?;
    Ok(Case::new("threads", (THREADS_BYTES, threads), measured, served(device) - 1))
}

/// How long it is from the first pair of any thread to the last of any. Each thread looks at the clock itself: with few
/// pairs all may be done before another thread, which also waited for them to begin, runs again.
fn round_of_threads(device: &Device, threads: usize, pairs: u64) -> anyhow::Result<Duration> {
    let ready = Barrier::new(threads);
    let work = || -> anyhow::Result<(Instant, Instant)> {
        ready.wait();
        let started = Instant::now();
        for _ in 0..pairs {
            drop(device.allocate(THREADS_BYTES)?);
        }
        Ok((started, Instant::now()))
    };
    let times = std::thread::scope(|scope| -> anyhow::Result<Vec<_>> {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        };
        workers.into_iter().map(join).collect()
    })?;
    Ok(first_to_last(&times))
}

/// From the first beginning to the last end.
fn first_to_last(times: &[(Instant, Instant)]) -> Duration {
    let first = times.iter().map(|&(started, _)| started).min();
    let last = times.iter().map(|&(_, ended)| ended).max();
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
}

/// The driver's own allocators, for comparison.
fn driver_cases(ordinal: u32, pairs: u64, cases: &mut Vec<Case>) -> anyhow::Result<()> {
    let mut cuda = Cuda::open(ordinal)?;
    for bytes in SIZES {
        // Slow ones: fewer will do.
        let pairs = pairs.min(50);
        let measured = rounds(|| {
            let started = Instant::now();
            for _ in 0..pairs {
                let address = cuda.acquire(bytes)?;
                cuda.release(address)?;
            }
            Ok(per_pair(started.elapsed(), pairs))
        })?;
        cases.push(Case::new("cuda_malloc", (bytes, 1), measured, pairs * ROUNDS as u64));
    }
    for bytes in SIZES {
        let pairs = pairs.min(5_000);
        let address = cuda.acquire_from_pool(bytes, StreamId::DEFAULT)?;
        cuda.release_to_pool(address, StreamId::DEFAULT)?;
        let measured = rounds(|| {
            let started = Instant::now();
            for _ in 0..pairs {
                let address = cuda.acquire_from_pool(bytes, StreamId::DEFAULT)?;
                cuda.release_to_pool(address, StreamId::DEFAULT)?;
            }
            let took = started.elapsed();
            cuda.synchronize(StreamId::DEFAULT)?;
            Ok(per_pair(took, pairs))
        })?;
        cases.push(Case::new("cuda_malloc_async", (bytes, 1), measured, pairs * ROUNDS as u64));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_its_median_between_the_least_and_the_most() {
        let case = Case::new("pair", (512, 1), [5.0, 1.0, 3.0, 9.0, 2.0], 10);
        assert_eq!((case.ns_least, case.ns, case.ns_most), (1.0, 3.0, 9.0));
        assert_eq!((case.rounds, case.allocations), (5, 2));
    }

    #[test]
    fn threads_are_timed_from_the_first_beginning_to_the_last_end() {
        let now = Instant::now();
        let at = |ns| now + Duration::from_nanos(ns);
        let times = [(at(40), at(90)), (at(20), at(70)), (at(30), at(50))];
        assert_eq!(first_to_last(&times), Duration::from_nanos(70));
    }

    #[test]
    fn the_clock_runs_while_threads_work_however_few_pairs_there_are() {
        let device = Device::dry(CAPACITY).unwrap();
        drop(device.allocate(THREADS_BYTES).unwrap());
        let took = round_of_threads(&device, 4, 1).unwrap();
        assert!(took > Duration::ZERO);
        assert_eq!(served(&device), 5);
    }
}
