//! What a failed request has to do with what came before it, and a snapshot of that moment.
//!
//! In:  the error; the history, if one is recorded; where to save:
//!      [`DeviceOptions::snapshot_on_oom`](crate::DeviceOptions), or the environment variable `TONNAGE_OOM_SNAPSHOT`.
//! Out: the same error, with notes of whoever [explains](Explain) it.
//!
//! Explaining takes more than allocating does: reading histories, writing files. So it is behind a trait, and what
//! this crate has of it behind the feature `explain` (`report.rs`), which `tonnage-tensor` and `tonnage` turn on.
//!
//! All of it costs only when a request fails, and happens without the lock: the engine is locked while its books are
//! copied, not while they are looked at.

// The notes, and how they read.
mod notes;

// The verdict of `tonnage report`.
#[cfg(feature = "explain")]
mod report;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use notes::{Diagnosis, NotLookedAt, SnapshotOnOom};
#[cfg(feature = "explain")]
pub use report::ReportVerdict;
use tonnage_engine::{AllocError, OomNotes, OutOfMemory, Snapshot};

use crate::device::Device;
use crate::sync::lock;

/// Explains failed requests by what came before them.
///
/// A device has at most one such value, in [`DeviceOptions::explain`](crate::DeviceOptions::explain). It is asked when a
/// request ran out of memory and there is something to look at or to do: a history is recorded and failures before have
/// left time for it, or a snapshot is to be saved. Otherwise it is not, and the engine's own words are the message. It is
/// asked on the thread of the request, without any lock of the device; what it answers becomes part of the error's
/// message.
pub trait Explain: Send + Sync {
    /// What there is to say of a failed request.
    fn explain(&self, failure: FailedRequest<'_>) -> OomNotes;
}

/// A failed request, and what came before it.
#[derive(Debug)]
#[non_exhaustive]
pub struct FailedRequest<'a> {
    /// What the engine says of it.
    pub error: &'a OutOfMemory,
    /// The state at that moment, and the history if one is recorded.
    pub snapshot: Snapshot,
    /// Whether the history is to be looked at: there is one, and failures before have left time for it.
    pub diagnose: bool,
    /// How long that may take.
    pub time: Duration,
    /// Where the snapshot is to be saved, if anywhere. Who saves it says so with a [`SnapshotOnOom`]; where nobody does,
    /// the message says that.
    pub save_to: Option<&'a Path>,
}

/// Who explains the failed requests of a device: by default [`ReportVerdict`] where the feature `explain` is on, and
/// no one where it is off.
#[derive(Clone)]
pub struct Explainer(Option<Arc<dyn Explain>>);

impl Explainer {
    /// This one.
    #[must_use]
    pub fn new(explain: impl Explain + 'static) -> Self {
        Self(Some(Arc::new(explain)))
    }

    /// No one: the engine's own words are all there is.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }
}

impl Default for Explainer {
    fn default() -> Self {
        #[cfg(feature = "explain")]
        return Self::new(ReportVerdict);
        #[cfg(not(feature = "explain"))]
        return Self::none();
    }
}

impl fmt::Debug for Explainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Explainer(..)" } else { "Explainer(none)" })
    }
}

/// Why there is no snapshot where no one explains failures.
const NO_ONE: &str = if cfg!(feature = "explain") {
    "this device has no explainer to do it (`DeviceOptions::explain`)"
} else {
    "this device has no explainer to do it: turn on `explain` of tonnage-memory, or set `DeviceOptions::explain`"
};

/// The same where someone does, and says nothing of it.
const NOT_SAVED: &str =
    "this device's own explainer (`DeviceOptions::explain`) does not say that it did";

/// Where the environment wants the snapshot.
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

    fn left(&self) -> Duration {
        (Self::AHEAD + self.since.elapsed() / Self::PART).saturating_sub(self.spent)
    }
}

