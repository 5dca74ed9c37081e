//! Processes that were forked off one that uses a device. The driver serves them nothing, and a lock that another thread had at
//! that moment is never let go of in them: so they touch neither.
//!
//! A fork of a process that has not used a device yet is a process like any other.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::devices::opened;

static ORPHAN: AtomicBool = AtomicBool::new(false);

/// What such a process is told.
pub(crate) const SENTENCE: &str = "this process was forked off one that uses the GPU, and cannot use it itself: start it with \
                                   the method `spawn`, or before the first use of the GPU";

/// Whether this process is one of them.
#[inline]
pub(crate) fn is_orphan() -> bool {
    ORPHAN.load(Ordering::Relaxed)
}

/// Sees to it that forks know what they are.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function reads atomics and writes one, which a fork of a process with threads may do. Without memory for
        // the entry forks do not know what they are, as without this.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_fork)) };
    });
}

unsafe extern "C" fn in_the_fork() {
    if opened().next().is_some() {
        ORPHAN.store(true, Ordering::Relaxed);
    }
}
