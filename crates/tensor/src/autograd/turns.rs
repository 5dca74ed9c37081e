//! A value that threads use in turns, also while code of the program's runs.
//!
//! That code may come back for the value, on the same thread, where a lock would wait for ever: here it is told so.
//! A thread that it starts and waits for waits as for any lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

thread_local! {
    /// Its address tells a thread from all others that run.
    static HERE: u8 = const { 0 };
}

fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// A value for one thread at a time.
pub(crate) struct Turns<T> {
    value: Mutex<T>,
    /// The thread whose turn it is, or 0. A thread finds its own name there only while it is its turn: nobody else
    /// writes it.
    whose: AtomicUsize,
}

/// The value is in use by the thread that asks for it.
pub(crate) struct InUse;

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), whose: AtomicUsize::new(0) }
    }

    /// Waits for a turn and uses the value.
    ///
    /// # Errors
    ///
    /// If it is this thread's turn already.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, InUse> {
        struct End<'a>(&'a AtomicUsize);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        let thread = this_thread();
        if self.whose.load(Ordering::Relaxed) == thread {
            return Err(InUse);
        }
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.whose.store(thread, Ordering::Relaxed);
        // Before the lock is let go, also if the work panics.
        let _end = End(&self.whose);
        Ok(work(&mut value))
    }

    /// The value, of which nobody else knows.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_comes_back_is_told_and_others_take_turns() {
        let turns = Turns::new(0_u32);
        let inner = turns.with(|count| {
            *count += 1;
            turns.with(|_| ()).is_err()
        });
        assert!(inner.is_ok_and(|refused| refused));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| drop(turns.with(|count| *count += 1))));
            }
        });
        assert!(turns.with(|count| *count).is_ok_and(|count| count == 401));
    }

    #[test]
    fn a_panic_ends_the_turn() {
        let mut turns = Turns::new(1);
        let panics = std::panic::AssertUnwindSafe(|| turns.with(|_| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(turns.with(|value| *value += 1).is_ok());
        assert_eq!(*turns.get_mut(), 2);
    }
}
