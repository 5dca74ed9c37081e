//! `tonnage bench`: the allocator's hot path on this machine, next to the driver's own.

use std::fmt::Write;
use std::str::FromStr;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tonnage::device::Device as _;
use tonnage::device::cuda::Cuda;
use tonnage::engine::{RecordOptions, StackDepth};
use tonnage::memory::{Block, Device};
use tonnage::{Bytes, StreamId};

use crate::Answer;
use crate::output::print;

/// Measure the allocator's hot path on this machine
///
/// Pairs of allocate and free at five sizes, a mix of 512 live blocks, 64 KiB pairs from several
/// threads, and what recording history costs; on a GPU next to the driver's own allocators. Statistics
/// are always on.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Where to measure: `dry`, `host` or `cuda:N`
    #[arg(long, default_value = "dry", value_name = "DEVICE")]
    device: DeviceName,

    /// Pairs for each case
    #[arg(long, default_value_t = 200_000, value_name = "N")]
    pairs: u64,

    /// Print one JSON object a line
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

/// Bytes of the pairs.
const SIZES: [u64; 5] = [512, 64 << 10, 1 << 20, 32 << 20, 1 << 30];

/// Bytes that threads ask for.
const THREADS_BYTES: u64 = 64 << 10;

/// Room for the mix of 512 blocks of up to 128 MiB; costs nothing until touched.
const CAPACITY: &str = "120 GiB";

/// One measurement.
#[derive(Debug, Serialize)]
struct Case {
    case: &'static str,
    bytes: u64,
    threads: usize,
    /// Nanoseconds for each pair; for the mix, for each call.
    ns: f64,
    /// Allocations that were served, to show that all did the same work.
    allocations: u64,
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
        let pairs = if depth == StackDepth::Backtrace { pairs.min(20_000) } else { pairs };
        cases.push(pair(&device, case, THREADS_BYTES, pairs)?);
    }
    if let DeviceName::Cuda(ordinal) = arguments.device {
        driver_cases(ordinal, pairs, &mut cases)?;
    }
    let mut text = String::new();
    for case in &cases {
        if arguments.json {
            text += &serde_json::to_string(case)?;
            text.push('\n');
        } else {
            let Case { case, bytes, threads, ns, .. } = case;
            let size = if *bytes == 0 { "mixed".to_owned() } else { Bytes(*bytes).to_string() };
            let _ = writeln!(text, "{case:<18} {size:>12} {threads:>3} threads {ns:>12.1} ns");
        }
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

fn per_pair(started: Instant, pairs: u64) -> f64 {
    started.elapsed().as_nanos() as f64 / pairs as f64
}

fn served(device: &Device) -> u64 {
    device.memory().stats().allocation.all.allocated.cast_unsigned()
}

fn pair(device: &Device, case: &'static str, bytes: u64, pairs: u64) -> anyhow::Result<Case> {
    drop(device.allocate(bytes)?);
    let started = Instant::now();
    for _ in 0..pairs {
        drop(device.allocate(bytes)?);
    }
    let ns = per_pair(started, pairs);
    let allocations = served(device) - 1;
    Ok(Case { case, bytes, threads: 1, ns, allocations })
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

/// 512 places that are filled and emptied at random, with sizes from 512 B to 256 MiB; the second of
/// two rounds counts.
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
        Ok(per_pair(started, calls))
    };
    round()?;
    let before = served(device);
    let ns = round()?;
    let allocations = served(device) - before;
    Ok(Case { case: "mix512", bytes: 0, threads: 1, ns, allocations })
}

fn from_threads(device: &Device, threads: usize, pairs: u64) -> anyhow::Result<Case> {
    drop(device.allocate(THREADS_BYTES)?);
    let ready = Barrier::new(threads + 1);
    let started = std::thread::scope(|scope| -> anyhow::Result<Instant> {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<()> {
                    ready.wait();
                    for _ in 0..pairs {
                        drop(device.allocate(THREADS_BYTES)?);
                    }
                    Ok(())
                })
            })
            .collect();
        ready.wait();
        let started = Instant::now();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(started)
    })?;
    // The time for all pairs of all threads, as the device sees it.
    let ns = per_pair(started, pairs * threads as u64);
    let allocations = served(device) - 1;
    Ok(Case { case: "threads", bytes: THREADS_BYTES, threads, ns, allocations })
}

/// The driver's own allocators, for comparison.
fn driver_cases(ordinal: u32, pairs: u64, cases: &mut Vec<Case>) -> anyhow::Result<()> {
    let mut cuda = Cuda::open(ordinal)?;
    for bytes in SIZES {
        // Slow ones: fewer will do.
        let pairs = pairs.min(200);
        let started = Instant::now();
        for _ in 0..pairs {
            let address = cuda.acquire(bytes)?;
            cuda.release(address)?;
        }
        let ns = per_pair(started, pairs);
        cases.push(Case { case: "cuda_malloc", bytes, threads: 1, ns, allocations: pairs });
    }
    for bytes in SIZES {
        let pairs = pairs.min(20_000);
        let address = cuda.acquire_from_pool(bytes, StreamId::DEFAULT)?;
        cuda.release_to_pool(address, StreamId::DEFAULT)?;
        let started = Instant::now();
        for _ in 0..pairs {
            let address = cuda.acquire_from_pool(bytes, StreamId::DEFAULT)?;
            cuda.release_to_pool(address, StreamId::DEFAULT)?;
        }
        let ns = per_pair(started, pairs);
        cuda.synchronize(StreamId::DEFAULT)?;
        cases.push(Case { case: "cuda_malloc_async", bytes, threads: 1, ns, allocations: pairs });
    }
    Ok(())
}
