//! A job under other settings.
//!
//! In: a [`Job`] and a [`WhatIf`]: settings, policy, limit. Out: a [`Prediction`]: the figures that the
//! job would have had, and the first request that would have failed. The engine serves the job's
//! requests on a device without memory, whose addresses follow what NVIDIA's driver was seen to do;
//! where a block was found unused by other streams, it is found so here.
//!
//! What no prediction can know: what a program does otherwise once a request fails, or no longer
//! fails.

mod clock;

mod run;

mod history;

mod report;

mod upgrade;

use tonnage_device::{Arenas, Dry, PageCalls, PagePart, Placement};
use tonnage_engine::config::{Backend, Reserve};
use tonnage_engine::{Config, Engine, Policy, Release, Stats};
use tonnage_events::{SnapshotSegment, StreamId};

pub use report::{AtPeak, RecordedTimes, Report};
pub use tonnage_engine::{Waste, WasteKind, WastePart, waste_parts};
pub use upgrade::{Figures, UnderRelease, Upgrade, UpgradeError, Verdict};

use crate::job::Job;
use crate::until::Until;
use clock::Clock;
use run::Run;

/// Bytes of the device if no one says: more than any has. It sizes expandable ranges, and what a damaged
/// file may ask for.
const ASSUMED_TOTAL: u64 = 1 << 40;

/// Most bytes that can be had, whatever is said: pages are kept one by one.
const MOST_BYTES: u64 = 1 << 44;

/// How many steps are made between two looks at the clock.
const STEPS_AT_ONCE: usize = 1 << 12;

/// The conditions of a prediction.
///
/// ```
/// use tonnage_engine::{Config, Release};
/// use tonnage_replay::job::Job;
/// use tonnage_replay::recording::RecordingOptions;
/// use tonnage_replay::what_if::WhatIf;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
/// let file = tonnage_snapshot::open(path.as_ref())?;
/// let (outcome, job) = Job::read(&file, &RecordingOptions::default())?;
/// assert_eq!(outcome.stats.max_memory_reserved(), 218_103_808);
///
/// let config = Config::parse("expandable_segments:True", Release::default())?;
/// let prediction = WhatIf::new(config).predict(&job);
/// assert_eq!(prediction.stats.max_memory_reserved(), 213_909_504); // what PyTorch then measured
/// assert_eq!(prediction.oom, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// The settings.
    pub config: Config,
    /// The placement rules.
    pub policy: Policy,
    /// Most bytes to reserve, if there is a limit.
    pub limit: Option<u64>,
    /// Bytes of the device, if known. A limit is then taken as PyTorch sets it, as a fraction of these.
    pub total: Option<u64>,
    /// The rule for addresses, which decide among equal free blocks.
    pub placement: Placement,
}

impl WhatIf {
    /// PyTorch's rules under these settings, without a limit.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let placement = Placement::Arenas(Arenas::default());
        Self { config, policy: Policy::default(), limit: None, total: None, placement }
    }

    /// The same under a limit.
    #[must_use]
    pub fn with_limit(self, limit: impl Into<Option<u64>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// Why nothing can be predicted under these conditions, if so.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let config = &self.config;
        if config.backend() != Backend::Native {
            return Some(format!(
                "backend:{} is another allocator: only PyTorch's native one is followed here",
                config.backend()
            ));
        }
        let unknown = self.limit.is_none() && self.total.is_none();
        if config.per_process_memory_fraction() < 1.0 && unknown {
            return Some(
                "per_process_memory_fraction is a share of the device's memory: say how much that is with --total, \
                 or give the limit itself"
                    .to_owned(),
            );
        }
        if config.expandable_segments() && shares_the_device(config) && self.total.is_none() {
            return Some(
                "expandable_segments_reserve is a share of the device's memory: say how much that is with --total"
                    .to_owned(),
            );
        }
        self.engine().check_pages().err().map(|error| error.to_string())
    }

    /// Serves the job and says how that goes.
    #[must_use]
    pub fn predict(&self, job: &Job) -> Prediction {
        let mut run = Run::new(self.engine(), job);
        for step in job.steps() {
            if run.step(step).is_break() {
                break;
            }
        }
        run.prediction(job)
    }

    /// Serves the job `times` times on one allocator, freeing what is left in between, and says how each time went: the
    /// driver's calls of that time alone.
    #[must_use]
    pub fn predict_again(&self, job: &Job, times: usize) -> Vec<PageCalls> {
        self.predict_passes(job, times, &[]).into_iter().map(|pass| pass.calls).collect()
    }

    /// The same, with the calls of each iteration; `starts` are the entries with which these begin, in order.
    #[must_use]
    pub fn predict_passes(&self, job: &Job, times: usize, starts: &[usize]) -> Vec<Pass> {
        let mut run = Run::new(self.engine(), job);
        let mut passes = Vec::with_capacity(times);
        for _ in 0..times {
            let before = run.page_calls();
            // The calls before each iteration.
            let mut began = Vec::with_capacity(starts.len());
            for step in job.steps() {
                while starts.get(began.len()).is_some_and(|&start| start <= step.entry) {
                    began.push(run.page_calls());
                }
                if run.step(step).is_break() {
                    break;
                }
            }
            let end = run.page_calls();
            // Those that begin after the last step, or after the one that failed, have no calls.
            began.resize(starts.len(), end);
            let ends = began.iter().copied().skip(1).chain([end]);
            let iterations = began.iter().zip(ends).map(|(&start, end)| end - start).collect();
            passes.push(Pass { calls: end - before, iterations });
            run.begin_again();
        }
        passes
    }

    /// The same, unless it takes longer than until then.
    #[must_use]
    pub fn predict_until(&self, job: &Job, until: &Until) -> Option<Prediction> {
        let mut run = Run::new(self.engine(), job);
        for steps in job.steps().chunks(STEPS_AT_ONCE) {
            if until.is_over() {
                return None;
            }
            if steps.iter().any(|step| run.step(step).is_break()) {
                break;
            }
        }
        Some(run.prediction(job))
    }

    /// The state when reserved memory first was at its peak: after the request that grew it. Serves
    /// the job once more, up to there.
    #[must_use]
    pub fn peak(&self, job: &Job, prediction: &Prediction) -> Moment {
        let mut run = Run::new(self.engine(), job);
        let steps = prediction.peak.map_or(0, |peak| peak.step + 1);
        for step in &job.steps()[..steps.min(job.steps().len())] {
            if run.step(step).is_break() {
                break;
            }
        }
        let entry = prediction.peak.map_or(0, |peak| peak.entry);
        let stream = prediction.peak.map_or(StreamId::DEFAULT, |peak| peak.stream);
        Moment { entry, stream, segments: run.segments() }
    }

    fn engine(&self) -> Engine<Clock> {
        let total = self.total.unwrap_or(ASSUMED_TOTAL);
        let dry = Dry::new(total)
            .with_capacity(total.min(MOST_BYTES))
            .with_placement(self.placement.clone());
        let mut engine = Engine::with_policy(Clock::new(dry), self.config.clone(), self.policy);
        engine.explain_failures(false);
        let limit = self.limit.map(|limit| match self.total {
            Some(total) if total > 0 => in_force(limit, total, self.config.release()),
            _ => limit,
        });
        engine.set_limit(limit.or(engine.limit()));
        engine
    }
}

