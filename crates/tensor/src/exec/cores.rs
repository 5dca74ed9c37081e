//! The threads that loops over elements are split over.
//!
//! In:  a kernel, on its stream's thread. Out: the same, done.
//!
//! These are rayon's own, until this process turns out to be a fork of another: the parent's threads did not come along,
//! and whoever waits for them waits for ever. A fork therefore has a pool of its own, and locks of its own: one of its
//! parent's may have been held by a thread that is not there.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::order::lock;

/// How many forks lie between this process and the first. In a fork, rayon's own threads may be its parent's.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Copies between devices queue on both at once. Two of them in opposite order would wait for each other for ever, so they
/// take turns: those of this process. Each fork of a fork has the next lock; no one forks so often.
static ACROSS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// The turn of a copy between devices.
pub(super) fn turn_across() -> MutexGuard<'static, ()> {
    lock(&ACROSS[FORKS.load(Ordering::Acquire) % ACROSS.len()])
}

/// The pool of this fork, once it has one. No lock guards it: another thread might have held that when the process was
/// forked.
static POOL: AtomicPtr<ThreadPool> = AtomicPtr::new(ptr::null_mut());

/// Says that this process is a fork of one that may have used tensors: for handlers that run in the child.
///
/// Devices and tensors of the parent are of no use here; new ones work.
pub fn after_fork() {
    // A parent that was a fork itself has left its pool's address: what lies there is never given back.
    POOL.store(ptr::null_mut(), Ordering::Release);
    FORKS.fetch_add(1, Ordering::AcqRel);
}

/// Does the work where its loops find threads.
pub(super) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if FORKS.load(Ordering::Acquire) == 0 {
        return work();
    }
    match pool() {
        Some(pool) => pool.install(work),
        // Rayon's own threads would be waited for for ever. What panics in a stream is an error of the call.
        None => panic!("this process is a fork, and there are no threads to be had for it"),
    }
}

fn pool() -> Option<&'static ThreadPool> {
    let known = POOL.load(Ordering::Acquire);
    let known = if known.is_null() {
        let pool = ThreadPoolBuilder::new().build();
        let pool = pool.or_else(|_| ThreadPoolBuilder::new().num_threads(1).build()).ok()?;
        let made = Box::into_raw(Box::new(pool));
        let put = POOL.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        match put {
            Ok(_) => made,
            Err(known) => {
                // SAFETY: it is this function's own still, made by `Box::into_raw` above.
                drop(unsafe { Box::from_raw(made) });
                known
            }
        }
    } else {
        known
    };
    // SAFETY: what `POOL` holds was made by `Box::into_raw` above, and is never given back.
    Some(unsafe { &*known })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_threads_of_its_own() {
        // Other tests of this process may be at their turn: none of them forks.
        let held = turn_across();
        after_fork();
        drop(turn_across());
        drop(held);
        assert_eq!(rayon::current_thread_index(), None, "a test is no thread of a pool");
        assert!(run(rayon::current_thread_index).is_some());
        let before = pool().unwrap();
        // A real fork of a fork has its parent's memory, and nobody looks for what is lost there; here someone does.
        static FIRST: AtomicPtr<ThreadPool> = AtomicPtr::new(ptr::null_mut());
        FIRST.store(ptr::from_ref(before).cast_mut(), Ordering::Release);
        std::hint::black_box(&FIRST);
        assert!(ptr::eq(before, pool().unwrap()), "one for all kernels");
        after_fork();
        assert!(!ptr::eq(before, pool().unwrap()), "a fork of a fork has another");
        // Other tests of this process are in no fork.
        FORKS.store(0, Ordering::Release);
    }
}