impl Device {
    /// The error, with a diagnosis if there is a history, and a snapshot if one is wanted. The last failure's snapshot
    /// takes the place of the one before.
    #[cold]
    pub(crate) fn explained(&self, mut error: AllocError) -> AllocError {
        match &mut error {
            AllocError::OutOfMemory(report) => self.explain(report),
            AllocError::Rejected(rejected) => self.explain(&mut rejected.moment),
            _ => {}
        }
        error
    }

    fn explain(&self, report: &mut OutOfMemory) {
        let save_to = self.shared.snapshot_on_oom.as_deref();
        let Some(explain) = &self.shared.explainer.0 else {
            if save_to.is_some() {
                report.notes.push(SnapshotOnOom { saved: Err(NO_ONE.to_owned()), total: None });
            }
            return;
        };
        let began = Instant::now();
        let time = lock(&self.shared.explaining).left();
        let out_of_time;
        let snapshot = {
            let mut engine = self.shared.engine.lock();
            let recorded = engine.history().is_some();
            let diagnose = !time.is_zero() && recorded;
            out_of_time = recorded && !diagnose;
            match save_to {
                Some(_) => Some((engine.snapshot(), diagnose)),
                None => diagnose.then(|| (engine.snapshot_unrecorded(), diagnose)),
            }
        };
        if let Some((snapshot, diagnose)) = snapshot {
            let error = &*report;
            let failure = FailedRequest { error, snapshot, diagnose, time, save_to };
            report.notes = explain.explain(failure);
            if save_to.is_some() && report.notes.get::<SnapshotOnOom>().is_none() {
                let saved = Err(NOT_SAVED.to_owned());
                report.notes.push(SnapshotOnOom { saved, total: None });
            }
            if diagnose {
                lock(&self.shared.explaining).spent += began.elapsed();
            }
        }
        if out_of_time {
            report.notes.push(NotLookedAt);
        }
    }
}

#[cfg(all(test, feature = "explain"))]
mod tests {
    use super::*;
    use crate::{DeviceOptions, RecordOptions};

