//! A clock that processes share: one that no one sets.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since some moment that is the same for all processes of this machine.
#[must_use]
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is below zero on this clock.
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}
