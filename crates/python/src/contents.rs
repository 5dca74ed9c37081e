//! What a snapshot holds: its history by columns, as it was read and as tables have it, or in a file, as verbs want it.
//!
//! In:  a file that was read, and its history. Out: the whole file, and its table, each made when it is first asked for.
//!
//! A long history is nearly all of a file, and whoever asks for its table and nothing else shall not pay for it twice.

use std::mem;
use std::sync::{Arc, Mutex};

use anyhow::anyhow;
use tonnage::export::EventColumns;
use tonnage::snapshot::{HistoryColumns, SnapshotFile};

/// What a snapshot holds. To be asked by threads that do not have the interpreter's lock: others may be at work on it.
pub(crate) struct Contents(Mutex<State>);

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
        Self(Mutex::new(State::Read(file, history)))
    }

    /// The whole file.
    pub(crate) fn file(&self) -> anyhow::Result<Arc<SnapshotFile>> {
        let mut state = self.0.lock().map_err(|_| lost())?;
        let whole = |mut file: SnapshotFile, history: Vec<HistoryColumns>| {
            file.traces = history.into_iter().map(|it| it.entries()).collect();
            Arc::new(file)
        };
        let (file, table) = match mem::replace(&mut *state, State::Lost) {
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
        let mut state = self.0.lock().map_err(|_| lost())?;
        let table = match &mut *state {
            State::Table(_, table) | State::Whole(_, Some(table)) => return Ok(Arc::clone(table)),
            State::Read(file, history) => EventColumns::take(file, history)?,
            State::Whole(file, None) => EventColumns::of(file)?,
            State::Lost => return Err(lost()),
        };
        let table = Arc::new(table);
        let made = Arc::clone(&table);
        *state = match mem::replace(&mut *state, State::Lost) {
            State::Read(file, _) => State::Table(file, made),
            State::Whole(file, _) => State::Whole(file, Some(made)),
            other => other,
        };
        Ok(table)
    }
}

fn lost() -> anyhow::Error {
    anyhow!("the snapshot was lost when something else went wrong: read it again")
}
