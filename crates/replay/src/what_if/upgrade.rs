//! The same job under another release of PyTorch: what an upgrade would do to it.
//!
//! In:  a job, the release that recorded it, another one.
//! Out: an [`Upgrade`]: how the job goes by the rules of each, and the difference.
//!
//! Both are predictions, with new segments at the same modelled addresses, so that the releases' rules alone make
//! the difference; what was recorded stands beside them as the measure of how near the first one is.

use std::cmp::Ordering;

use serde::Serialize;
use thiserror::Error;
use tonnage_engine::{Config, ConfigError, Release};

use super::{FirstOom, Prediction, WhatIf};
use crate::job::Job;
use crate::outcome::{Outcome, SCHEMA};

/// A job by the rules of two releases.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// By the rules of the release that recorded it.
    pub own: UnderRelease,
    /// By those of the other.
    pub other: UnderRelease,
    /// What was concluded of the recording, and what is not known.
    pub inferred: Vec<String>,
}

/// A job by the rules of one release.
#[derive(Clone, Debug)]
pub struct UnderRelease {
    /// The release.
    pub release: Release,
    /// The settings, as a string.
    pub conf: String,
    /// How the job goes.
    pub prediction: Prediction,
}

/// What of a job is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Most bytes reserved.
    pub reserved: i64,
    /// Most bytes allocated.
    pub allocated: i64,
    /// Memory obtained from the driver or given back, in calls.
    pub driver_calls: i64,
    /// Times that everything cached was given back.
    pub retries: i64,
    /// Requests that failed, out of memory or rejected.
    pub ooms: i64,
}

/// A job that nothing can be predicted of.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UpgradeError {
    /// A release refuses the settings.
    #[error("PyTorch {release} refuses the settings: {error}")]
    Settings {
        /// The release.
        release: Release,
        /// Why.
        error: ConfigError,
    },
    /// The settings need to be told more.
    #[error("by the rules of PyTorch {release}: {reason}")]
    Conditions {
        /// The release.
        release: Release,
        /// What is missing; see [`WhatIf::refusal`].
        reason: String,
    },
}

impl UnderRelease {
    fn new(job: &Job, release: Release, conf: &str, like: &WhatIf) -> Result<Self, UpgradeError> {
        let config = Config::parse(conf, release)
            .map_err(|error| UpgradeError::Settings { release, error })?;
        let what_if = WhatIf { config, ..like.clone() };
        if let Some(reason) = what_if.refusal() {
            return Err(UpgradeError::Conditions { release, reason });
        }
        Ok(Self { release, conf: conf.to_owned(), prediction: what_if.predict(job) })
    }

    /// Its figures, up to where the job stops.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures::of(&self.prediction)
    }
}

impl Figures {
    fn of(prediction: &Prediction) -> Self {
        let stats = &prediction.stats;
        Self {
            reserved: stats.reserved_bytes.all.peak,
            allocated: stats.allocated_bytes.all.peak,
            driver_calls: stats.num_device_alloc.saturating_add(stats.num_device_free),
            retries: stats.num_alloc_retries,
            ooms: stats.failed_requests(),
        }
    }

    /// How much more these are.
    fn since(self, before: Self) -> Self {
        Self {
            reserved: self.reserved.saturating_sub(before.reserved),
            allocated: self.allocated.saturating_sub(before.allocated),
            driver_calls: self.driver_calls.saturating_sub(before.driver_calls),
            retries: self.retries.saturating_sub(before.retries),
            ooms: self.ooms.saturating_sub(before.ooms),
        }
    }
}

impl Upgrade {
    /// Serves the job by the rules of the release that recorded it and by those of `other`, there under the settings
    /// `conf`, or the recorded ones. `like` gives policy, limit and total of both; its settings are not used.
    ///
    /// # Errors
    ///
    /// If one of the two refuses the settings, or they say too little to predict anything.
    pub fn new(
        recorded: &Outcome,
        job: &Job,
        other: Release,
        conf: Option<&str>,
        like: &WhatIf,
    ) -> Result<Self, UpgradeError> {
        let own = UnderRelease::new(job, recorded.release, &recorded.conf, like)?;
        let other = UnderRelease::new(job, other, conf.unwrap_or(&recorded.conf), like)?;
        let mut inferred = recorded.inferred.clone();
        inferred.extend_from_slice(job.notes());
        inferred.extend(other.prediction.unknown(job));
        let [before, after] = [own.release, other.release].map(Release::pool_scope_is_capture);
        if before && !after && job.uses_private_pools() {
            inferred.push(format!(
                "captures: by the rules of PyTorch {} every private pool in use is one; which were is not in the file, and \
                 by those of {} requests to private pools are taken as outside of any",
                own.release, other.release
            ));
        }
        Ok(Self { own, other, inferred })
    }

    /// How much more the other release's figures are.
    #[must_use]
    pub fn difference(&self) -> Figures {
        self.other.figures().since(self.own.figures())
    }

    /// Whether the job goes the same way: the same figures, the same failures.
    #[must_use]
    pub fn is_same(&self) -> bool {
        let (own, other) = (&self.own.prediction, &self.other.prediction);
        own.stats == other.stats && own.oom == other.oom && own.stopped_at == other.stopped_at
    }

