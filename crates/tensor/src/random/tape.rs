//! Draws written down, and drawn again.
//!
//! In:  what a function draws on this thread, from whichever generators.
//! Out: the same draws, in the same order, when it runs again. The generators stay where they are
//!      meanwhile, so that other threads which draw from them notice nothing.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use super::Draw;
use crate::error::Error;

/// The draws of one run, in order.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    /// Each with the number of its generator.
    draws: Mutex<Vec<(u64, Draw)>>,
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

    fn get(&self, place: usize) -> Option<(u64, Draw)> {
        self.draws.lock().unwrap_or_else(PoisonError::into_inner).get(place).cloned()
    }

    fn push(&self, draw: (u64, Draw)) {
        self.draws.lock().unwrap_or_else(PoisonError::into_inner).push(draw);
    }
}

/// What this thread draws from a generator: what a tape has, else a new draw.
pub(super) fn drawn(
    generator: u64,
    new: impl FnOnce() -> Result<Draw, Error>,
) -> Result<Draw, Error> {
    let known = SCOPES.with_borrow_mut(|scopes| match innermost_run(scopes).first_mut() {
        Some(Scope::Replay { tape, drawn }) => {
            let draw = tape.get(*drawn).filter(|it| it.0 == generator);
            *drawn += usize::from(draw.is_some());
            draw.map(|it| it.1)
        }
        _ => None,
    });
    let draw = known.map_or_else(new, Ok)?;
    SCOPES.with_borrow_mut(|scopes| {
        for scope in innermost_run(scopes) {
            if let Scope::Record(tape) = scope {
                tape.push((generator, draw.clone()));
            }
        }
    });
    Ok(draw)
}

/// A second run is one as a whole: it is none of the draws of a run around it.
fn innermost_run(scopes: &mut [Scope]) -> &mut [Scope] {
    let inside = scopes.iter().rposition(|it| matches!(it, Scope::Replay { .. })).unwrap_or(0);
    &mut scopes[inside..]
}

/// Whether this thread draws from a tape.
pub(super) fn replays() -> bool {
    SCOPES.with_borrow(|scopes| scopes.iter().any(|it| matches!(it, Scope::Replay { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::error::{Call, Result};

    fn draw(device: &Device) -> Result<Draw> {
        Draw::new(Call::here("draw"), device)
    }

    fn offsets(device: &Device, draws: usize) -> Result<Vec<u64>> {
        (0..draws).map(|_| Ok(draw(device)?.state.offset)).collect()
    }

    #[test]
    fn a_second_run_draws_what_the_first_drew_and_moves_no_generator() -> Result<()> {
        let [a, b] = [(); 2].map(|()| Device::dry("1 GiB").unwrap());
        let tape = Arc::new(Tape::default());
        draw(&a)?;
        let run = || -> Result<_> {
            let first = offsets(&a, 2)?;
            b.manual_seed(9);
            Ok((first, draw(&b)?.state.seed, offsets(&a, 1)?))
        };
        let recorded = tape.record();
        let first = run()?;
        drop(recorded);
        assert_eq!(first, (vec![1, 2], 9, vec![3]));
        assert_eq!(offsets(&a, 1)?, [4]);
        let after = (a.generator().state(), b.generator().state());
        for _ in 0..2 {
            let _replayed = tape.replay();
            assert_eq!(run()?, first);
        }
        let now = (a.generator().state(), b.generator().state());
        assert_eq!(now, after, "neither drawn from nor seeded");
        Ok(())
    }

    #[test]
    fn runs_inside_runs_have_tapes_of_their_own() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let [outer, inner, again] = [(); 3].map(|()| Arc::new(Tape::default()));
        {
            let _outer = outer.record();
            assert_eq!(offsets(&device, 1)?, [0]);
            let _inner = inner.record();
            assert_eq!(offsets(&device, 2)?, [1, 2]);
        }
        {
            let _outer = outer.replay();
            assert_eq!(offsets(&device, 1)?, [0]);
            let _again = again.record();
            assert_eq!(offsets(&device, 2)?, [1, 2]);
            let _inner = inner.replay();
            assert_eq!(offsets(&device, 2)?, [1, 2], "which nobody writes down");
        }
        let _again = again.replay();
        assert_eq!(offsets(&device, 3)?, [1, 2, 3], "the third is new");
        Ok(())
    }
}
