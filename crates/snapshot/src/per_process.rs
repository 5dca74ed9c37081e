//! Values that each process has for itself, forks too.
//!
//! In:  what a value is at first. Out: this process's own.
//!
//! A fork has its parent's memory and none of its threads: a lock that one of them held is held there for ever. So a fork
//! begins anew, with locks that no one holds. Nothing is waited for on the way to them.

use once_cell::race::OnceBox;

/// A value that each process has for itself. To be kept in a `static`.
pub(crate) struct PerProcess<T: 'static>(OnceBox<Own<T>>);

/// The value of one process, and behind it that of a fork of it, which has this one in its memory too.
struct Own<T: 'static> {
    process: u32,
    value: T,
    of_fork: OnceBox<Self>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// This process's own.
    pub(crate) fn get(&self) -> &T {
        self.get_as(std::process::id())
    }

    fn get_as(&self, process: u32) -> &T {
        let begin = || Box::new(Own { process, value: T::default(), of_fork: OnceBox::new() });
        let mut own = self.0.get_or_init(begin);
        // The last one is of the process itself, or of the nearest before it that asked. Numbers are given again: one
        // further up may be of another process with the same.
        while let Some(next) = own.of_fork.get() {
            own = next;
        }
        if own.process != process {
            own = own.of_fork.get_or_init(begin);
        }
        &own.value
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_fork_does_not_wait_for_a_lock_of_its_parent() {
        static LISTS: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
        let parents = LISTS.get_as(7);
        let mut held = parents.lock().unwrap();
        held.push(1);
        assert!(ptr::eq(parents, LISTS.get_as(7)));
        // As in a fork: another number, and the parent's thread that would give the lock back is not there.
        let forks = LISTS.get_as(8);
        assert!(forks.try_lock().unwrap().is_empty());
        let _held_too = forks.lock().unwrap();
        // A fork of the fork, with the number that the first one had.
        assert!(LISTS.get_as(7).try_lock().unwrap().is_empty());
    }
}
