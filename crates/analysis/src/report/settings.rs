//! Which settings would have needed less, or would have served a request that failed, by replay.
//!
//! In:  a job, the conditions it ran under, the last request that failed.
//! Out: the settings that were tried, with what each reserves at its peak, and what they say of the failure.
//!
//! A replay costs as much as the job is long, so long jobs are tried under fewer settings: all that `tune` tries up to
//! [`TUNED`] calls, and up to [`TRIED`] where a request failed; else four settings up to [`TRIED`] or where one failed, and
//! expandable segments alone beyond.

use serde::Serialize;
use tonnage_replay::job::Job;
use tonnage_replay::tune::{Effort, Tuning, try_settings as try_each};
use tonnage_replay::{Outcome, Reach};

use super::ReportOptions;
use super::failure::{Asked, FailureAnswer, LastFailure, Tuned};

/// Calls of a job up to which every setting of `tune` is tried.
const TUNED: usize = 40_000;

/// Calls of a job up to which the usual four are tried.
const TRIED: usize = 300_000;

const USUAL: [&str; 4] =
    ["expandable_segments:True", "", "roundup_power2_divisions:8", "max_split_size_mb:256"];

/// What settings make of a job.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Most bytes reserved under the recorded settings, by the same replay.
    pub recorded: u64,
    /// The settings to name first: the simplest near the best, and such that the recorded release accepts; those recorded
    /// if none is better.
    pub best: String,
    /// Most bytes reserved under them.
    pub reserved: u64,
    /// The release from which on they exist, where the recording may be of an older one.
    pub needs_release: Option<String>,
    /// How far it is known how the job goes.
    pub known: Reach,
    /// How many settings were tried.
    pub settings: usize,
    /// Whether fewer were tried than `tonnage tune` would.
    pub shortened: bool,
}

impl Tried {
    /// Bytes that the best saves.
    #[must_use]
    pub fn saving(&self) -> u64 {
        self.recorded.saturating_sub(self.reserved)
    }

    fn of(tuning: &Tuning, outcome: &Outcome, shortened: bool) -> Option<Self> {
        let now = tuning.recorded()?;
        let lead = tuning.lead(&outcome.candidates);
        let best = lead.map_or(now, |lead| lead.candidate);
        let needs = lead.and_then(|lead| lead.needs);
        Some(Self {
            recorded: now.reserved_peak(),
            best: best.conf.clone(),
            reserved: best.reserved_peak(),
            needs_release: needs.map(|release| release.name().to_owned()),
            known: tuning.reach,
            settings: tuning.settings().count(),
            shortened: shortened || tuning.untried > 0,
        })
    }
}

pub(super) fn try_settings(
    job: &Job,
    outcome: &Outcome,
    last: Option<&LastFailure>,
    options: &ReportOptions,
) -> (Option<Tried>, Option<FailureAnswer>) {
    let calls = job.steps().len();
    let confs = match last {
        _ if calls <= TUNED => None,
        Some(_) if calls <= TRIED => None,
        Some(_) => Some(&USUAL[..]),
        None if calls <= TRIED => Some(&USUAL[..]),
        None => Some(&USUAL[..1]),
    };
    let effort = Effort { confs, until: Some(&options.until) };
    let asked = Asked { limit: options.limit, total: options.total };
    let tuned = Tuned::after(last, outcome, job, asked, effort, |job, conditions| {
        try_each(job, conditions, effort, &|_, _| {})
    });
    (Tried::of(&tuned.tuning, outcome, confs.is_some()), tuned.failure)
}
