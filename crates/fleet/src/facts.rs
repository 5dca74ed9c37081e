//! What is kept of a file: a few kilobytes, whatever its size.
//!
//! In:  a [`Report`].
//! Out: [`Facts`], the figures of the report that ranks are compared by; with the file's address a [`Row`].
//!
//! Rows travel: from other machines, and from a dataset that an earlier run left. So they can be read back, and every figure
//! is the report's.

use serde::{Deserialize, Serialize};
use tonnage_analysis::report::{Cause, Growth, GrowthKind, Report};

use crate::look::LookOptions;
use crate::name::Place;
use crate::settings::Tried;
use crate::source::Found;

/// A file and what is kept of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What the file goes by.
    pub address: String,
    /// Its bytes, if known.
    pub size: Option<u64>,
    /// What tells this version of the file from another; empty if nothing does.
    pub version: String,
    /// What was done with it: the program, and what was asked of it.
    pub analysis: String,
    /// Whose it is.
    pub place: Place,
    /// The address of the row whose run this rank shares: nothing was looked at for it, and size and version are of that
    /// row's file. None for files that were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
    /// What is in it.
    pub seen: Seen,
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// A snapshot.
    Facts(Box<Facts>),
    /// Nothing that can be read, and why.
    Unreadable(String),
}

/// Figures of one snapshot, each as `tonnage report` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The device's ordinal.
    pub device: u32,
    /// Entries of its history.
    pub events: u64,
    /// How far back that goes: `whole`, `partial` or `none`.
    pub history: String,
    /// The settings string; empty for the defaults.
    pub conf: String,
    /// Bytes that could be reserved, where a request failed.
    pub limit: Option<LimitFacts>,
    /// Most bytes reserved.
    pub reserved: u64,
    /// Of these, requested and live then.
    pub requested: u64,
    /// Most requested bytes live at once.
    pub live: u64,
    /// Reserved bytes of no use where reserved memory peaks, by kind.
    pub waste: Vec<Share>,
    /// What the live bytes are for where most are live.
    pub purposes: Vec<Share>,
    /// In which phase they were asked for.
    pub phases: Vec<Share>,
    /// Which lines of the program asked for them.
    pub sites: Vec<Share>,
    /// What limits the job, in a word.
    pub cause: String,
    /// Bytes of that.
    pub cause_bytes: u64,
    /// The line to blame.
    pub cause_line: Option<String>,
    /// What it means, in a sentence.
    pub cause_text: String,
    /// The whole verdict.
    pub verdict: String,
    /// How many requests failed.
    pub failed_requests: u64,
    /// The last of them.
    pub failed: Option<FailedRequest>,
    /// What grows from one iteration to the next.
    pub growth: GrowthFacts,
    /// The first and last iterations.
    pub iterations: Vec<IterationLevel>,
    /// What it reserves under other settings, by replay; empty if no one asked.
    pub tried: Vec<Tried>,
}

/// Bytes that could be reserved, as far as a recording tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitFacts {
    /// At least so many.
    pub bytes: u64,
    /// At most so many.
    pub at_most: u64,
}

/// Bytes of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Of what.
    pub name: String,
    /// How many.
    pub bytes: u64,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRequest {
    /// Its bytes, rounded.
    pub bytes: u64,
    /// Who asked.
    pub line: Option<String>,
    /// Bytes that were reserved then.
    pub reserved: u64,
    /// Bytes that the device had free.
    pub device_free: u64,
    /// Whether it is the last thing that happened.
    pub fatal: bool,
    /// Why nothing fitted.
    pub why: String,
}

/// What grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthFacts {
    /// `leak`, `longer_inputs`, `growing_tensor`, `fragmentation`, `steady` or `unknown`.
    pub kind: String,
    /// How many iterations there are.
    pub iterations: u64,
    /// Bytes that it is about, in all.
    pub bytes: u64,
    /// Bytes that stay in an iteration of the leaking kind, on average.
    pub leak_per_iteration: u64,
    /// The line that grows most.
    pub line: Option<String>,
}

/// One iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IterationLevel {
    /// Its number, from 0.
    pub number: u64,
    /// Most live requested bytes in it.
    pub live: u64,
    /// Most reserved bytes in it.
    pub reserved: u64,
}

impl Row {
    /// A row of this file.
    pub(crate) fn new(file: &Found, analysis: &str, place: Place, seen: Seen) -> Self {
        Self {
            address: file.address.clone(),
            size: file.size,
            version: file.version.clone(),
            analysis: analysis.to_owned(),
            place,
            same_as: None,
            seen,
        }
    }

