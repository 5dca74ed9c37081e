//! The settings under which a job needs least.
//!
//! In: a [`Job`] and the conditions. Out: a [`Tuning`]: every setting that was tried with its prediction,
//! best first, and how little memory the job can do with. Better is, in this order: no request fails;
//! less memory is reserved at the peak; fewer driver calls; fewer retries; the simpler setting.
//!
//! | setting | first tried | why |
//! | --- | --- | --- |
//! | none | | PyTorch's defaults |
//! | `expandable_segments` | `True` | segments that grow leave no rests behind |
//! | `max_split_size_mb` | 32, 64, 128, 256, 512, 1024 | large blocks are not cut up for small requests |
//! | `roundup_power2_divisions` | 2, 4, 8, 16, 32 | sizes that vary a little fit each other's blocks |
//! | `large_segment_size_mb` | 12, 32, 64 | smaller rests, or fewer; from 2.11 on |
//! | `garbage_collection_threshold` | 0.5, 0.7, 0.9 | gives back before the limit; only under one |
//!
//! Then what lies around the best: one of these changed by a step, added or left out. Settings of pinned
//! memory, locks and captures do not change what is reserved and are not tried; nor is
//! `per_process_memory_fraction`, which is a limit. All cores take part.

mod knobs;

mod parallel;

mod report;

mod squeeze;

use tonnage_engine::{Config, Policy, Release};

pub use squeeze::Need;

use crate::job::Job;
use crate::what_if::{Prediction, WhatIf};
use knobs::Knobs;
use parallel::predict_all;

/// How often the surroundings of the best are searched.
const REFINEMENTS: usize = 2;

/// How many of the best have their surroundings searched.
const REFINED: usize = 2;

/// What holds for every setting that is tried.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The release whose rules hold: only settings that it accepts are tried.
    pub release: Release,
    /// The settings that the job was recorded with, to compare.
    pub recorded: String,
    /// Most bytes to reserve, if there is a limit.
    pub limit: Option<u64>,
    /// Bytes of the device, if known.
    pub total: Option<u64>,
}

/// A setting and what becomes of the job under it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The settings, as a string.
    pub conf: String,
    /// The placement rules.
    pub policy: Policy,
    /// How the job goes.
    pub prediction: Prediction,
}

impl Candidate {
    /// Most bytes reserved.
    #[must_use]
    pub fn reserved_peak(&self) -> u64 {
        self.prediction.stats.max_memory_reserved()
    }

    /// Segments and pages obtained from the driver and given back.
    #[must_use]
    pub fn driver_calls(&self) -> i64 {
        self.prediction.stats.num_device_alloc + self.prediction.stats.num_device_free
    }

    /// How many settings it names.
    fn keys(&self) -> usize {
        self.conf.split(',').filter(|pair| !pair.is_empty()).count()
    }

    /// What it is ranked by: less is better.
    fn rank(&self) -> impl Ord + '_ {
        let stats = &self.prediction.stats;
        (
            (stats.num_ooms > 0, self.prediction.stopped),
            self.reserved_peak(),
            self.driver_calls(),
            stats.num_alloc_retries,
            (self.keys(), self.conf.len(), &self.conf),
        )
    }
}

/// Settings for a job, best first.
///
/// ```
/// use tonnage_replay::job::Job;
/// use tonnage_replay::recording::RecordingOptions;
/// use tonnage_replay::tune::{Conditions, tune};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
/// let file = tonnage_snapshot::open(path.as_ref())?;
/// let (outcome, job) = Job::read(&file, &RecordingOptions::default())?;
/// let conditions = Conditions {
///     release: outcome.release,
///     recorded: outcome.conf.clone(),
///     limit: None,
///     total: None,
/// };
/// let tuning = tune(&job, &conditions, &|_done, _of| {});
/// assert!(tuning.candidates[0].reserved_peak() <= tuning.recorded().unwrap().reserved_peak());
/// assert!(tuning.floor <= tuning.candidates[0].reserved_peak());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Most requested bytes that are live at once: no allocator can do with less.
    pub floor: u64,
    /// The limit that was in force.
    pub limit: Option<u64>,
    /// What was tried, best first.
    pub candidates: Vec<Candidate>,
    /// The least memory in which the job was found to get through.
    pub need: Option<Need>,
    recorded: String,
}

