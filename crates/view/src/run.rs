//! Stage 4: a run that goes on behind the page.
//!
//! In:  its progress and snapshots, from the thread that trains. Out: what the page asks about it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tonnage_snapshot::SnapshotFile;

use crate::recording::Info;
use crate::recordings::Recordings;

/// The most losses that are kept; of longer runs, every second is left out again and again.
const MOST_LOSSES: usize = 4_000;

/// A run that goes on. Clones are the same run.
#[derive(Clone)]
pub struct LiveRun {
    recordings: Recordings,
    state: Arc<Mutex<State>>,
}

struct State {
    info: Info,
    progress: Progress,
    /// Steps that one loss stands for.
    stride: usize,
}

/// What a run has come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunProgress {
    /// Steps that are done.
    pub done: usize,
    /// Steps in all.
    pub of: usize,
    /// The loss of the last step, if there is one.
    pub loss: Option<f64>,
    /// Most bytes allocated so far.
    pub allocated_peak: u64,
    /// Most bytes reserved so far.
    pub reserved: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Progress {
    done: usize,
    of: usize,
    losses: Vec<f64>,
    allocated_peak: u64,
    reserved: u64,
    finished: bool,
    error: Option<String>,
}

impl LiveRun {
    pub(crate) fn new(recordings: Recordings, info: Info) -> Self {
        let state = State { info, progress: Progress::default(), stride: 1 };
        Self { recordings, state: Arc::new(Mutex::new(state)) }
    }

    /// A step is done.
    pub fn progress(&self, now: &RunProgress) {
        let mut state = self.lock();
        let stride = state.stride;
        let progress = &mut state.progress;
        progress.done = now.done;
        progress.of = now.of;
        progress.allocated_peak = now.allocated_peak;
        progress.reserved = now.reserved;
        // JSON has no other numbers.
        if let Some(loss) = now.loss.filter(|it| it.is_finite())
            && now.done.is_multiple_of(stride)
        {
            progress.losses.push(loss);
        }
        if progress.losses.len() >= MOST_LOSSES {
            let mut place = 0;
            progress.losses.retain(|_| {
                place += 1;
                place % 2 == 0
            });
            state.stride *= 2;
        }
    }

    /// Shows a newer state of its memory.
    pub fn show(&self, file: SnapshotFile) {
        let info = {
            let mut state = self.lock();
            state.info.version += 1;
            state.info.clone()
        };
        self.recordings.replace(info, file);
    }

    /// The run is over; with what went wrong, if something did.
    pub fn finish(&self, error: Option<String>) {
        let mut state = self.lock();
        state.progress.finished = true;
        state.progress.error = error;
    }

    pub(crate) fn state(&self) -> Progress {
        self.lock().progress.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ViewOptions;

    #[test]
    fn losses_of_a_long_run_are_thinned_out_evenly() {
        let run = Recordings::new(ViewOptions::default()).run("gpt2", "");
        for done in 1..=100_000 {
            run.progress(&RunProgress { done, loss: Some(done as f64), ..RunProgress::default() });
        }
        run.progress(&RunProgress { done: 100_001, loss: Some(f64::NAN), ..Default::default() });
        let losses = run.state().losses;
        assert!((MOST_LOSSES / 2..MOST_LOSSES).contains(&losses.len()));
        let steps: Vec<_> = losses.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().all(|&step| step == steps[0]));
    }
}
