//! What a failed request has to do with what came before it, and a snapshot of that moment.
//!
//! In:  the error; the history, if one is recorded; where to save:
//!      [`DeviceOptions::snapshot_on_oom`](crate::DeviceOptions), or the environment variable `TONNAGE_OOM_SNAPSHOT`.
//! Out: the same error. Its message has the verdict that `tonnage report` reaches on the snapshot, and says where that
//!      is, or why there is none.
//!
//! All of it costs only when a request fails, and happens without the lock: the engine is locked while its books are
//! copied, not while they are looked at.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tonnage_analysis::report::{Report, ReportOptions};
use tonnage_engine::{AllocError, Diagnosis, OutOfMemory};
use tonnage_replay::snapshot_file;
use tonnage_snapshot::SnapshotFile;

use crate::device::Device;
use crate::sync::lock;

/// Where the environment wants it.
pub(crate) fn snapshot_from_env() -> Option<PathBuf> {
    std::env::var_os("TONNAGE_OOM_SNAPSHOT").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Time that may go into diagnoses. Programs catch failures and try again, some thousands of times, and a long
/// history takes a second to look at: beyond what is allowed, the message says what the moment alone tells.
pub(crate) struct Allowance {
    since: Instant,
    spent: Duration,
}

impl Allowance {
    /// What may be spent at once: a history of a million entries takes less.
    const AHEAD: Duration = Duration::from_secs(2);
    /// The part of a program's time that may be spent besides.
    const PART: u32 = 10;

    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), spent: Duration::ZERO }
    }

    fn is_left(&self) -> bool {
        self.spent < Self::AHEAD + self.since.elapsed() / Self::PART
    }
}

impl Device {
    /// The error, with a diagnosis if there is a history, and a snapshot if one is wanted. The last failure's snapshot
    /// takes the place of the one before.
    #[cold]
    pub(crate) fn explained(&self, error: AllocError) -> AllocError {
        let AllocError::OutOfMemory(mut report) = error else { return error };
        let path = self.shared.snapshot_on_oom.as_ref();
        let began = Instant::now();
        let may_look = lock(&self.shared.explaining).is_left();
        let snapshot = {
            let mut engine = lock(&self.shared.engine);
            let looks = may_look && engine.history().is_some();
            match path {
                Some(_) => Some((engine.snapshot(), looks)),
                None => looks.then(|| (engine.look(), looks)),
            }
        };
        if let Some((snapshot, looks)) = snapshot {
            let file = snapshot_file(snapshot, self.id());
            if looks {
                report.diagnosis = diagnose(&file, &report);
                lock(&self.shared.explaining).spent += began.elapsed();
            }
            if let Some(path) = path {
                let saved = tonnage_snapshot::save(path, &file);
                report.snapshot =
                    Some(saved.map(|()| path.clone()).map_err(|error| error.to_string()));
            }
        }
        AllocError::OutOfMemory(report)
    }
}

/// The report's verdict and its first advice. No replay: it takes a hundred times as long and decides no verdict.
fn diagnose(file: &SnapshotFile, error: &OutOfMemory) -> Option<Diagnosis> {
    let options = ReportOptions {
        limit: error.limit,
        total: Some(error.device_total),
        ordinal: Some(error.device.0 as usize),
        without_replay: true,
        ..ReportOptions::default()
    };
    // Whatever might be wrong there must not take the place of the error.
    let report = catch_unwind(AssertUnwindSafe(|| Report::of(file, &options))).ok()?.ok()?;
    let chosen = report.causes.iter().find(|it| it.cause == report.verdict.cause)?;
    Some(Diagnosis {
        cause: chosen.cause.name(),
        bytes: chosen.bytes,
        line: chosen.line.clone(),
        text: chosen.text.clone(),
        advice: report.advice.first().map(|it| it.in_a_line()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceOptions, RecordOptions};

    #[test]
    fn a_failed_request_leaves_a_snapshot_and_says_where_in_twelve_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oom.pickle");
        let options =
            DeviceOptions { snapshot_on_oom: Some(path.clone()), ..DeviceOptions::default() };
        let device = Device::dry_with(64_u64 << 20, options).unwrap();
        device.memory().record_history(Some(RecordOptions::default()));
        let kept = device.allocate(40 << 20).unwrap();
        let error = device.allocate(40 << 20).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        assert!(text.contains("Verdict: need: 40.00 MiB"), "{text}");
        assert!(text.contains("memory/src/oom.rs:"), "{text}");
        assert!(text.lines().count() <= 12, "{text}");
        assert!(matches!(error, AllocError::OutOfMemory(_)));
        let file = tonnage_snapshot::open(&path).unwrap();
        assert_eq!(file.segments.len(), 1);
        drop(kept);
    }

    #[test]
    fn without_a_history_the_moment_alone_tells() {
        let device = Device::dry(64_u64 << 20).unwrap();
        let _kept = device.allocate(40 << 20).unwrap();
        let AllocError::OutOfMemory(report) = device.allocate(40 << 20).unwrap_err() else {
            panic!("another error");
        };
        assert_eq!(report.diagnosis, None);
        assert!(report.to_string().contains("Verdict: need: 40.00 MiB"), "{report}");
    }

    #[test]
    fn a_diagnosis_leaves_no_note_in_the_history() {
        let device = Device::dry(64_u64 << 20).unwrap();
        device.memory().record_history(Some(RecordOptions::default()));
        let error = device.allocate(80 << 20).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory(report) if report.diagnosis.is_some()));
        let actions: Vec<_> =
            device.memory().snapshot().entries.iter().map(|it| it.action).collect();
        assert_eq!(actions, [tonnage_events::Action::Oom]);
    }

    #[test]
    fn failures_in_a_loop_cost_no_more_than_is_allowed() {
        let device = Device::dry(64_u64 << 20).unwrap();
        device.memory().record_history(Some(RecordOptions::default()));
        lock(&device.shared.explaining).spent = Duration::from_secs(3600);
        let error = device.allocate(80 << 20).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory(report) if report.diagnosis.is_none()));
    }
}
