//! Stage 4: what is open: files, a run, and what-ifs made of them.
//!
//! In:  files as they are read, snapshots of a run, what-ifs as they are asked for.
//! Out: each by its id. Ids are given once: a recording that has gone is not another one later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tonnage_analysis::devices;
use tonnage_engine::Release;
use tonnage_snapshot::SnapshotFile;

use crate::recording::{Info, Kind, Made, Question, Recording};
use crate::run::LiveRun;

/// How many what-ifs are kept; the oldest go.
pub(crate) const MOST_WHAT_IFS: usize = 8;

/// How many recordings of files that were dropped on the page are kept; the oldest go, with the what-ifs made of them.
pub(crate) const MOST_DROPPED: usize = 16;

/// What files do not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViewOptions {
    /// The limit on reserved bytes that was in force, or is asked about.
    pub limit: Option<u64>,
    /// Bytes of the device.
    pub total: Option<u64>,
    /// The release whose rules held; told from the file if none.
    pub release: Option<Release>,
    /// The device, if only one of a file's is wanted.
    pub ordinal: Option<usize>,
}

/// What is open. Clones show the same.
#[derive(Clone)]
pub struct Recordings {
    options: ViewOptions,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    next: u32,
    opened: Vec<Arc<Recording>>,
    /// Ids of recordings from files that were dropped on the page, oldest first.
    dropped: Vec<u32>,
    refused: Vec<Refused>,
    run: Option<LiveRun>,
}

/// A file that could not be opened.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Refused {
    pub(crate) name: String,
    pub(crate) error: String,
}

impl Recordings {
    /// Nothing yet.
    #[must_use]
    pub fn new(options: ViewOptions) -> Self {
        Self { options, state: Arc::default() }
    }

    /// Opens each device of a file; refuses a file that has none.
    pub fn open(&self, name: &str, file: SnapshotFile) {
        if let Err(why) = self.opened(name, file) {
            self.refuse(name, &why);
        }
    }

    /// What each device of a file becomes.
    ///
    /// # Errors
    ///
    /// Why there is nothing to show.
    pub(crate) fn opened(&self, name: &str, file: SnapshotFile) -> Result<Vec<Info>, String> {
        let file = Arc::new(file);
        let mut found: Vec<u32> = devices(&file).iter().map(|it| it.device.0).collect();
        if found.is_empty() {
            return Err(
                "nothing was allocated and nothing was recorded: call \
                 torch.cuda.memory._record_memory_history() before the work and dump the snapshot after it"
                    .to_owned(),
            );
        }
        if let Some(ordinal) = self.options.ordinal {
            let present: Vec<_> = found.iter().map(ToString::to_string).collect();
            found.retain(|&it| it as usize == ordinal);
            if found.is_empty() {
                let present = present.join(", ");
                return Err(format!("device {ordinal} is not in this file; these are: {present}"));
            }
        }
        let added = found.into_iter().map(|device| {
            let conf = file.settings.as_ref().map_or_else(String::new, |it| it.conf.clone());
            let info = Info { name: name.to_owned(), device, conf, ..Info::default() };
            self.add(info, Arc::clone(&file), None).info.clone()
        });
        Ok(added.collect())
    }

    /// The same for a file that was dropped on the page, which gives up the memory of older ones.
    ///
    /// # Errors
    ///
    /// Why there is nothing to show.
    pub(crate) fn dropped(&self, name: &str, file: SnapshotFile) -> Result<Vec<Info>, String> {
        let infos = self.opened(name, file)?;
        let mut state = self.lock();
        state.dropped.extend(infos.iter().map(|it| it.id));
        // A file with more devices than that keeps them all.
        let gone = state.dropped.len().saturating_sub(MOST_DROPPED.max(infos.len()));
        let gone: Vec<u32> = state.dropped.drain(..gone).collect();
        let is_gone = |id: u32| gone.contains(&id);
        state.opened.retain(|it| !is_gone(it.info.id) && !it.info.of.is_some_and(is_gone));
        Ok(infos)
    }

    /// Lists a file that could not be read, and why.
    pub fn refuse(&self, name: &str, error: &str) {
        self.lock().refused.push(Refused { name: name.to_owned(), error: error.to_owned() });
    }

