//! All files of a fleet, on every core.
//!
//! In:  files, rows that are known already, what is asked.
//! Out: a row for each file, in the order of the files, whichever was done first.
//!
//! Each worker has one file at a time, and all of them together what one reader may take. Beside that a fleet takes a few
//! kilobytes for each file. A storage that goes away meanwhile is not waited for with each of its files.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::Builder;

use tonnage_replay::Until;
use tonnage_snapshot::spare_memory;

use crate::facts::{Row, Seen};
use crate::look::{LookOptions, Looked, look_and_tell};
use crate::source::Found;

/// Rows that wait to be taken.
const WAITING: usize = 64;

/// Workers on a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Crew {
    /// How many.
    pub workers: NonZeroUsize,
    /// Memory that reading may take, of all together; if none, half of what this process can still have.
    pub memory: Option<u64>,
}

/// Files of one storage that cannot be read one after the other, for a reason that is the same for all of it, until the rest is
/// left: chosen. Each was asked for again for up to a minute.
const GONE: usize = 3;

/// The work was stopped before it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was to end.
    Asked,
    /// A storage went away.
    Gone {
        /// Which, as `s3://BUCKET`.
        storage: String,
        /// Why its files cannot be read, in a sentence.
        why: String,
    },
}

impl Default for Crew {
    fn default() -> Self {
        let workers = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { workers, memory: None }
    }
}

impl Crew {
    /// Looks at every file. `done` is told each row as soon as it is there, with its number, in any order, and returns an
    /// error to stop everything.
    ///
    /// # Errors
    ///
    /// The first error of `done`; none of files, which are rows.
    pub fn look_at<E>(
        &self,
        files: &[Found],
        options: &LookOptions,
        until: &Until,
        mut done: impl FnMut(usize, &Row) -> Result<(), E>,
    ) -> Result<Result<Vec<Row>, Stopped>, E> {
        let workers = self.workers.get().min(files.len().max(1));
        let memory = self.memory.or_else(|| spare_memory().map(|spare| spare / 2));
        let options =
            LookOptions { memory: memory.map(|memory| memory / workers as u64), ..options.clone() };
        let next = AtomicUsize::new(0);
        let mut rows: Vec<Option<Row>> = vec![None; files.len()];
        let look_at_next = || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let file = files.get(number).filter(|_| !until.is_over())?;
            Some((number, look_and_tell(file, &options, until)?))
        };
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::sync_channel(workers.min(WAITING));
            for _ in 0..workers {
                let tell = tell.clone();
                let work = move || {
                    // Whoever listened may have stopped.
                    while look_at_next().is_some_and(|looked| tell.send(looked).is_ok()) {}
                };
                // The system has no thread more: those that are there do.
                if Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            drop(tell);
            let mut in_a_row = HashMap::<&str, usize>::new();
            let mut stopped = Stopped::Asked;
            // What is left is done here: nothing, unless there is no other thread.
            for (number, looked) in told.into_iter().chain(std::iter::from_fn(look_at_next)) {
                let Looked { row, gone } = looked;
                if let Err(error) = done(number, &row) {
                    next.store(files.len(), Ordering::Relaxed);
                    return Err(error);
                }
                match (files[number].storage(), gone) {
                    (Some(storage), Some(gone)) => {
                        let count = in_a_row.entry(storage).or_default();
                        *count += 1;
                        if let (GONE, Seen::Unreadable(why)) = (*count, &row.seen) {
                            // What is under way comes to its end.
                            next.store(files.len(), Ordering::Relaxed);
                            stopped = Stopped::Gone { storage: gone, why: why.clone() };
                        }
                    }
                    (Some(storage), None) => {
                        in_a_row.remove(storage);
                    }
                    _ => {}
                }
                rows[number] = Some(row);
            }
            let stopped = if until.is_over() { Stopped::Asked } else { stopped };
            Ok(rows.into_iter().collect::<Option<Vec<_>>>().ok_or(stopped))
        })
    }
}