    /// The answer in a sentence.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        // Who is not stopped gets furthest.
        let reach = |it: &UnderRelease| it.prediction.stopped_at.unwrap_or(usize::MAX);
        match reach(&self.other).cmp(&reach(&self.own)) {
            _ if self.is_same() => Verdict::Same,
            Ordering::Less => Verdict::Fails,
            Ordering::Greater => Verdict::Runs,
            Ordering::Equal => match self.difference().reserved {
                0 => Verdict::Otherwise,
                more if more > 0 => Verdict::More,
                _ => Verdict::Less,
            },
        }
    }
}

/// What another release does to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing: every figure is the same.
    Same,
    /// It reserves as much, but other figures differ.
    Otherwise,
    /// It reserves more.
    More,
    /// It reserves less.
    Less,
    /// A request fails that did not, and ends the job, or ends it sooner.
    Fails,
    /// A failure that ended the job is gone: it runs to its end, or to a later failure.
    Runs,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    kind: &'static str,
    file: &'a str,
    device: u32,
    events: usize,
    release_candidates: Vec<&'static str>,
    /// What PyTorch measured; none where the recording was not understood to its end.
    recorded: Option<JsonRecorded>,
    own: JsonRelease<'a>,
    other: JsonRelease<'a>,
    difference: Figures,
    verdict: Verdict,
    inferred: &'a [String],
}

#[derive(Serialize)]
struct JsonRecorded {
    reserved: i64,
    allocated: i64,
    ooms: i64,
}

#[derive(Serialize)]
struct JsonRelease<'a> {
    release: &'static str,
    conf: &'a str,
    limit: Option<u64>,
    #[serde(flatten)]
    figures: Figures,
    stopped: bool,
    stopped_at: Option<usize>,
    first_oom: Option<JsonOom>,
}

#[derive(Serialize)]
struct JsonOom {
    event: usize,
    bytes: u64,
}

impl<'a> JsonRelease<'a> {
    fn of(under: &'a UnderRelease) -> Self {
        let oom = |it: FirstOom| JsonOom { event: it.event, bytes: it.bytes };
        Self {
            release: under.release.name(),
            conf: &under.conf,
            limit: under.prediction.limit,
            figures: under.figures(),
            stopped: under.prediction.stopped(),
            stopped_at: under.prediction.stopped_at,
            first_oom: under.prediction.oom.map(oom),
        }
    }
}

impl Upgrade {
    /// The answer as one JSON object.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, recorded: &Outcome, file: &str) -> String {
        let stats = &recorded.stats;
        let json = Json {
            schema: SCHEMA,
            kind: "upgrade",
            file,
            device: recorded.device,
            events: recorded.events,
            release_candidates: recorded.candidates.iter().map(|it| it.name()).collect(),
            recorded: recorded.exact().then_some(JsonRecorded {
                reserved: stats.reserved_bytes.all.peak,
                allocated: stats.allocated_bytes.all.peak,
                ooms: stats.failed_requests(),
            }),
            own: JsonRelease::of(&self.own),
            other: JsonRelease::of(&self.other),
            difference: self.difference(),
            verdict: self.verdict(),
            inferred: &self.inferred,
        };
        serde_json::to_string_pretty(&json).expect("numbers and strings can be written")
    }
}

#[cfg(test)]
mod tests {
    use tonnage_engine::Stats;

    use tonnage_device::PageCalls;

    use super::super::LargeBlocks;
    use super::*;

    fn under(release: Release, stopped_at: Option<usize>, reserved: i64) -> UnderRelease {
        let mut stats = Stats::default();
        stats.reserved_bytes.all.peak = reserved;
        let prediction = Prediction {
            stats,
            floor: 0,
            limit: None,
            oom: None,
            stopped_at,
            served_after_all: 0,
            page_calls: PageCalls::default(),
            large_blocks: LargeBlocks::default(),
            peak: None,
        };
        UnderRelease { release, conf: String::new(), prediction }
    }

    #[test]
    fn who_gets_further_decides_before_who_reserves_less() {
        for (own, other, verdict) in [
            ((None, 7), (None, 7), Verdict::Same),
            ((None, 7), (None, 9), Verdict::More),
            ((None, 7), (None, 5), Verdict::Less),
            ((None, 7), (Some(4), 5), Verdict::Fails),
            ((Some(4), 5), (None, 7), Verdict::Runs),
            ((Some(9), 7), (Some(4), 5), Verdict::Fails),
            ((Some(4), 5), (Some(9), 7), Verdict::Runs),
            ((Some(4), 5), (Some(4), 7), Verdict::More),
            ((Some(4), 5), (Some(4), 5), Verdict::Same),
        ] {
            let upgrade = Upgrade {
                own: under(Release::V2_11, own.0, own.1),
                other: under(Release::V2_15, other.0, other.1),
                inferred: Vec::new(),
            };
            assert_eq!(upgrade.verdict(), verdict, "{own:?} {other:?}");
        }
    }
}
