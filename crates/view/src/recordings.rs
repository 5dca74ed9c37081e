//! Stage 4: what is open: files, a run, a fleet's ranks, and what-ifs made of them.
//!
//! In:  files as they are read, snapshots of a run, ranks and what-ifs as they are asked for.
//! Out: each by its id. Ids are given once: a recording that has gone is not another one later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tonnage_analysis::devices;
use tonnage_engine::Release;
use tonnage_snapshot::SnapshotFile;

use crate::fleet::Fleet;
use crate::recording::{Info, Kind, Made, Question, Recording};
use crate::run::LiveRun;

/// How many what-ifs are kept; the oldest go.
pub(crate) const MOST_WHAT_IFS: usize = 8;

/// How many recordings of files that the page opened are kept, dropped on it or ranks of a fleet; the oldest go, with the
/// what-ifs made of them.
pub(crate) const MOST_DROPPED: usize = 16;

/// The entries that they have together; beyond that fewer are kept, but two, which may be compared. Chosen: with what is
/// computed of them, some gigabytes.
const MOST_ENTRIES: usize = 16 << 20;

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
    /// Ids of recordings from files that the page opened, oldest first.
    dropped: Vec<u32>,
    refused: Vec<Refused>,
    run: Option<LiveRun>,
    fleet: Option<Arc<Fleet>>,
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
        if let Err(why) = self.opened(name, file, self.options.ordinal, None) {
            self.refuse(name, &why);
        }
    }

    /// What each device of a file becomes, or the one that is wanted; `row` is the file's number in the fleet, if it is of one.
    fn opened(
        &self,
        name: &str,
        file: SnapshotFile,
        ordinal: Option<usize>,
        row: Option<u32>,
    ) -> Result<Vec<Info>, String> {
        let file = Arc::new(file);
        let mut found: Vec<u32> = devices(&file).iter().map(|it| it.device.0).collect();
        if found.is_empty() {
            return Err(
                "nothing was allocated and nothing was recorded: call \
                 torch.cuda.memory._record_memory_history() before the work and dump the snapshot after it"
                    .to_owned(),
            );
        }
        if let Some(ordinal) = ordinal {
            let present: Vec<_> = found.iter().map(ToString::to_string).collect();
            found.retain(|&it| it as usize == ordinal);
            if found.is_empty() {
                let present = present.join(", ");
                return Err(format!("device {ordinal} is not in this file; these are: {present}"));
            }
        }
        let added = found.into_iter().map(|device| {
            let conf = file.settings.as_ref().map_or_else(String::new, |it| it.conf.clone());
            let info = Info { name: name.to_owned(), device, conf, row, ..Info::default() };
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
        let infos = self.opened(name, file, self.options.ordinal, None)?;
        self.let_go(&infos);
        Ok(infos)
    }

    /// The same for the file of a fleet's rank, of which one device is shown.
    ///
    /// # Errors
    ///
    /// Why there is nothing to show.
    pub(crate) fn opened_row(
        &self,
        name: &str,
        file: SnapshotFile,
        device: u32,
        row: Option<u32>,
    ) -> Result<Info, String> {
        let infos = self.opened(name, file, Some(device as usize), row)?;
        self.let_go(&infos);
        infos.into_iter().next().ok_or_else(|| "there is nothing to show".to_owned())
    }

    /// Gives up the oldest recordings that the page opened, where these are too many.
    fn let_go(&self, infos: &[Info]) {
        let mut state = self.lock();
        state.dropped.extend(infos.iter().map(|it| it.id));
        let entries: BTreeMap<_, _> =
            state.opened.iter().map(|it| (it.info.id, it.info.entries)).collect();
        let newest = state.dropped.iter().rev().map(|id| entries.get(id).copied().unwrap_or(0));
        // A file with more devices than that keeps them all.
        let gone = state.dropped.len() - kept(newest, infos.len().max(2));
        let gone: Vec<u32> = state.dropped.drain(..gone).collect();
        let is_gone = |id: u32| gone.contains(&id);
        state.opened.retain(|it| !is_gone(it.info.id) && !it.info.of.is_some_and(is_gone));
    }

    /// Takes a recording for the newest of those that the page opened, if it is one of them.
    pub(crate) fn asked_again(&self, id: u32) {
        let mut state = self.lock();
        if let Some(place) = state.dropped.iter().position(|&it| it == id) {
            state.dropped[place..].rotate_left(1);
        }
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

    pub(crate) fn set_fleet(&self, fleet: Arc<Fleet>) {
        self.lock().fleet = Some(fleet);
    }

    pub(crate) fn fleet(&self) -> Option<Arc<Fleet>> {
        self.lock().fleet.clone()
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

/// How many are kept of recordings with so many entries, the newest first: `least` of them, whatever they have.
fn kept(entries: impl Iterator<Item = usize>, least: usize) -> usize {
    let mut all = 0_usize;
    let stays = |&(place, entries): &(usize, usize)| {
        all = all.saturating_add(entries);
        place < least || (place < MOST_DROPPED && all <= MOST_ENTRIES)
    };
    entries.enumerate().take_while(stays).count()
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

    #[test]
    fn of_long_recordings_fewer_are_kept_but_two_and_all_devices_of_a_file() {
        let kept = |entries: &[usize], least| kept(entries.iter().copied(), least);
        assert_eq!(kept(&[1; 40], 2), MOST_DROPPED);
        assert_eq!(kept(&[1; 40], 20), 20);
        let third = MOST_ENTRIES / 3;
        assert_eq!(kept(&[third; 16], 2), 3);
        assert_eq!(kept(&[1, 1, MOST_ENTRIES, 1], 2), 2);
        assert_eq!(kept(&[usize::MAX, usize::MAX, 1], 2), 2);
        assert_eq!(kept(&[MOST_ENTRIES; 9], 8), 8);
        assert_eq!((kept(&[usize::MAX], 2), kept(&[], 2)), (1, 0));
    }

    /// Two ranks are compared: the second must not take the place of the first.
    #[test]
    fn what_was_asked_for_again_stays() {
        let recordings = Recordings::new(ViewOptions::default());
        let dropped = |name: &str| recordings.dropped(name, file()).unwrap()[0].id;
        let (first, second) = (dropped("first"), dropped("second"));
        for number in 2..MOST_DROPPED {
            dropped(&number.to_string());
        }
        recordings.asked_again(first);
        dropped("one more");
        assert!(recordings.get(first).is_some() && recordings.get(second).is_none());
    }
}
