//! Many ranks of a job, each predicted, as many at once as the machine has cores and memory for.
//!
//! In:  ranks, what is asked of each, what to make of each outcome.
//! Out: what was made of them, told as soon as it is there, in any order.
//!
//! What ranks that are done wrote is told to those that begin then: one that reads some of it may go on from there. How much memory one takes is known once one is done. Until then one runs, and another
//! begins every few seconds, as long as there is memory to spare beside what runs takes by then.

use std::num::NonZeroUsize;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonnage_replay::Until;
use tonnage_snapshot::spare_memory;

use crate::files::joined;
use crate::process::{is_stopped, stop_scripts_when};
use crate::{Environment, Error, Options, Outcome, World, predict};

/// Memory of a prediction at least: a Python with PyTorch takes 0.7 GiB beside the script's own.
const LEAST: u64 = 1 << 30;

/// How often another one begins while none is done: chosen, PyTorch is imported by then.
const ANOTHER: Duration = Duration::from_secs(5);

/// How often it is looked whether the work is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Predicts ranks, at most `at_once` at the same time; if none is given as many as there are cores, and memory for.
/// `make` is called where the prediction ran; `done` here, and returns an error to stop everything.
///
/// # Errors
///
/// The first error of `make`, of `done`, or of a script that cannot be run; it stops those that run. A script that fails is an
/// outcome.
pub fn predict_ranks<T: Send, E: From<Error> + Send>(
    worlds: &[World],
    (options, environment): (&Options, &Environment),
    at_once: Option<NonZeroUsize>,
    make: impl Fn(World, Outcome) -> Result<T, E> + Sync,
    mut done: impl FnMut(World, T) -> Result<(), E>,
) -> Result<(), E> {
    let crew = Crew::new(worlds.len(), at_once);
    let written = Mutex::new(options.written.clone());
    let written = || written.lock().unwrap_or_else(PoisonError::into_inner);
    let (until, stop) = Until::told();
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        for _ in 0..crew.most.min(worlds.len()) {
            let (tell, crew, make, until, written) = (tell.clone(), &crew, &make, &until, &written);
            let work = move || {
                while let Some(number) = crew.next() {
                    let world = worlds[number];
                    let before = written().clone();
                    let options =
                        Options { world: Some(world), written: before, ..options.clone() };
                    let made =
                        predict(&options, environment).map_err(E::from).and_then(|outcome| {
                            crew.learn(outcome.host_together.max(outcome.host[1]));
                            let mut written = written();
                            *written = joined(std::mem::take(&mut *written), outcome.files.clone());
                            drop(written);
                            make(world, outcome)
                        });
                    crew.one_less();
                    // Whoever listened has stopped.
                    if tell.send((world, made)).is_err() {
                        return;
                    }
                }
            };
            scope.spawn(move || stop_scripts_when(until, work));
        }
        drop(tell);
        loop {
            if is_stopped() {
                stop.now();
            }
            let error = match told.recv_timeout(LOOK) {
                Ok((world, made)) => made.and_then(|made| done(world, made)).err(),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) if is_stopped() => Some(Error::Stopped.into()),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if let Some(error) = error {
                crew.end();
                stop.now();
                return Err(error);
            }
        }
    })
}

/// Who works, and how much memory that may take.
struct Crew {
    state: Mutex<State>,
    changed: Condvar,
    ranks: usize,
    /// Workers.
    most: usize,
    /// Bytes for all of them; none if someone has said how many there are.
    memory: Option<u64>,
}

struct State {
    next: usize,
    running: usize,
    /// Most memory that a prediction took; none until one is done.
    each: Option<u64>,
    /// How many may run until then, and since when.
    begun: usize,
    since: Instant,
}

impl Crew {
    fn new(ranks: usize, at_once: Option<NonZeroUsize>) -> Self {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let since = Instant::now();
        Self {
            state: Mutex::new(State { next: 0, running: 0, each: None, begun: 1, since }),
            changed: Condvar::new(),
            ranks,
            most: at_once.unwrap_or_else(cores).get(),
            memory: if at_once.is_some() { None } else { spare_memory() },
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many may run at this time; `spare` is the memory that nobody has then.
    fn may_run(
        &self,
        state: &mut State,
        now: Instant,
        spare: impl FnOnce() -> Option<u64>,
    ) -> usize {
        let Some(memory) = self.memory else { return self.most };
        if let Some(each) = state.each {
            return usize::try_from(memory / each).unwrap_or(usize::MAX).clamp(1, self.most);
        }
        let is_time = now.saturating_duration_since(state.since) >= ANOTHER;
        if is_time && state.running == state.begun && state.begun < self.most {
            state.since = now;
            state.begun += usize::from(spare().is_some_and(|spare| spare > 2 * LEAST));
        }
        state.begun
    }

    /// The next rank, once there is memory for it; none if there is none, or the work is to end.
    fn next(&self) -> Option<usize> {
        let mut state = self.state();
        loop {
            if state.next >= self.ranks || is_stopped() {
                return None;
            }
            if state.running < self.may_run(&mut state, Instant::now(), spare_memory) {
                state.running += 1;
                state.next += 1;
                return Some(state.next - 1);
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What a prediction took; nothing where that is not known.
    fn learn(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = self.state();
            state.each = state.each.max(Some(bytes.max(LEAST)));
        }
    }

    fn one_less(&self) {
        self.state().running -= 1;
        self.changed.notify_all();
    }

    /// No more begin.
    fn end(&self) {
        self.state().next = self.ranks;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_run_as_there_is_memory_for_and_always_one() {
        let may_run = |memory, bytes| {
            let crew = Crew { memory, most: 4, ..Crew::new(9, None) };
            crew.learn(bytes);
            let now = Instant::now();
            crew.may_run(&mut crew.state(), now, || panic!("it is known what one takes"))
        };
        assert_eq!(may_run(Some(8 << 30), 1), 4);
        assert_eq!(may_run(Some(8 << 30), 3 << 30), 2);
        assert_eq!(may_run(Some(1 << 20), 1), 1);
        assert_eq!(may_run(None, u64::MAX), 4);
        let told = Crew::new(9, NonZeroUsize::new(7));
        assert_eq!((told.most, told.memory), (7, None));
    }

    #[test]
    fn until_one_is_done_another_begins_by_and_by() {
        let crew = Crew { memory: Some(64 << 30), most: 3, ..Crew::new(9, None) };
        let mut state = crew.state();
        let mut now = state.since;
        let mut after = |seconds, running, spare: u64| {
            now += Duration::from_secs(seconds);
            state.running = running;
            crew.may_run(&mut state, now, || Some(spare))
        };
        assert_eq!(after(1, 1, 64 << 30), 1);
        assert_eq!(after(4, 1, 64 << 30), 2);
        assert_eq!(after(4, 2, 64 << 30), 2);
        // What runs has taken it.
        assert_eq!(after(1, 2, 2 << 30), 2);
        // One that is over without a word makes room for another.
        assert_eq!(after(9, 1, 64 << 30), 2);
        assert_eq!(after(0, 2, 3 << 30), 3);
        assert_eq!(after(9, 3, 64 << 30), 3, "no more than there are cores");
    }

    #[test]
    fn each_rank_is_taken_once_and_none_after_the_end() {
        let crew = Crew::new(3, NonZeroUsize::new(8));
        assert_eq!([crew.next(), crew.next()], [Some(0), Some(1)]);
        crew.end();
        assert_eq!(crew.next(), None);
    }
}
