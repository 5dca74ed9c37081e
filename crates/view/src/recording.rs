//! Stage 4: one recording, and what was computed of it.
//!
//! In:  a file's device. Out: its timeline, report, job and tuning, each computed once, when first asked for.

use std::sync::Arc;

use axum::body::Bytes;
use serde::Serialize;
use tokio::sync::OnceCell;
use tonnage_analysis::report::{Asked, Report, ReportOptions, Tuned};
use tonnage_analysis::{Levels, Lifetimes, devices};
use tonnage_engine::Policy;
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::tune::{Conditions, Tuning, tune_until};
use tonnage_replay::{Outcome, Until};
use tonnage_snapshot::SnapshotFile;

use crate::encode::{encode, encode_stacks};
use crate::error::ApiError;
use crate::recordings::ViewOptions;
use crate::timeline::{StackTable, Timeline};

/// Where a recording comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    #[default]
    File,
    Run,
    WhatIf,
}

/// What the page lists.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Info {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) device: u32,
    pub(crate) entries: usize,
    pub(crate) allocations: usize,
    pub(crate) version: u32,
    pub(crate) conf: String,
    pub(crate) of: Option<u32>,
    /// Of a what-if, the policy and the limit that were asked for.
    pub(crate) policy: &'static str,
    pub(crate) limit: Option<u64>,
    /// Of a fleet's rank, and of what-ifs made of it, the number of its file.
    pub(crate) row: Option<u32>,
}

/// A what-if's question, to the byte: equal questions have equal answers, and names, which are rounded, decide nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The recording whose requests are served, and its version.
    pub(crate) of: u32,
    pub(crate) version: u32,
    pub(crate) conf: String,
    pub(crate) policy: Policy,
    pub(crate) limit: Option<u64>,
}

/// How a what-if went.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Made {
    pub(crate) reserved_peak: u64,
    pub(crate) recorded_peak: u64,
    pub(crate) oom: Option<FirstOom>,
    /// Calls about pages, and what they take; none where memory comes in whole segments.
    pub(crate) page_calls: u64,
    pub(crate) page_ns: u64,
    /// What it answers.
    #[serde(skip)]
    pub(crate) question: Question,
}

/// The first request that fails, by the entry of the recording that it comes from.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FirstOom {
    pub(crate) entry: usize,
    pub(crate) bytes: u64,
}

/// What was asked of a recording, and the outcome of reading it.
pub(crate) struct Understood {
    pub(crate) outcome: Outcome,
    pub(crate) job: Job,
    /// Most bytes reserved when it was recorded.
    pub(crate) reserved_peak: u64,
}

pub(crate) struct Recording {
    pub(crate) info: Info,
    pub(crate) file: Arc<SnapshotFile>,
    pub(crate) options: ViewOptions,
    /// Of a what-if, how it went.
    pub(crate) made: Option<Made>,
    pub(crate) timeline: OnceCell<Result<Bytes, ApiError>>,
    pub(crate) stacks: OnceCell<Result<Bytes, ApiError>>,
    pub(crate) report: OnceCell<Result<Bytes, ApiError>>,
    pub(crate) report_at_once: OnceCell<Result<Bytes, ApiError>>,
    pub(crate) understood: OnceCell<Result<Arc<Understood>, ApiError>>,
    pub(crate) tuning: OnceCell<Result<Bytes, ApiError>>,
}

impl Recording {
    /// The device that `info` names. What follows from the file is filled in.
    pub(crate) fn new(info: Info, file: Arc<SnapshotFile>, options: ViewOptions) -> Self {
        let device = devices(&file).into_iter().find(|it| it.device.0 == info.device);
        let info = Info {
            entries: device.as_ref().map_or(0, |it| it.entries.len()),
            allocations: device.as_ref().map_or(0, |it| Lifetimes::of(it).len()),
            ..info
        };
        Self {
            info,
            file,
            options,
            made: None,
            timeline: OnceCell::new(),
            stacks: OnceCell::new(),
            report: OnceCell::new(),
            report_at_once: OnceCell::new(),
            understood: OnceCell::new(),
            tuning: OnceCell::new(),
        }
    }

