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
//!
//! The policy `pages` stands among them, to compare: PyTorch has no setting for it, so that it is never the advice.

mod knobs;

mod parallel;

mod report;

mod squeeze;

use tonnage_engine::{Config, Policy, Release, Slack};

pub use squeeze::Need;

use crate::Reach;
use crate::job::Job;
use crate::until::Until;
use crate::what_if::{Prediction, WhatIf};
use knobs::Knobs;
use parallel::predict_all;

/// How often the surroundings of the best are searched.
const REFINEMENTS: usize = 2;

/// How many of the best have their surroundings searched.
const REFINED: usize = 2;

/// How many of the best are squeezed to find the least memory that is needed.
const SQUEEZED: usize = 3;

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

    /// Calls by which memory is obtained from the driver and given back; where pages move, every call about one.
    #[must_use]
    pub fn driver_calls(&self) -> i64 {
        if self.policy == Policy::Pytorch {
            return self.prediction.stats.num_device_alloc + self.prediction.stats.num_device_free;
        }
        i64::try_from(self.prediction.page_calls.count()).unwrap_or(i64::MAX)
    }

    /// Nanoseconds that calls about pages take, of expandable segments or pages that move.
    #[must_use]
    pub fn page_ns(&self) -> u64 {
        self.prediction.page_calls.nanoseconds()
    }

    /// How many settings it names.
    fn keys(&self) -> usize {
        self.conf.split(',').filter(|pair| !pair.is_empty()).count()
    }

    /// What it is ranked by: less is better.
    fn rank(&self) -> impl Ord + '_ {
        let stats = &self.prediction.stats;
        (
            (stats.failed_requests() > 0, self.prediction.stopped()),
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
    /// What was tried, best first: settings of PyTorch's, and the policy `pages`.
    pub candidates: Vec<Candidate>,
    /// The least memory in which the job was found to get through.
    pub need: Option<Need>,
    /// What of the job the recording has: so far it is known how it goes.
    pub reach: Reach,
    /// Settings that there was no time for.
    pub untried: usize,
    recorded: String,
}

/// Which settings are tried, and for how long.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort<'a> {
    /// The recorded settings and these alone; without, all that the module's table names.
    pub confs: Option<&'a [&'a str]>,
    /// When to stop, if that is not done by then.
    pub until: Option<&'a Until>,
}

/// The settings to name first.
#[derive(Clone, Copy, Debug)]
pub struct Lead<'a> {
    /// The settings, and how the job goes under them.
    pub candidate: &'a Candidate,
    /// The oldest release that accepts them, where a release that may have made the recording does not.
    pub needs: Option<Release>,
}

impl Tuning {
    /// The settings that the job was recorded with, among the others.
    #[must_use]
    pub fn recorded(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|it| it.conf == self.recorded && it.policy == Policy::Pytorch)
    }

    /// What can be set in PyTorch, best first.
    pub fn settings(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|it| it.policy == Policy::Pytorch)
    }

    /// The best setting, if the job gets through under it.
    #[must_use]
    pub fn best(&self) -> Option<&Candidate> {
        self.settings().find(|it| it.prediction.fits())
    }

    /// Whether the job gets through under the recorded settings, and no request fails.
    fn goes_as_recorded(&self) -> bool {
        let now = self.recorded();
        now.is_some_and(|now| now.prediction.fits() && now.prediction.stats.failed_requests() == 0)
    }

    /// The settings to name first, if the job gets through under any: the simplest within 1 % of the best that every
    /// release accepts that may have made the recording. One that not all of them accept comes first only if none of
    /// the others helps.
    #[must_use]
    pub fn lead(&self, releases: &[Release]) -> Option<Lead<'_>> {
        let best = self.best()?;
        let accepts = |it: &Candidate, release: Release| Config::parse(&it.conf, release).is_ok();
        let everywhere = |it: &Candidate| releases.iter().all(|&release| accepts(it, release));
        let of_class = |it: &&Candidate| {
            let fails = |it: &Candidate| it.prediction.stats.failed_requests() > 0;
            it.prediction.fits() && fails(it) == fails(best)
        };
        let simplest = |accepted: &dyn Fn(&Candidate) -> bool| {
            let good = || self.settings().filter(of_class).filter(|it| accepted(it));
            let least = good().map(Candidate::reserved_peak).min()?;
            let hardly_more = least.saturating_add(least / 100);
            let simple = good().filter(|it| it.reserved_peak() <= hardly_more);
            simple.min_by_key(|it| (it.keys(), it.reserved_peak()))
        };
        // Where the job goes through as it is, settings help that reserve noticeably less.
        let helps = |it: &&Candidate| {
            let now = self.recorded().map_or(0, Candidate::reserved_peak);
            !self.goes_as_recorded() || it.reserved_peak() <= now - now / 100
        };
        if let Some(candidate) = simplest(&everywhere).filter(helps) {
            return Some(Lead { candidate, needs: None });
        }
        let candidate = simplest(&|_| true)?;
        let newest = releases.iter().copied().find(|&release| accepts(candidate, release));
        Some(Lead { candidate, needs: newest.filter(|_| !everywhere(candidate)) })
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