impl Tuning {
    /// The settings that the job was recorded with, among the others.
    #[must_use]
    pub fn recorded(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|it| it.conf == self.recorded && it.policy == Policy::Pytorch)
    }

    /// The best, if the job gets through under it.
    #[must_use]
    pub fn best(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|best| best.prediction.fits())
    }

    /// A setting with fewer keys than the best under which the job reserves hardly more.
    #[must_use]
    pub fn simpler(&self) -> Option<&Candidate> {
        let best = self.best()?;
        let hardly_more = best.reserved_peak() + best.reserved_peak() / 100;
        self.candidates
            .iter()
            .filter(|it| {
                it.prediction.fits() && it.reserved_peak() <= hardly_more && it.keys() < best.keys()
            })
            .min_by_key(|it| (it.keys(), it.reserved_peak()))
    }

    /// Bytes that the best reserves less at its peak than the recorded settings; 0 if the job does not
    /// get through under one of them.
    #[must_use]
    pub fn saving(&self) -> u64 {
        match (self.best(), self.recorded().filter(|it| it.prediction.fits())) {
            (Some(best), Some(now)) => now.reserved_peak().saturating_sub(best.reserved_peak()),
            _ => 0,
        }
    }
}

/// Tries the settings that matter. `progress` is told how many predictions are done, of how many by
/// now; from any thread.
#[must_use]
pub fn tune(
    job: &Job,
    conditions: &Conditions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Tuning {
    let candidates = search(job, conditions, progress);
    let stops = |it: &Candidate| !it.prediction.fits() || it.prediction.stats.num_alloc_retries > 0;
    // Under a limit that stops the best, what is reserved does not tell what is needed.
    let frugal = if conditions.limit.is_some() && candidates.first().is_some_and(stops) {
        let unlimited = Conditions { limit: None, ..conditions.clone() };
        search(job, &unlimited, progress).into_iter().next()
    } else {
        candidates.first().cloned()
    };
    let need = frugal.and_then(|frugal| squeeze::least(job, conditions, &frugal));
    let limit = candidates.first().and_then(|it| it.prediction.limit);
    Tuning { floor: job.floor(), limit, candidates, need, recorded: conditions.recorded.clone() }
}

/// Tries the recorded settings, the grid, and what lies around the best; best first.
fn search(
    job: &Job,
    conditions: &Conditions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<Candidate> {
    let mut tuner = Tuner { job, conditions, progress, tried: Vec::new(), candidates: Vec::new() };
    let mut confs = vec![conditions.recorded.clone()];
    confs.extend(knobs::grid(conditions.limit.is_some()).iter().map(Knobs::conf));
    tuner.try_all(confs);
    for _ in 0..REFINEMENTS {
        let best = tuner.candidates.iter().filter_map(|it| Knobs::read(&it.conf)).take(REFINED);
        let around: Vec<_> = best.flat_map(Knobs::around).map(|knobs| knobs.conf()).collect();
        tuner.try_all(around);
    }
    tuner.candidates
}

struct Tuner<'a> {
    job: &'a Job,
    conditions: &'a Conditions,
    progress: &'a (dyn Fn(usize, usize) + Sync),
    /// Settings that were tried, or that the release does not accept.
    tried: Vec<String>,
    /// Best first.
    candidates: Vec<Candidate>,
}

impl Tuner<'_> {
    /// Predicts under every setting that is new and that the release accepts.
    fn try_all(&mut self, confs: Vec<String>) {
        let (mut new, mut what_ifs) = (Vec::new(), Vec::new());
        for conf in confs {
            if self.tried.contains(&conf) {
                continue;
            }
            self.tried.push(conf.clone());
            let Some(config) = self.conditions.accepted(&conf) else { continue };
            for policy in Policy::ALL {
                new.push(conf.clone());
                what_ifs.push(self.conditions.what_if(config.clone(), policy));
            }
        }
        let done = self.candidates.len();
        let of = done + new.len();
        let predictions =
            predict_all(self.job, &what_ifs, &|more| (self.progress)(done + more, of));
        for ((conf, what_if), prediction) in new.into_iter().zip(what_ifs).zip(predictions) {
            self.candidates.push(Candidate { conf, policy: what_if.policy, prediction });
        }
        self.candidates.sort_by(|one, other| one.rank().cmp(&other.rank()));
    }
}

impl Conditions {
    /// The settings that the release makes of a string, if it accepts it.
    fn accepted(&self, conf: &str) -> Option<Config> {
        Config::parse(conf, self.release).ok()
    }

    fn what_if(&self, config: Config, policy: Policy) -> WhatIf {
        WhatIf { config, policy, limit: self.limit, total: self.total }
    }
}