/// Whether an expandable segment may reach over a share of the device.
fn shares_the_device(config: &Config) -> bool {
    let by_class = config.expandable_segments_reserve_by_class().values().copied();
    let mut reserves = config.expandable_segments_reserve().into_iter().chain(by_class);
    reserves.any(|reserve| matches!(reserve, Reserve::Fraction(_)))
}

/// The limit that PyTorch makes of this one: it only takes fractions of the device's total.
fn in_force(limit: u64, total: u64, release: Release) -> u64 {
    release.memory_limit(total, limit as f64 / total as f64)
}

/// The driver's calls about pages when a job is played.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// All of them.
    pub calls: PageCalls,
    /// Those of each iteration, in order. What precedes the first is in none.
    pub iterations: Vec<PageCalls>,
}

/// How a job goes under other settings.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The figures at the end, or where the job stops.
    pub stats: Stats,
    /// Most requested bytes that are live at once in the whole job: no allocator can do with less.
    pub floor: u64,
    /// The limit that was in force.
    pub limit: Option<u64>,
    /// The first request that fails.
    pub oom: Option<FirstOom>,
    /// The entry of the failure that ends the job, if one does: one at which the recorded job died, or one that was not
    /// recorded. What a program does after such a one is not known; an error that no one catches ends it.
    pub stopped_at: Option<usize>,
    /// Requests that failed when the job was recorded and are served now.
    pub served_after_all: usize,
    /// Where reserved memory first was at its peak; none if nothing was reserved.
    pub peak: Option<Peak>,
    /// The driver's calls about pages, and what they cost.
    pub page_calls: PageCalls,
    /// What lay under large blocks.
    pub large_blocks: LargeBlocks,
}

/// Bytes of large blocks, each counted when it is handed out, and those of them in small pages, under which copies are
/// slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LargeBlocks {
    /// All bytes.
    pub bytes: u64,
    /// Those in pages of less than 4 MiB.
    pub in_small_pages: u64,
}

impl LargeBlocks {
    /// From this size on a block is large.
    pub const FROM: u64 = 64 << 20;

    /// Pages are small below this size.
    const SMALL_PAGE: u64 = 4 << 20;

    fn add(&mut self, bytes: u64, pages: impl Iterator<Item = PagePart>) {
        let small = pages.filter(|part| part.page_size < Self::SMALL_PAGE);
        self.in_small_pages += small.map(|part| part.bytes).sum::<u64>();
        self.bytes += bytes;
    }
}

impl Prediction {
    /// Whether a failure ends the job.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// Whether the job gets through, within the limit. PyTorch compares the limit with a segment's size
    /// where it maps whole pages, so that expandable segments may exceed it.
    #[must_use]
    pub fn fits(&self) -> bool {
        let within = self.limit.is_none_or(|limit| self.stats.max_memory_reserved() <= limit);
        !self.stopped() && within
    }
}

/// The first request that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstOom {
    /// The entry of the recording that ends the request.
    pub event: usize,
    /// Requests served before it.
    pub request: u64,
    /// Bytes asked for; rounded, if the request failed when it was recorded too.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// Whether it failed when it was recorded too, so that it is known how the job went on.
    pub recorded: bool,
}

/// Where reserved memory first was at its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The step of the job that grew it.
    pub step: usize,
    /// The entry of the recording that this step comes from.
    pub entry: usize,
    /// The stream that grew.
    pub stream: StreamId,
}

/// The allocator's state at one entry of the recording.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The entry.
    pub entry: usize,
    /// The stream of the last request.
    pub stream: StreamId,
    /// Segments and their blocks by ascending address.
    pub segments: Vec<SnapshotSegment>,
}

impl Moment {
    /// What of the reserved memory was of no use then.
    #[must_use]
    pub fn waste(&self, config: &Config) -> Waste {
        waste_parts(&self.segments, self.stream, config).collect()
    }
}