    fn diagnosis(error: &OutOfMemory) -> Option<&Diagnosis> {
        error.notes.get()
    }

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
        assert!(text.contains("tonnage-memory/oom/mod.rs:"), "{text}");
        assert!(text.lines().count() <= 12, "{text}");
        assert!(matches!(error, AllocError::OutOfMemory(_)));
        let file = tonnage_snapshot::open(&path).unwrap();
        assert_eq!(file.segments.len(), 1);
        drop(kept);
    }

    #[test]
    fn a_rejected_request_is_explained_and_leaves_a_snapshot_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oom.pickle");
        let conf = "throw_on_cudamalloc_oom:True";
        let options = DeviceOptions {
            config: tonnage_engine::Config::parse(conf, tonnage_engine::Release::NEWEST).unwrap(),
            snapshot_on_oom: Some(path.clone()),
            ..DeviceOptions::default()
        };
        let device = Device::dry_with(64_u64 << 20, options).unwrap();
        device.memory().record_history(Some(RecordOptions::default()));
        let kept = device.allocate(40 << 20).unwrap();
        let error = device.allocate(40 << 20).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`throw_on_cudamalloc_oom` rejects"), "{text}");
        assert!(text.contains(&path.display().to_string()), "{text}");
        assert!(text.contains("Verdict: need: 40.00 MiB"), "{text}");
        assert!(text.lines().count() <= 12, "{text}");
        assert!(matches!(error, AllocError::Rejected(_)));
        assert_eq!(tonnage_snapshot::open(&path).unwrap().segments.len(), 1);
        drop(kept);
    }

    #[test]
    fn without_a_history_the_moment_alone_tells() {
        let device = Device::dry(64_u64 << 20).unwrap();
        let _kept = device.allocate(40 << 20).unwrap();
        let AllocError::OutOfMemory(report) = device.allocate(40 << 20).unwrap_err() else {
            panic!("another error");
        };
        assert_eq!(diagnosis(&report), None);
        assert!(report.to_string().contains("Verdict: need: 40.00 MiB"), "{report}");
    }

    #[test]
    fn a_diagnosis_leaves_no_note_in_the_history() {
        let device = Device::dry(64_u64 << 20).unwrap();
        device.memory().record_history(Some(RecordOptions::default()));
        let error = device.allocate(80 << 20).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory(report) if diagnosis(&report).is_some()));
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
        let text = error.to_string();
        assert!(matches!(error, AllocError::OutOfMemory(report) if diagnosis(&report).is_none()));
        assert!(text.contains("Verdict: unknown: ") && text.contains("not tried"), "{text}");
        assert!(!text.contains("Verdict: need"), "a replay might refute it: {text}");
    }

    #[test]
    fn what_there_was_no_time_to_try_is_not_called_need() {
        use crate::oom::report::diagnose;
        let device = Device::dry(64_u64 << 20).unwrap();
        device.memory().record_history(Some(RecordOptions::default()));
        // A segment of 30 MiB that 2 MiB keep: 40 MiB more have no room but where segments grow.
        drop(device.allocate(30 << 20).unwrap());
        let kept = device.allocate(2 << 20).unwrap();
        let AllocError::OutOfMemory(error) = device.allocate(40 << 20).unwrap_err() else {
            panic!("another error");
        };
        let file = tonnage_replay::snapshot_file(device.memory().snapshot(), error.device);
        let in_time = diagnose(&file, &error, Duration::from_secs(3600)).unwrap();
        let late = diagnose(&file, &error, Duration::ZERO).unwrap();
        assert!(in_time.advice.as_ref().is_some_and(|it| it.contains("serves")), "{in_time}");
        for said in [&in_time, &late] {
            assert!(!matches!(said.cause, "need" | "longer_inputs"), "{said}");
        }
        assert!(late.advice.is_none_or(|it| it.contains("estimated")));
        drop(kept);
    }

    #[test]
    fn a_program_explains_failures_itself_or_not_at_all() {
        #[derive(Debug)]
        struct Note(u64);
        impl fmt::Display for Note {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "ask the owner of the other {} bytes", self.0)
            }
        }
        impl tonnage_engine::OomNote for Note {}
        struct Own;
        impl Explain for Own {
            fn explain(&self, failure: FailedRequest<'_>) -> OomNotes {
                let mut notes = OomNotes::default();
                notes.push(Note(failure.error.requested));
                notes
            }
        }
        let failure = |explain| {
            let options = DeviceOptions { explain, ..DeviceOptions::default() };
            let device = Device::dry_with(64_u64 << 20, options).unwrap();
            device.memory().record_history(Some(RecordOptions::default()));
            device.allocate(80 << 20).unwrap_err().to_string()
        };
        let own = failure(Explainer::new(Own));
        assert!(own.ends_with("\nask the owner of the other 83886080 bytes"), "{own}");
        let none = failure(Explainer::none());
        assert!(own.starts_with(&none), "{own}\n{none}");
        assert!(failure(Explainer::default()).contains("Verdict: "), "by default the report's");

        // A snapshot is wanted, and neither saves one.
        let unsaved = |explain| {
            let snapshot_on_oom = Some(PathBuf::from("wanted.pickle"));
            let options = DeviceOptions { explain, snapshot_on_oom, ..DeviceOptions::default() };
            let device = Device::dry_with(64_u64 << 20, options).unwrap();
            device.allocate(80 << 20).unwrap_err().to_string()
        };
        let own = unsaved(Explainer::new(Own));
        assert!(own.contains("ask the owner") && own.ends_with(NOT_SAVED), "{own}");
        let none = unsaved(Explainer::none());
        assert!(none.ends_with(NO_ONE) && !none.contains("turn on"), "{none}");
    }
}