/// Tries the settings that matter, and finds how little memory the job needs. `progress` is told how many predictions
/// are done, of how many by now; from any thread.
#[must_use]
pub fn tune(
    job: &Job,
    conditions: &Conditions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Tuning {
    tune_until(job, conditions, &Until::default(), progress)
}

/// The same, unless it is to end before: then with what was tried by then.
#[must_use]
pub fn tune_until(
    job: &Job,
    conditions: &Conditions,
    until: &Until,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Tuning {
    let effort = Effort { until: Some(until), ..Effort::default() };
    let mut tuning = try_settings(job, conditions, effort, progress);
    let stops = |it: &Candidate| !it.prediction.fits() || it.prediction.stats.num_alloc_retries > 0;
    // Under a limit that stops the best, what is reserved does not tell what is needed.
    let unlimited = (conditions.limit.is_some() && tuning.settings().next().is_some_and(stops))
        .then(|| {
            let unlimited = Conditions { limit: None, ..conditions.clone() };
            try_settings(job, &unlimited, effort, progress)
        });
    let frugal = unlimited.as_ref().unwrap_or(&tuning).settings().take(SQUEEZED);
    let within = tuning.best().filter(|_| unlimited.is_some());
    let least = frugal.chain(within).filter_map(|it| squeeze::least(job, conditions, it, until));
    let mut need = least.min_by_key(|need| need.bytes);
    // It gets through within the limit: what was seen there is enough, whatever a step makes of it.
    if let (Some(limit), Some(best)) = (tuning.limit, tuning.best())
        && need.as_ref().is_none_or(|need| need.bytes > limit)
    {
        need = Some(Need { bytes: limit, conf: best.conf.clone() });
    }
    tuning.need = need;
    tuning
}

/// Tries settings alone: the recorded ones, the grid, and what lies around the best; or those that `effort` names.
#[must_use]
pub fn try_settings(
    job: &Job,
    conditions: &Conditions,
    effort: Effort<'_>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Tuning {
    let never = Until::default();
    let until = effort.until.unwrap_or(&never);
    let mut tuner = Tuner {
        job,
        conditions,
        until,
        progress,
        tried: Vec::new(),
        candidates: Vec::new(),
        untried: 0,
    };
    let mut confs = vec![conditions.recorded.clone()];
    match effort.confs {
        Some(these) => confs.extend(these.iter().map(|&conf| conf.to_owned())),
        None => confs.extend(knobs::grid(conditions.limit.is_some()).iter().map(Knobs::conf)),
    }
    tuner.try_all(confs, Policy::Pytorch);
    for _ in 0..if effort.confs.is_some() { 0 } else { REFINEMENTS } {
        let best = tuner.candidates.iter().filter_map(|it| Knobs::read(&it.conf)).take(REFINED);
        let around: Vec<_> = best.flat_map(Knobs::around).map(|knobs| knobs.conf()).collect();
        tuner.try_all(around, Policy::Pytorch);
    }
    if effort.confs.is_none() {
        tuner.try_all(vec![String::new()], Policy::Pages(Slack::DEFAULT));
    }
    let Tuner { candidates, untried, .. } = tuner;
    Tuning {
        floor: job.floor(),
        limit: candidates.first().and_then(|it| it.prediction.limit),
        candidates,
        need: None,
        reach: job.reach(),
        untried,
        recorded: conditions.recorded.clone(),
    }
}

struct Tuner<'a> {
    job: &'a Job,
    conditions: &'a Conditions,
    until: &'a Until,
    progress: &'a (dyn Fn(usize, usize) + Sync),
    /// What was tried, or is not accepted by the release.
    tried: Vec<(String, Policy)>,
    /// Best first.
    candidates: Vec<Candidate>,
    /// How many there was no time for.
    untried: usize,
}

impl Tuner<'_> {
    /// Predicts under every setting that is new, that the release accepts and that can be followed.
    fn try_all(&mut self, confs: Vec<String>, policy: Policy) {
        let (mut new, mut what_ifs) = (Vec::new(), Vec::new());
        for conf in confs {
            let this = (conf.clone(), policy);
            if self.tried.contains(&this) {
                continue;
            }
            self.tried.push(this);
            let Some(config) = self.conditions.accepted(&conf) else { continue };
            let what_if = self.conditions.what_if(config, policy);
            // What an engine cannot follow has no prediction.
            if what_if.refusal().is_some() {
                continue;
            }
            new.push(conf);
            what_ifs.push(what_if);
        }
        let done = self.candidates.len();
        let of = done + new.len();
        let predictions =
            predict_all(self.job, &what_ifs, self.until, &|more| (self.progress)(done + more, of));
        for ((conf, what_if), prediction) in new.into_iter().zip(what_ifs).zip(predictions) {
            match prediction {
                Some(prediction) => {
                    self.candidates.push(Candidate { conf, policy: what_if.policy, prediction });
                }
                None => self.untried += 1,
            }
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
        WhatIf { policy, limit: self.limit, total: self.total, ..WhatIf::new(config) }
    }
}
