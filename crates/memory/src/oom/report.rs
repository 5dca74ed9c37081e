//! A failed request as `tonnage report` explains it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tonnage_analysis::report::{Advice, Answer, Cause, Report, ReportOptions};
use tonnage_engine::{OomNotes, OutOfMemory};
use tonnage_replay::{Until, snapshot_file};
use tonnage_snapshot::SnapshotFile;

use crate::oom::{Diagnosis, Explain, FailedRequest, SnapshotOnOom};

/// The verdict that `tonnage report` reaches on the snapshot of the moment, and the snapshot itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportVerdict;

impl Explain for ReportVerdict {
    fn explain(&self, failure: FailedRequest<'_>) -> OomNotes {
        let FailedRequest { error, snapshot, diagnose: looks, time, save_to } = failure;
        let (mut notes, file) = (OomNotes::default(), snapshot_file(snapshot, error.device));
        let diagnosis = if looks { diagnose(&file, error, time) } else { None };
        // The one thing of the moment that the file does not say.
        let total = diagnosis.as_ref().is_some_and(|it| it.cause == "outside");
        let total = total.then_some(error.device_total);
        if let Some(diagnosis) = diagnosis {
            notes.push(diagnosis);
        }
        if let Some(path) = save_to {
            let saved = tonnage_snapshot::save(path, &file);
            let saved = saved.map(|()| path.to_owned()).map_err(|error| error.to_string());
            notes.push(SnapshotOnOom { saved, total });
        }
        notes
    }
}

/// The report's verdict and its first advice. Settings are tried as long as there is time; what was not tried, the verdict
/// does not speak of.
pub(super) fn diagnose(
    file: &SnapshotFile,
    error: &OutOfMemory,
    time: Duration,
) -> Option<Diagnosis> {
    let options = ReportOptions {
        limit: error.limit,
        total: Some(error.device_total),
        ordinal: Some(error.device.0 as usize),
        until: Until::time(Instant::now() + time),
        ..ReportOptions::default()
    };
    // Whatever might be wrong there must not take the place of the error.
    let report = catch_unwind(AssertUnwindSafe(|| Report::of(file, &options))).ok()?.ok()?;
    let chosen = report.causes.iter().find(|it| it.cause == report.verdict.cause)?;
    // A setting that serves this request does not end a leak.
    let leaks = |it: &&Advice| chosen.cause == Cause::Leak && it.cause == Cause::Leak;
    let advice = report.advice.iter().find(leaks).or(report.advice.first());
    let mut text = chosen.text.clone();
    if let Some(failure) = report.failure.as_ref().filter(|it| it.answer == Answer::NoneServes) {
        text = format!("{text} {}", failure.sentence());
    }
    Some(Diagnosis {
        cause: chosen.cause.name(),
        bytes: chosen.bytes,
        line: chosen.line.clone(),
        text,
        advice: advice.map(|it| it.in_a_line()),
    })
}
