//! Locks: the standard library's, or those that a model checker schedules.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

/// Pauses between two tries at first, and at most. Whoever holds the lock has the allocator's books in
/// its cache; handing them to another core costs ten times an allocation. Waiters therefore look
/// seldom, and the holder serves several of its own requests before the books move on.
#[cfg(not(feature = "shuttle"))]
const PAUSES: std::ops::RangeInclusive<u32> = 4..=256;

/// Tries before a thread lies down to sleep: about half a millisecond, which only a driver call takes.
#[cfg(not(feature = "shuttle"))]
const TRIES: u32 = 64;

/// Takes the lock. A thread that panicked while it held it leaves the books as they are: the engine
/// panics only on broken invariants, and then says so.
#[cfg(not(feature = "shuttle"))]
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(_) => lock_contended(mutex),
    }
}

#[cfg(not(feature = "shuttle"))]
#[cold]
fn lock_contended<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let mut pauses = *PAUSES.start();
    for _ in 0..TRIES {
        for _ in 0..pauses {
            std::hint::spin_loop();
        }
        if let Ok(guard) = mutex.try_lock() {
            return guard;
        }
        pauses = (pauses * 2).min(*PAUSES.end());
    }
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes the lock.
#[cfg(feature = "shuttle")]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
