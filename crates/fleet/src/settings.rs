//! The one setting that is best for all ranks.
//!
//! In:  a snapshot: what it reserves under each of [`SETTINGS`], by replay.
//!      Of all ranks: these.
//! Out: [`BestSetting`]: the setting under which the rank that reserves most reserves least.

use serde::{Deserialize, Serialize};
use tonnage_replay::Until;
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::tune::{Conditions, Effort, try_settings};
use tonnage_snapshot::SnapshotFile;

use crate::facts::Facts;
use crate::look::LookOptions;

/// Settings that every rank is replayed under, beside its own: what `tonnage tune` begins with.
const SETTINGS: [&str; 8] = [
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
];

/// What a rank reserves under a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// The settings string.
    pub conf: String,
    /// Most bytes reserved.
    pub reserved: u64,
    /// Whether every request is served.
    pub fits: bool,
    /// Whether it is what the rank was recorded with.
    pub recorded: bool,
}

/// The setting that is best for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BestSetting {
    /// The settings string; empty for the defaults.
    pub conf: String,
    /// Most bytes that any rank reserves under it.
    pub reserved: u64,
    /// The same under the settings that each was recorded with.
    pub recorded: u64,
    /// How many ranks were replayed; those without a history cannot be.
    pub ranks: usize,
    /// How many of them have every request served.
    pub fits: usize,
    /// How many settings all of them were replayed under.
    pub settings: usize,
}

/// What a snapshot reserves under each setting; nothing without a history.
pub(crate) fn try_all(
    file: &SnapshotFile,
    device: u32,
    options: &LookOptions,
    until: &Until,
) -> Vec<Tried> {
    let recording = RecordingOptions {
        limit: options.limit,
        total: options.total,
        release: options.release,
        ordinal: Some(device as usize),
    };
    let Ok((outcome, job)) = Job::read_until(file, &recording, until) else { return Vec::new() };
    let conditions = Conditions {
        release: outcome.release,
        recorded: outcome.conf.clone(),
        limit: options.limit,
        total: options.total,
    };
    let effort = Effort { confs: Some(&SETTINGS), until: Some(until) };
    let tuning = try_settings(&job, &conditions, effort, &|_, _| {});
    let tried = tuning.settings().map(|it| Tried {
        conf: it.conf.clone(),
        reserved: it.reserved_peak(),
        fits: it.prediction.fits(),
        recorded: it.conf == outcome.conf,
    });
    let mut tried: Vec<_> = tried.collect();
    tried.sort_by(|a, b| a.conf.cmp(&b.conf));
    tried
}

impl BestSetting {
    /// The best for these ranks; none if none was replayed. Where no setting serves all, the one that serves most ranks.
    pub(crate) fn of<'a>(ranks: impl Iterator<Item = &'a Facts>) -> Option<Self> {
        let ranks: Vec<_> = ranks.filter(|it| !it.tried.is_empty()).collect();
        let under = |facts: &Facts, conf: &str| {
            facts.tried.iter().find(|it| it.conf == conf).map(|it| (it.reserved, it.fits))
        };
        let of = |conf: &str| {
            let all: Option<Vec<_>> = ranks.iter().map(|facts| under(facts, conf)).collect();
            let all = all.filter(|all| !all.is_empty())?;
            let worst = all.iter().map(|it| it.0).max()?;
            let fits = all.iter().filter(|it| it.1).count();
            Some((worst, fits))
        };
        let tried: Vec<_> =
            SETTINGS.into_iter().filter_map(|conf| Some((conf, of(conf)?))).collect();
        let best = tried
            .iter()
            .min_by_key(|(conf, (worst, fits))| (ranks.len() - fits, *worst, conf.len(), *conf));
        let &(conf, (reserved, fits)) = best?;
        let own = |facts: &&Facts| facts.tried.iter().find(|it| it.recorded).map(|it| it.reserved);
        Some(Self {
            conf: conf.to_owned(),
            reserved,
            recorded: ranks.iter().filter_map(own).max().unwrap_or(0),
            ranks: ranks.len(),
            fits,
            settings: tried.len(),
        })
    }
}
