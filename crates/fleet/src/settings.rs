//! The one setting that is best for all ranks.
//!
//! In:  a snapshot: what it reserves under each of [`SETTINGS`], by replay.
//!      Of all ranks: these.
//! Out: [`BestSetting`]: the setting under which the rank that reserves most reserves least.
//!
//! A replay in which a request fails ends early and reserves less for it: its bytes are compared with nothing.

use std::collections::BTreeSet;

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
    /// The settings string; empty for the defaults, and if no setting serves a rank.
    pub conf: String,
    /// Most bytes that any rank reserves under it, of those that have every request served; none if there is none.
    pub reserved: Option<u64>,
    /// The same under the settings that each was recorded with; none if a request of a rank fails under them.
    pub recorded: Option<u64>,
    /// How many ranks have every request served under these.
    pub recorded_fits: usize,
    /// Whether these are the same for all.
    pub recorded_alike: bool,
    /// How many ranks were replayed; those without a history cannot be.
    pub ranks: usize,
    /// How many of them have every request served.
    pub fits: usize,
    /// How many settings all of them were replayed under.
    pub settings: usize,
}

/// What a snapshot reserves under each setting, with the limit that is given or that its failed request tells; nothing
/// without a history.
pub(crate) fn try_all(
    file: &SnapshotFile,
    facts: &Facts,
    options: &LookOptions,
    until: &Until,
) -> Vec<Tried> {
    let recording = RecordingOptions {
        limit: options.limit,
        total: options.total,
        release: options.release,
        ordinal: Some(facts.device as usize),
    };
    let Ok((outcome, job)) = Job::read_until(file, &recording, until) else { return Vec::new() };
    let conditions = Conditions {
        release: outcome.release,
        recorded: outcome.conf.clone(),
        limit: options.limit.or(facts.limit.map(|it| it.bytes)),
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
        // Ranks that have every request served under a setting, and the most that one of them reserves; none if not all
        // ranks were replayed under it.
        let of = |is_it: &dyn Fn(&Tried) -> bool| {
            let under = ranks.iter().map(|facts| facts.tried.iter().find(|it| is_it(it)));
            let all: Option<Vec<_>> = under.collect();
            let fitting: Vec<_> = all?.into_iter().filter(|it| it.fits).collect();
            Some((fitting.len(), fitting.iter().map(|it| it.reserved).max()))
        };
        // What all were recorded with is among them, if it is the same.
        let confs = ranks.first()?.tried.iter().map(|it| it.conf.as_str());
        let tried: Vec<_> =
            confs.filter_map(|conf| Some((conf, of(&|it| it.conf == conf)?))).collect();
        let best = tried
            .iter()
            .min_by_key(|(conf, (fits, most))| (ranks.len() - fits, *most, conf.len(), *conf));
        let &(conf, (fits, reserved)) = best?;
        let (recorded_fits, recorded) = of(&|it| it.recorded).unwrap_or((0, None));
        let own = ranks.iter().flat_map(|facts| facts.tried.iter().filter(|it| it.recorded));
        Some(Self {
            conf: if fits == 0 { String::new() } else { conf.to_owned() },
            reserved,
            recorded: recorded.filter(|_| recorded_fits == ranks.len()),
            recorded_fits,
            recorded_alike: own.map(|it| &it.conf).collect::<BTreeSet<_>>().len() < 2,
            ranks: ranks.len(),
            fits,
            settings: tried.len(),
        })
    }
}