    pub(crate) fn encoded(&self) -> Result<Bytes, ApiError> {
        let timeline = Timeline::of(&self.file, self.info.device, self.options.limit);
        encode(&timeline).map(Bytes::from).map_err(ApiError::Failed)
    }

    pub(crate) fn stacked(&self) -> Result<Bytes, ApiError> {
        let table = StackTable::of(&self.file, self.info.device);
        encode_stacks(&table).map(Bytes::from).map_err(ApiError::Failed)
    }

    pub(crate) fn reported(&self, until: &Until) -> Result<Bytes, ApiError> {
        self.report(false, until)
    }

    /// The same without the replay, which takes longest: what a long history shows first.
    pub(crate) fn reported_at_once(&self, until: &Until) -> Result<Bytes, ApiError> {
        self.report(true, until)
    }

    fn report(&self, without_replay: bool, until: &Until) -> Result<Bytes, ApiError> {
        let ViewOptions { limit, total, release, .. } = self.options;
        let ordinal = Some(self.info.device as usize);
        // Without a time at which it has to be done: the page says what `tonnage report` says.
        let until = until.clone();
        let options = ReportOptions {
            limit,
            total,
            release,
            ordinal,
            without_replay,
            until,
            ..ReportOptions::default()
        };
        let report = Report::of(&self.file, &options);
        let report = report.map_err(|error| ApiError::Refused(error.to_string()))?;
        Ok(report.to_json().into())
    }

    /// Reads the job. The limit that it had is not in the file; if the recording cannot be read without one, the one
    /// that is asked about may be it.
    pub(crate) fn understand(&self, until: &Until) -> Result<Arc<Understood>, ApiError> {
        let ViewOptions { limit, total, release, .. } = self.options;
        let ordinal = Some(self.info.device as usize);
        let read = |limit: Option<u64>| {
            let options = RecordingOptions { limit, total, release, ordinal };
            let read = Job::read_until(&self.file, &options, until);
            read.map_err(|error| ApiError::Refused(error.to_string()))
        };
        let (mut outcome, mut job) = read(None)?;
        if !outcome.exact() && limit.is_some() && !until.is_over() {
            let (other, with_limit) = read(limit)?;
            if other.exact() {
                (outcome, job) = (other, with_limit);
            }
        }
        // Figures of a recording that was not understood to its end are not its own.
        let reserved_peak = if outcome.exact() {
            outcome.stats.max_memory_reserved()
        } else {
            self.reserved_peak()
        };
        Ok(Arc::new(Understood { outcome, job, reserved_peak }))
    }

    fn reserved_peak(&self) -> u64 {
        let device = devices(&self.file).into_iter().find(|it| it.device.0 == self.info.device);
        let peak = device.and_then(|device| {
            let levels = Levels::of(&device, &Lifetimes::of(&device));
            levels.peak(|level| level.reserved)
        });
        peak.map_or(0, |peak| peak.bytes)
    }

    pub(crate) fn tuned(&self, understood: &Understood, until: &Until) -> Tuning {
        let Understood { outcome, job, .. } = understood;
        let asked = Asked { limit: self.options.limit, total: self.options.total };
        let devices = devices(&self.file);
        let device = devices.iter().find(|it| it.device.0 == self.info.device);
        let try_them =
            |job: &Job, conditions: &Conditions| tune_until(job, conditions, until, &|_, _| ());
        match device {
            // As the report does: under the limit that a failed request ran into.
            Some(device) => Tuned::of(device, outcome, job, asked, try_them).tuning,
            None => try_them(
                job,
                &Conditions {
                    release: outcome.release,
                    recorded: outcome.conf.clone(),
                    limit: asked.limit,
                    total: asked.total,
                },
            ),
        }
    }
}
