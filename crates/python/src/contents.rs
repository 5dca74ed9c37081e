//! What a snapshot holds: its history by columns, as it was read and as tables have it, or in a file, as verbs want it.
//!
//! In:  a file that was read, and its history. Out: the whole file, and its table, each made when it is first asked for.
//!
//! A long history is nearly all of a file, and whoever asks for its table and nothing else shall not pay for it twice.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use anyhow::anyhow;
use tonnage::export::EventColumns;
use tonnage::snapshot::{HistoryColumns, SnapshotFile};

/// What a snapshot holds. To be asked by threads that do not have the interpreter's lock: others may be at work on it.
pub(crate) struct Contents {
    state: Mutex<State>,
    /// The process whose thread is at work on it. In a fork that thread is not there, and never gives the state back.
    at_work: AtomicU32,
}

/// How often whoever waits looks whether a thread of its own process is at work, before it gives up, and after how long
/// again: chosen, a second in all.
const LOOKS: u32 = 1000;
const BETWEEN: Duration = Duration::from_millis(1);

enum State {
    /// As it was read: the file has no history.
    Read(SnapshotFile, Vec<HistoryColumns>),
    /// The history is in the table.
    Table(SnapshotFile, Arc<EventColumns>),
    /// The file has it, and there may be a table too.
    Whole(Arc<SnapshotFile>, Option<Arc<EventColumns>>),
    /// Something went wrong on the way from one to the other.
    Lost,
}

impl Contents {
    pub(crate) fn new(file: SnapshotFile, history: Vec<HistoryColumns>) -> Self {
        let state = Mutex::new(State::Read(file, history));
        Self { state, at_work: AtomicU32::new(0) }
    }

    /// The state, which this thread is at work on from now on.
    fn lock(&self) -> anyhow::Result<Guard<'_>> {
        let this = std::process::id();
        let mut looks = 0;
        loop {
            match self.state.try_lock() {
                Ok(state) => {
                    self.at_work.store(this, Ordering::Relaxed);
                    return Ok(Guard { state, at_work: &self.at_work });
                }
                Err(TryLockError::Poisoned(_)) => return Err(lost()),
                Err(TryLockError::WouldBlock) => {
                    let is_ours = self.at_work.load(Ordering::Relaxed) == this;
                    looks = if is_ours { 0 } else { looks + 1 };
                    if looks == LOOKS {
                        return Err(of_parent());
                    }
                    std::thread::sleep(BETWEEN);
                }
            }
        }
    }

    /// The whole file.
    pub(crate) fn file(&self) -> anyhow::Result<Arc<SnapshotFile>> {
        let mut guard = self.lock()?;
        let state = &mut *guard.state;
        let whole = |mut file: SnapshotFile, history: Vec<HistoryColumns>| {
            file.traces = history.into_iter().map(|it| it.entries()).collect();
            Arc::new(file)
        };
        let (file, table) = match mem::replace(state, State::Lost) {
            State::Read(file, history) => (whole(file, history), None),
            State::Table(file, table) => (whole(file, table.histories()), Some(table)),
            State::Whole(file, table) => (file, table),
            State::Lost => return Err(lost()),
        };
        *state = State::Whole(Arc::clone(&file), table);
        Ok(file)
    }

    /// The table of its events.
    pub(crate) fn table(&self) -> anyhow::Result<Arc<EventColumns>> {
        let mut guard = self.lock()?;
        let state = &mut *guard.state;
        let table = match state {
            State::Table(_, table) | State::Whole(_, Some(table)) => return Ok(Arc::clone(table)),
            State::Read(file, history) => EventColumns::take(file, history)?,
            State::Whole(file, None) => EventColumns::of(file)?,
            State::Lost => return Err(lost()),
        };
        let table = Arc::new(table);
        let made = Arc::clone(&table);
        *state = match mem::replace(state, State::Lost) {
            State::Read(file, _) => State::Table(file, made),
            State::Whole(file, _) => State::Whole(file, Some(made)),
            other => other,
        };
        Ok(table)
    }
}

/// The state, until dropped.
struct Guard<'a> {
    state: MutexGuard<'a, State>,
    at_work: &'a AtomicU32,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.at_work.store(0, Ordering::Relaxed);
    }
}

fn of_parent() -> anyhow::Error {
    anyhow!(
        "a thread of the process that this one was forked from was at work on the snapshot: read it again here"
    )
}

fn lost() -> anyhow::Error {
    anyhow!("the snapshot was lost when something else went wrong: read it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_does_not_wait_for_a_thread_of_its_parent() {
        let contents = Contents::new(SnapshotFile::default(), Vec::new());
        let _held = contents.lock().unwrap();
        // As in a fork: the one at work is of another process, and never lets go.
        contents.at_work.store(std::process::id() + 1, Ordering::Relaxed);
        let error = contents.table().map(drop).unwrap_err().to_string();
        assert!(error.contains("forked from") && error.contains("read it again"), "{error}");
    }
}
