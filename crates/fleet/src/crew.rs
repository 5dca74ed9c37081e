//! All files of a fleet, on every core.
//!
//! In:  files, rows that are known already, what is asked.
//! Out: a row for each file, in the order of the files, whichever was done first.
//!
//! Each worker has one file at a time, and all of them together what one reader may take. Beside that a fleet takes a few
//! kilobytes for each file.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::Builder;

use tonnage_replay::Until;
use tonnage_snapshot::spare_memory;

use crate::facts::Row;
use crate::look::{LookOptions, look};
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

/// The work was stopped before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

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
            Some((number, look(file, &options, until)?))
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
            // What is left is done here: nothing, unless there is no other thread.
            for (number, row) in told.into_iter().chain(std::iter::from_fn(look_at_next)) {
                if let Err(error) = done(number, &row) {
                    next.store(files.len(), Ordering::Relaxed);
                    return Err(error);
                }
                rows[number] = Some(row);
            }
            Ok(rows.into_iter().collect::<Option<Vec<_>>>().ok_or(Stopped))
        })
    }
}
