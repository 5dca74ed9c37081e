//! A lock for sections that are short and many: one atomic instruction to take it, none to give it
//! back.
//!
//! The standard library's lock swaps on the way out, to learn whether someone sleeps; that swap is a
//! tenth of an allocation. Here a plain store lets go. What the swap would have ensured, that no
//! sleeper is overlooked, is ensured by sleeping for a bounded time instead.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Pauses between two tries at first, and at most. Whoever holds the lock has the allocator's books in
/// its cache; handing them to another core costs ten times an allocation. Waiters therefore look
/// seldom, and the holder serves several of its own requests before the books move on.
const PAUSES: std::ops::RangeInclusive<u32> = 64..=1024;

/// Tries before a thread lies down to sleep: some hundred microseconds, which only a driver call takes.
const TRIES: u32 = 16;

/// How long a sleeper waits to be woken before it looks by itself.
const SLEEP: Duration = Duration::from_millis(1);

/// The lock without what it guards.
pub(crate) struct RawLock {
    held: AtomicBool,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
    /// What the condition variable asks for; it guards nothing.
    sleeping: Mutex<()>,
    unlocked: Condvar,
}

// SAFETY: `held` goes from false to true only by the compare-and-exchange in `try_lock`, which one
// thread wins, and back only in `unlock`, which the trait allows only to whoever holds the lock. So
// at most one thread holds it. Acquire there and Release here order what is done inside.
#[expect(unsafe_code, reason = "the trait is unsafe to implement; the argument is above")]
unsafe impl lock_api::RawMutex for RawLock {
    const INIT: Self = Self {
        held: AtomicBool::new(false),
        sleepers: AtomicU32::new(0),
        sleeping: Mutex::new(()),
        unlocked: Condvar::new(),
    };

    type GuardMarker = lock_api::GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.held.store(false, Ordering::Release);
        // The load may pass the store, and a sleeper be overlooked that has just lain down: it wakes
        // by itself.
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }
}

impl RawLock {
    #[cold]
    fn lock_contended(&self) {
        use lock_api::RawMutex as _;
        let mut pauses = *PAUSES.start();
        for _ in 0..TRIES {
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            if self.looks_free() && self.try_lock() {
                return;
            }
            pauses = (pauses * 2).min(*PAUSES.end());
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        while !self.try_lock() {
            let sleeping = self.sleeping.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.unlocked.wait_timeout(sleeping, SLEEP));
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a try is worth it; a failed one would take the cache line from its holder.
    fn looks_free(&self) -> bool {
        !self.held.load(Ordering::Relaxed)
    }

    #[cold]
    fn wake(&self) {
        self.unlocked.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::sync::{Mutex, lock};

    #[test]
    fn no_increment_is_lost_among_threads_that_spin_and_sleep() {
        let counter = Mutex::new(0_u64);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let counter = &counter;
                scope.spawn(move || {
                    for turn in 0..2_000 {
                        let mut count = lock(counter);
                        // Not atomic: another thread inside would show.
                        let before = *count;
                        if turn % 500 == thread {
                            // Long enough for the others to lie down.
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*lock(&counter), 16_000);
    }

    #[test]
    fn a_panic_while_holding_the_lock_lets_go_of_it() {
        let value = Mutex::new(1);
        let result = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = lock(&value);
                panic!("on purpose");
            });
            holder.join()
        });
        assert!(result.is_err());
        assert_eq!(*lock(&value), 1);
    }
}
