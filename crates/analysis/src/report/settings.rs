//! Which settings would have needed less, by replay.
//!
//! In:  a job and the conditions it ran under.
//! Out: the settings that were tried, with what each reserves at its peak.
//!
//! A replay costs as much as the job is long, so long jobs are tried under fewer settings: the whole of
//! `tune` up to [`TUNED`] calls, four settings up to [`TRIED`], and expandable segments alone beyond.

use serde::Serialize;
use tonnage_engine::{Config, Policy, Release};
use tonnage_replay::job::Job;
use tonnage_replay::tune::{Conditions, tune};
use tonnage_replay::what_if::WhatIf;

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
    /// The best settings that were found; those recorded if none is better.
    pub best: String,
    /// Most bytes reserved under them.
    pub reserved: u64,
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
}

pub(super) fn try_settings(
    job: &Job,
    release: Release,
    recorded: &str,
    limit: Option<u64>,
    total: Option<u64>,
) -> Option<Tried> {
    let calls = job.steps().len();
    if calls <= TUNED {
        let recorded = recorded.to_owned();
        let conditions = Conditions { release, recorded, limit, total };
        let tuning = tune(job, &conditions, &|_, _| {});
        let now = tuning.recorded()?;
        let best = tuning.simpler().or(tuning.best()).unwrap_or(now);
        return Some(Tried {
            recorded: now.reserved_peak(),
            best: best.conf.clone(),
            reserved: best.reserved_peak(),
            settings: tuning.candidates.len(),
            shortened: false,
        });
    }
    let usual = if calls <= TRIED { &USUAL[..] } else { &USUAL[..1] };
    let mut confs = vec![recorded];
    confs.extend(usual.iter().filter(|&&conf| conf != recorded));
    let accepted: Vec<_> = confs
        .into_iter()
        .filter_map(|conf| Some((conf, Config::parse(conf, release).ok()?)))
        .collect();
    let peaks: Vec<Option<u64>> = std::thread::scope(|scope| {
        let runs: Vec<_> = accepted
            .iter()
            .map(|(_, config)| {
                let policy = Policy::default();
                let what_if = WhatIf { config: config.clone(), policy, limit, total };
                scope.spawn(move || {
                    let prediction = what_if.predict(job);
                    let within = prediction.fits();
                    within.then(|| prediction.stats.max_memory_reserved())
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().ok().flatten()).collect()
    });
    let now = peaks.first().copied().flatten()?;
    let found = accepted.iter().zip(&peaks).filter_map(|((conf, _), peak)| Some((*conf, (*peak)?)));
    let (best, reserved) = found.min_by_key(|&(_, peak)| peak)?;
    Some(Tried {
        recorded: now,
        best: best.to_owned(),
        reserved,
        settings: accepted.len(),
        shortened: true,
    })
}
