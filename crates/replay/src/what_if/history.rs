//! What the allocator would have recorded under other settings.
//!
//! In:  a job, and the file that it was read from.
//! Out: the prediction, and a [`SnapshotFile`] as if the job had been recorded under these settings: its own
//!      entries and segments, with the times and stacks of the recorded entries that they stand for.

use tonnage_engine::{Context, RecordOptions};
use tonnage_events::{Action, DeviceId, StackId};
use tonnage_memory::snapshot_file;
use tonnage_snapshot::SnapshotFile;

use super::run::Run;
use super::{Prediction, WhatIf};
use crate::job::{Call, Job, Step};

impl WhatIf {
    /// Serves the job, and says how that goes and what a snapshot at its end would hold. `file` and `ordinal` are
    /// those that the job was read from.
    ///
    /// ```
    /// use tonnage_engine::{Config, Release};
    /// use tonnage_replay::job::Job;
    /// use tonnage_replay::recording::RecordingOptions;
    /// use tonnage_replay::what_if::WhatIf;
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
    /// let file = tonnage_snapshot::open(path.as_ref())?;
    /// let (_, job) = Job::read(&file, &RecordingOptions::default())?;
    /// let what_if = WhatIf::new(Config::parse("expandable_segments:True", Release::default())?);
    /// let (prediction, recorded) = what_if.record(&job, &file, 0);
    /// assert_eq!(prediction.stats, what_if.predict(&job).stats);
    /// assert!(recorded.segments.iter().all(|segment| segment.expandable));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn record(
        &self,
        job: &Job,
        file: &SnapshotFile,
        ordinal: u32,
    ) -> (Prediction, SnapshotFile) {
        let mut engine = self.engine();
        let options =
            RecordOptions { context: Context::Never, clock: || 0, ..RecordOptions::default() };
        engine.record_history(Some(options));
        let mut run = Run::new(engine, job);
        // How many entries there were after each step.
        let mut ends = Vec::with_capacity(job.steps().len());
        for step in job.steps() {
            let stops = run.step(step).is_break();
            ends.push(run.recorded());
            if stops {
                break;
            }
        }
        let mut snapshot = run.snapshot();
        let device = DeviceId(ordinal);
        let source = Source { file, ordinal };
        let mut from = 0;
        for (step, to) in job.steps().iter().zip(ends) {
            let (time_us, stack) = source.of(step);
            for entry in &mut snapshot.entries[from..to] {
                entry.time_us = time_us;
                // Blocks are found unused by whoever asks next.
                entry.stack = stack.filter(|_| entry.action != Action::FreeCompleted);
            }
            from = to;
        }
        snapshot.stacks = file.stacks.clone();
        for segment in &mut snapshot.segments {
            segment.device = device;
        }
        let recorded = SnapshotFile {
            annotations: file.annotations.clone(),
            ..snapshot_file(snapshot, device)
        };
        (run.prediction(job), recorded)
    }
}

/// Where times and stacks come from.
struct Source<'a> {
    file: &'a SnapshotFile,
    ordinal: u32,
}

impl Source<'_> {
    fn of(&self, step: &Step) -> (u64, Option<StackId>) {
        let entries = self.file.traces.get(self.ordinal as usize);
        let Some(entry) = entries.and_then(|entries| entries.get(step.entry)) else {
            return (0, None);
        };
        // What the history begins with comes at its first entry, which is not its own.
        let own = match step.call {
            Call::Allocate(request) => entry.action == Action::Alloc && entry.size == request.bytes,
            Call::FailedAllocate { .. } => entry.action == Action::Oom,
            Call::Free { .. } => {
                matches!(entry.action, Action::FreeRequested | Action::FreeCompleted)
            }
            _ => false,
        };
        (entry.time_us, entry.stack.filter(|_| own))
    }
}
