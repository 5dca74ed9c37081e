//! Locks: one made for short, hot sections, or those that a model checker schedules.

#[cfg(not(feature = "shuttle"))]
mod raw_lock;

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Arc, Mutex, MutexGuard, Weak};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Arc, Weak};

#[cfg(not(feature = "shuttle"))]
pub(crate) type Mutex<T> = lock_api::Mutex<raw_lock::RawLock, T>;
#[cfg(not(feature = "shuttle"))]
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, raw_lock::RawLock, T>;

/// Takes the lock. A thread that panicked while it held it leaves the books as they are: the engine
/// panics only on broken invariants, and then says so.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(feature = "shuttle"))]
    return mutex.lock();
    #[cfg(feature = "shuttle")]
    return mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
}

/// Takes the lock if no one has it.
#[inline]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(not(feature = "shuttle"))]
    return mutex.try_lock();
    #[cfg(feature = "shuttle")]
    return match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    };
}
