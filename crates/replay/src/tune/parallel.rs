//! Predictions on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::job::Job;
use crate::until::Until;
use crate::what_if::{Prediction, WhatIf};

/// One prediction for each, in their order; none for those that there was no time for. `progress` is told how many are
/// done.
pub(super) fn predict_all(
    job: &Job,
    what_ifs: &[WhatIf],
    until: &Until,
    progress: &(dyn Fn(usize) + Sync),
) -> Vec<Option<Prediction>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let predictions = Mutex::new(Vec::with_capacity(what_ifs.len()));
    std::thread::scope(|scope| {
        for _ in 0..cores.min(what_ifs.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(what_if) = what_ifs.get(index) else { break };
                    let prediction = what_if.predict_until(job, until);
                    predictions
                        .lock()
                        .unwrap_or_else(|held| held.into_inner())
                        .push((index, prediction));
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut predictions = predictions.into_inner().unwrap_or_else(|held| held.into_inner());
    predictions.sort_unstable_by_key(|&(index, _)| index);
    predictions.into_iter().map(|(_, prediction)| prediction).collect()
}
