//! Allocators of the program's own, behind private pools: while one is asked for memory, or given it back, the engine works, and
//! waits for nobody.
//!
//! In:  calls of such an allocator; what the same thread asks for meanwhile.
//! Out: a refusal for each of these, but for what destructors ask for, which a garbage collector may run anywhere: that is kept until
//! the call is over.

use std::cell::{Cell, RefCell};

use tonnage_events::PoolId;

/// What whoever comes back is told.
pub(crate) const SENTENCE: &str = "the allocator of a MemPool was called, and calls PyTorch's allocator itself, which waits for it: let \
                                   it take memory elsewhere, and change or look at PyTorch's memory outside of it";

/// Nothing of the kind.
const IDLE: u8 = 0;
/// An allocator of the program's own works on this thread.
const AT_WORK: u8 = 1;
/// It has worked, and something was left to do meanwhile.
const LEFT: u8 = 2;

/// What destructors of the framework's ask for, and nobody may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// To take a block back; the device is where it is looked for first.
    Free(u32, u64),
    /// To let a private pool of a device serve others no more.
    NoUseOnOom(u32, PoolId),
    /// To take a use from one.
    Release(u32, PoolId),
    /// To give back what one caches.
    Empty(PoolId),
}

thread_local! {
    static STATE: Cell<u8> = const { Cell::new(IDLE) };
    /// What was left to do meanwhile, in order.
    static ERRANDS: RefCell<Vec<Errand>> = const { RefCell::new(Vec::new()) };
}

fn state() -> u8 {
    // A thread that is ending asks no allocator of the program's.
    STATE.try_with(Cell::get).unwrap_or(IDLE)
}

/// Lets it work; also while another does, as when that one drops it.
pub(crate) fn ask<R>(call: impl FnOnce() -> R) -> R {
    let before = state();
    let _ = STATE.try_with(|it| it.set(AT_WORK));
    let answer = call();
    let any_left = ERRANDS.try_with(|it| !it.borrow().is_empty()).unwrap_or(false);
    let after = if any_left && before == IDLE { LEFT } else { before };
    let _ = STATE.try_with(|it| it.set(after));
    answer
}

/// Whether one works on this thread.
#[inline]
pub(crate) fn is_at_work() -> bool {
    state() == AT_WORK
}

/// Keeps what is to be done when the call is over.
#[cold]
pub(crate) fn leave(errand: Errand) {
    let _ = ERRANDS.try_with(|it| it.borrow_mut().push(errand));
}

/// Whether something is left that can be done now.
#[inline]
pub(crate) fn has_left() -> bool {
    state() == LEFT
}

/// What was left to do, once.
#[cold]
pub(crate) fn take_left() -> Vec<Errand> {
    let _ = STATE.try_with(|it| it.set(IDLE));
    ERRANDS.try_with(|it| std::mem::take(&mut *it.borrow_mut())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_that_drops_another_is_at_work_until_its_own_end() {
        let errands = [Errand::Free(0, 7), Errand::Release(1, PoolId(0, 3))];
        ask(|| {
            ask(|| leave(errands[0]));
            assert!(is_at_work() && !has_left());
            leave(errands[1]);
        });
        assert!(!is_at_work() && has_left());
        // The next one may be asked before anything was done.
        ask(|| assert!(is_at_work()));
        assert!(has_left());
        assert_eq!(take_left(), errands);
        assert!(!is_at_work() && !has_left());
        ask(|| ask(|| {}));
        assert!(!is_at_work() && !has_left());
    }
}