    /// A row without a file: of a simulated rank whose script failed by itself.
    #[must_use]
    pub fn without_file(address: &str, options: &LookOptions, why: &str) -> Self {
        let (place, why) = (options.names.place(address), Seen::Unreadable(why.to_owned()));
        Self::new(&Found::at(address), &options.analysis(), place, why)
    }

    /// The same of another rank, which shares the run of this one.
    #[must_use]
    pub fn shared_by(&self, address: &str, options: &LookOptions) -> Self {
        Self {
            address: address.to_owned(),
            place: options.names.place(address),
            same_as: Some(self.address.clone()),
            ..self.clone()
        }
    }

    /// Whether it is about this file as it is now, looked at in this way. A file that cannot be told from another version
    /// is looked at again.
    #[must_use]
    pub fn is_of(&self, file: &Found, analysis: &str) -> bool {
        let same =
            (&self.address, self.size, &self.version) == (&file.address, file.size, &file.version);
        same && !self.version.is_empty() && self.analysis == analysis
    }

    /// The snapshot's figures, if it could be read.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        match &self.seen {
            Seen::Facts(facts) => Some(facts),
            Seen::Unreadable(_) => None,
        }
    }

    /// Why it could not be read, if that is so.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        match &self.seen {
            Seen::Facts(_) => None,
            Seen::Unreadable(why) => Some(why),
        }
    }
}

impl Facts {
    /// What is kept of a report.
    pub(crate) fn of(report: &Report) -> Self {
        let share = |name: &str, bytes: u64| Share { name: name.to_owned(), bytes };
        let peak = &report.peak;
        let sentence = report.causes.iter().find(|it| it.cause == report.verdict.cause);
        let growth = &report.growth;
        Self {
            device: report.device,
            events: report.events as u64,
            history: report.history.name().to_owned(),
            conf: report.conf.clone(),
            limit: report
                .failure
                .as_ref()
                .map(|it| LimitFacts { bytes: it.limit.bytes, at_most: it.limit.at_most }),
            reserved: peak.reserved.bytes,
            requested: peak.reserved.requested,
            live: peak.requested,
            waste: report
                .waste
                .kinds
                .iter()
                .map(|it| share(Cause::from(it.kind).name(), it.bytes))
                .collect(),
            purposes: peak.purposes.iter().map(|it| share(it.purpose.name(), it.bytes)).collect(),
            phases: peak
                .phases
                .iter()
                .map(|it| share(it.phase.map_or("unknown", |phase| phase.name()), it.bytes))
                .collect(),
            sites: peak
                .sites
                .iter()
                .map(|it| share(it.line.as_deref().unwrap_or("no line"), it.bytes))
                .collect(),
            cause: report.verdict.cause.name().to_owned(),
            cause_bytes: report.verdict.bytes,
            cause_line: report.verdict.line.clone(),
            cause_text: sentence.map_or_else(String::new, |it| it.text.clone()),
            verdict: report.verdict.text.clone(),
            failed_requests: report.failed_requests as u64,
            failed: report.ooms.last().map(|it| FailedRequest {
                bytes: it.bytes,
                line: it.line.clone(),
                reserved: it.reserved,
                device_free: it.device_free,
                fatal: it.fatal,
                why: it.why.clone(),
            }),
            growth: GrowthFacts::of(growth),
            iterations: growth
                .each
                .iter()
                .map(|it| IterationLevel {
                    number: it.number as u64,
                    live: it.requested,
                    reserved: it.reserved,
                })
                .collect(),
            tried: Vec::new(),
        }
    }

    /// Reserved bytes of no use at the peak.
    #[must_use]
    pub fn wasted(&self) -> u64 {
        self.reserved.saturating_sub(self.requested)
    }
}

impl GrowthFacts {
    fn of(growth: &Growth) -> Self {
        let (kind, bytes) = match growth.kind {
            GrowthKind::Leak => ("leak", growth.leak),
            GrowthKind::LongerInputs => ("longer_inputs", growth.longer_inputs),
            GrowthKind::GrowingTensor => ("growing_tensor", growth.growing_tensor),
            GrowthKind::Fragmentation => ("fragmentation", growth.fragmentation),
            GrowthKind::Steady => ("steady", 0),
            GrowthKind::Unknown => ("unknown", 0),
        };
        Self {
            kind: kind.to_owned(),
            iterations: growth.iterations as u64,
            bytes,
            leak_per_iteration: growth.leak_per_iteration,
            line: growth.lines.first().and_then(|it| it.line.clone()),
        }
    }

    /// Whether anything grows.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.bytes > 0
    }
}
