//! Draws written down, and drawn again.
//!
//! In:  what a function draws on this thread, from whichever generators.
//! Out: the same draws, in the same order, when it runs again. The generators stay where they are
//!      meanwhile, so that other threads which draw from them notice nothing.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use super::GeneratorState;

/// The draws of one run, in order.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    draws: Mutex<Vec<Draw>>,
}

#[derive(Clone, Copy, Debug)]
struct Draw {
    /// The number of the generator.
    generator: u64,
    state: GeneratorState,
}

/// What this thread's draws go through.
enum Scope {
    /// They are written down.
    Record(Arc<Tape>),
    /// They are taken from the tape, of which the first `drawn` are used up.
    Replay { tape: Arc<Tape>, drawn: usize },
}

thread_local! {
    /// Runs inside runs, the innermost last.
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

/// Ends recording or replaying when dropped. It belongs to its thread.
#[must_use = "it ends when the guard is dropped"]
pub(crate) struct TapeGuard(PhantomData<*const ()>);

impl Drop for TapeGuard {
    fn drop(&mut self) {
        let ended = SCOPES.with_borrow_mut(Vec::pop);
        drop(ended);
    }
}

fn enter(scope: Scope) -> TapeGuard {
    SCOPES.with_borrow_mut(|scopes| scopes.push(scope));
    TapeGuard(PhantomData)
}

impl Tape {
    /// Writes down what this thread draws until the guard is dropped.
    pub(crate) fn record(self: &Arc<Self>) -> TapeGuard {
        enter(Scope::Record(Arc::clone(self)))
    }

    /// Lets this thread draw the same again, from the beginning, until the guard is dropped.
    pub(crate) fn replay(self: &Arc<Self>) -> TapeGuard {
        enter(Scope::Replay { tape: Arc::clone(self), drawn: 0 })
    }

    fn get(&self, place: usize) -> Option<Draw> {
        self.draws.lock().unwrap_or_else(PoisonError::into_inner).get(place).copied()
    }

    fn push(&self, draw: Draw) {
        self.draws.lock().unwrap_or_else(PoisonError::into_inner).push(draw);
    }
}

/// What this thread draws from a generator: what a tape has, else a new draw.
pub(super) fn drawn(generator: u64, new: impl FnOnce() -> GeneratorState) -> GeneratorState {
    SCOPES.with_borrow_mut(|scopes| {
        // A second run is one as a whole: it is none of the draws of a run around it.
        let inside = scopes.iter().rposition(|it| matches!(it, Scope::Replay { .. })).unwrap_or(0);
        let scopes = &mut scopes[inside..];
        let known = match scopes.first_mut() {
            Some(Scope::Replay { tape, drawn }) => {
                let draw = tape.get(*drawn).filter(|it| it.generator == generator);
                *drawn += usize::from(draw.is_some());
                draw
            }
            _ => None,
        };
        let state = known.map_or_else(new, |it| it.state);
        for scope in scopes {
            if let Scope::Record(tape) = scope {
                tape.push(Draw { generator, state });
            }
        }
        state
    })
}

/// Whether this thread draws from a tape.
pub(super) fn replays() -> bool {
    SCOPES.with_borrow(|scopes| scopes.iter().any(|it| matches!(it, Scope::Replay { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;

    fn offsets(generator: &Generator, draws: usize) -> Vec<u64> {
        (0..draws).map(|_| generator.draw().offset).collect()
    }

    #[test]
    fn a_second_run_draws_what_the_first_drew_and_moves_no_generator() {
        let [a, b] = [(); 2].map(|()| Generator::default());
        let tape = Arc::new(Tape::default());
        a.draw();
        let run = || {
            let first = offsets(&a, 2);
            b.manual_seed(9);
            (first, b.draw().seed, offsets(&a, 1))
        };
        let recorded = tape.record();
        let first = run();
        drop(recorded);
        assert_eq!(first, (vec![1, 2], 9, vec![3]));
        assert_eq!(offsets(&a, 1), [4]);
        let after = (a.state(), b.state());
        for _ in 0..2 {
            let _replayed = tape.replay();
            assert_eq!(run(), first);
        }
        assert_eq!((a.state(), b.state()), after, "neither drawn from nor seeded");
    }

    #[test]
    fn runs_inside_runs_have_tapes_of_their_own() {
        let generator = Generator::default();
        let [outer, inner, again] = [(); 3].map(|()| Arc::new(Tape::default()));
        {
            let _outer = outer.record();
            assert_eq!(offsets(&generator, 1), [0]);
            let _inner = inner.record();
            assert_eq!(offsets(&generator, 2), [1, 2]);
        }
        {
            let _outer = outer.replay();
            assert_eq!(offsets(&generator, 1), [0]);
            let _again = again.record();
            assert_eq!(offsets(&generator, 2), [1, 2]);
            let _inner = inner.replay();
            assert_eq!(offsets(&generator, 2), [1, 2], "which nobody writes down");
        }
        let _again = again.replay();
        assert_eq!(offsets(&generator, 3), [1, 2, 3], "the third is new");
    }
}