    /// How many recordings there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().opened.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shows a run that goes on, by its name. Its recording is empty until it is given something.
    #[must_use]
    pub fn run(&self, name: &str, conf: &str) -> LiveRun {
        let (name, conf) = (name.to_owned(), conf.to_owned());
        let info = Info { name, kind: Kind::Run, conf, ..Info::default() };
        let added = self.add(info, Arc::default(), None);
        let run = LiveRun::new(self.clone(), added.info.clone());
        self.lock().run = Some(run.clone());
        run
    }

    pub(crate) fn live(&self) -> Option<LiveRun> {
        self.lock().run.clone()
    }

    pub(crate) fn get(&self, id: u32) -> Option<Arc<Recording>> {
        self.lock().opened.iter().find(|it| it.info.id == id).cloned()
    }

    pub(crate) fn infos(&self) -> Vec<Info> {
        self.lock().opened.iter().map(|it| it.info.clone()).collect()
    }

    pub(crate) fn refused(&self) -> Vec<Refused> {
        self.lock().refused.clone()
    }

    /// The what-if that answers this question, if it is still kept.
    pub(crate) fn what_if(&self, question: &Question) -> Option<Arc<Recording>> {
        let answers =
            |it: &&Arc<Recording>| it.made.as_ref().is_some_and(|made| made.question == *question);
        self.lock().opened.iter().find(answers).cloned()
    }

    /// Adds a recording under the next id. Beyond [`MOST_WHAT_IFS`] the oldest what-if goes.
    pub(crate) fn add(
        &self,
        info: Info,
        file: Arc<SnapshotFile>,
        made: Option<Made>,
    ) -> Arc<Recording> {
        let id = {
            let mut state = self.lock();
            state.next += 1;
            state.next - 1
        };
        // Counted without the lock: that takes a moment for a long history.
        let recording = Recording::new(Info { id, ..info }, file, self.options);
        let recording = Arc::new(Recording { made, ..recording });
        let mut state = self.lock();
        state.opened.push(Arc::clone(&recording));
        state.opened.sort_by_key(|it| it.info.id);
        let is_what_if = |it: &Arc<Recording>| it.info.kind == Kind::WhatIf;
        if state.opened.iter().filter(|it| is_what_if(it)).count() > MOST_WHAT_IFS
            && let Some(oldest) = state.opened.iter().position(is_what_if)
        {
            state.opened.remove(oldest);
        }
        recording
    }

    /// Puts what a recording has become in the place of what it was.
    pub(crate) fn replace(&self, info: Info, file: SnapshotFile) {
        let id = info.id;
        let recording = Arc::new(Recording::new(info, Arc::new(file), self.options));
        let mut state = self.lock();
        if let Some(place) = state.opened.iter().position(|it| it.info.id == id) {
            state.opened[place] = recording;
        }
    }

    /// Nothing is left half done while the lock is held, so a panic elsewhere is no reason to give up.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Action, Address, StreamId, TraceEntry};

    use super::*;

    fn file() -> SnapshotFile {
        let (address, stream) = (Address(0x1000), StreamId::DEFAULT);
        let action = Action::Alloc;
        let entry = TraceEntry { action, address, size: 512, stream, time_us: 0, stack: None };
        SnapshotFile { traces: vec![vec![entry]], ..SnapshotFile::default() }
    }

    #[test]
    fn of_files_dropped_on_the_page_the_last_are_kept_and_what_was_opened_stays() {
        let recordings = Recordings::new(ViewOptions::default());
        recordings.open("given", file());
        let first = recordings.dropped("first", file()).unwrap()[0].id;
        let of_first = Info { kind: Kind::WhatIf, of: Some(first), ..Info::default() };
        let of_first = recordings.add(of_first, Arc::new(file()), None).info.id;
        for number in 1..MOST_DROPPED {
            recordings.dropped(&number.to_string(), file()).unwrap();
            assert!(recordings.get(first).is_some() && recordings.get(of_first).is_some());
        }
        recordings.dropped("one more", file()).unwrap();
        assert!(recordings.get(first).is_none() && recordings.get(of_first).is_none());
        assert_eq!(recordings.len(), 1 + MOST_DROPPED);
        assert!(recordings.get(0).is_some());
    }
}
