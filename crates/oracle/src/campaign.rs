//! Streams until enough commands were compared, by several workers.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tonnage_engine::Release;
use tonnage_engine::config::Nearest;

use crate::command::Stream;
use crate::compare::{Comparison, Cut, Cuts, Difference, Rules, Verdict, compare};
use crate::generate::{self, Features};
use crate::shrink::shrink;
use crate::{EngineSubject, Library, Subject, quirks};

/// How much, and of what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The version that is asked.
    pub version: String,
    /// Commands to compare, at least.
    pub commands: u64,
    /// Names the streams.
    pub seed: u64,
    /// The number of the first stream.
    pub first: u64,
    /// Drivers at once.
    pub workers: usize,
    /// Differences that are made small; the others are counted.
    pub shrink: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What was asked for.
    pub plan: Plan,
    /// The release whose rules the engine followed.
    pub nearest: Nearest,
    /// Streams played.
    pub streams: u64,
    /// Commands whose answers were compared.
    pub commands: u64,
    /// Streams cut, by reason.
    pub cut: Cuts,
    /// Streams whose order-dependent figures were left out.
    pub masked: u64,
    /// Streams whose histories have entries in another order.
    pub reordered: u64,
    /// Streams that differ.
    pub different: u64,
    /// The first of these, made small.
    pub differences: Vec<Found>,
    /// How long it took, without what is made small.
    pub time: Duration,
}

/// A stream that differs.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its number under the seed.
    pub number: u64,
    /// How many commands it had.
    pub length: usize,
    /// The smallest stream made of it that still differs.
    pub smallest: Stream,
    /// How that differs.
    pub difference: Difference,
}

/// What workers add up.
#[derive(Debug, Default)]
struct Sums {
    streams: u64,
    commands: u64,
    cut: Cuts,
    masked: u64,
    reordered: u64,
    different: u64,
    /// The streams that differ, by number, and how.
    found: Vec<(u64, Difference)>,
}

/// Two subjects that are asked the same.
#[derive(Debug)]
pub struct Pair<T, U> {
    /// Who is right.
    pub theirs: T,
    /// Who is compared.
    pub ours: U,
    /// What cannot be compared.
    pub rules: Rules,
}

impl<T: Subject, U: Subject> Pair<T, U> {
    /// Plays a stream on both and compares.
    ///
    /// # Errors
    ///
    /// If a subject fails.
    pub fn compare(&mut self, stream: &Stream) -> anyhow::Result<Comparison> {
        let theirs = self.theirs.play(stream)?;
        let ours = self.ours.play(stream)?;
        let mut comparison = compare(stream, &theirs, &ours, self.rules);
        if let Verdict::Different(difference) = &comparison.verdict
            && let Some(why) =
                quirks::explains(stream, difference, self.rules, [&theirs, &ours], &mut self.ours)?
        {
            comparison.verdict = Verdict::Cut { at: difference.at, why: why.to_owned() };
        }
        Ok(comparison)
    }

    /// The smallest stream with a verdict of the same kind: one that differs, or is cut for the same
    /// reason.
    ///
    /// # Errors
    ///
    /// If a subject fails.
    pub fn smallest(&mut self, stream: &Stream) -> anyhow::Result<(Stream, Verdict)> {
        let wanted = self.compare(stream)?.verdict;
        let alike = |verdict: &Verdict| match (verdict, &wanted) {
            (Verdict::Cut { why, .. }, Verdict::Cut { why: wanted, .. }) => why == wanted,
            (Verdict::Different(_), Verdict::Different(_)) => true,
            _ => false,
        };
        let mut failure = None;
        let smallest = shrink(stream, &mut |candidate| match self.compare(candidate) {
            Ok(comparison) => alike(&comparison.verdict),
            Err(error) => {
                failure.get_or_insert(error);
                false
            }
        });
        match failure {
            Some(error) => Err(error),
            None => Ok((smallest.clone(), self.compare(&smallest)?.verdict)),
        }
    }
}

/// A driver and the engine, with a release's rules.
///
/// # Errors
///
/// If the driver cannot be run.
pub fn pair(release: Release, driver: &Path) -> anyhow::Result<Pair<Library, EngineSubject>> {
    Ok(Pair {
        theirs: Library::start(driver)?,
        ours: EngineSubject::new(release),
        rules: Rules::of(release),
    })
}

/// Plays and compares as planned.
///
/// # Errors
///
/// If the driver fails: what PyTorch refuses is no failure.
pub fn run(plan: &Plan, driver: &Path) -> anyhow::Result<Summary> {
    let began = Instant::now();
    let nearest: Nearest = plan.version.parse()?;
    let release = nearest.release;
    let features = Features::of(release);
    let next = AtomicU64::new(plan.first);
    let compared = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let sums = Mutex::new(Sums::default());
    let worker = || -> anyhow::Result<()> {
        let mut pair = pair(release, driver)?;
        let mut own = Sums::default();
        while compared.load(Ordering::Relaxed) < plan.commands && !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let stream = generate::stream(plan.seed, number, features);
            let comparison = pair.compare(&stream).with_context(|| format!("stream {number}"));
            let comparison = comparison.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            compared.fetch_add(comparison.compared as u64, Ordering::Relaxed);
            own.count(number, comparison);
        }
        if let Ok(mut sums) = sums.lock() {
            sums.add(own);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.workers.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
        })
    })?;
    let mut sums = sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    sums.found.sort_unstable_by_key(|&(number, _)| number);
    let time = began.elapsed();
    let mut differences = Vec::new();
    if plan.shrink > 0 && !sums.found.is_empty() {
        let mut pair = pair(release, driver)?;
        for (number, difference) in sums.found.into_iter().take(plan.shrink) {
            let stream = generate::stream(plan.seed, number, features);
            let length = stream.commands.len();
            differences.push(match pair.smallest(&stream)? {
                (smallest, Verdict::Different(difference)) => {
                    Found { number, length, smallest, difference }
                }
                // PyTorch does not answer the same each time: the difference stands as it was.
                _ => Found { number, length, smallest: stream, difference },
            });
        }
    }
    Ok(Summary {
        plan: plan.clone(),
        nearest,
        streams: sums.streams,
        commands: sums.commands,
        cut: sums.cut,
        masked: sums.masked,
        reordered: sums.reordered,
        different: sums.different,
        differences,
        time,
    })
}

impl Sums {
    fn count(&mut self, number: u64, comparison: Comparison) {
        self.streams += 1;
        self.commands += comparison.compared as u64;
        self.masked += u64::from(comparison.leeway.masked);
        self.reordered += u64::from(comparison.leeway.reordered);
        match comparison.verdict {
            Verdict::Same => {}
            Verdict::Cut { why, .. } => self.count_cut(why, Cut { streams: 1, first: number }),
            Verdict::Different(difference) => {
                self.different += 1;
                self.found.push((number, difference));
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.streams += other.streams;
        self.commands += other.commands;
        self.masked += other.masked;
        self.reordered += other.reordered;
        self.different += other.different;
        self.found.extend(other.found);
        for (why, cut) in other.cut {
            self.count_cut(why, cut);
        }
    }

    fn count_cut(&mut self, why: String, cut: Cut) {
        let sum = self.cut.entry(why).or_insert(Cut { streams: 0, first: cut.first });
        *sum = sum.and(cut);
    }
}
