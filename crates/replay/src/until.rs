//! When long work is to end before it is done: at a time, when someone says so, or never.
//!
//! In: what to end at. Out: whether that is now. Work asks between its pieces: the plays of a recording, of which one of a
//! million entries takes a fraction of a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// When to stop. By default never.
///
/// ```
/// use tonnage_replay::Until;
///
/// let (until, stop) = Until::told();
/// assert!(!until.is_over());
/// stop.now();
/// assert!(until.is_over());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Until {
    time: Option<Instant>,
    told: Option<Arc<AtomicBool>>,
}

/// Says that work is to stop.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Until {
    /// A time.
    #[must_use]
    pub fn time(time: Instant) -> Self {
        Self { time: Some(time), told: None }
    }

    /// Whenever the other half says so.
    #[must_use]
    pub fn told() -> (Self, Stop) {
        let told = Arc::new(AtomicBool::new(false));
        (Self { time: None, told: Some(Arc::clone(&told)) }, Stop(told))
    }

    /// Whether there is a time at which work has to be done.
    #[must_use]
    pub fn has_time(&self) -> bool {
        self.time.is_some()
    }

    /// Whether to stop now.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let told = self.told.as_ref().is_some_and(|told| told.load(Ordering::Relaxed));
        told || self.time.is_some_and(|time| Instant::now() >= time)
    }
}

impl Stop {
    /// From now on the other half is over.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_that_has_come_is_over_and_never_is_not() {
        let now = Instant::now();
        assert!(Until::time(now).is_over());
        assert!(!Until::time(now + Duration::from_secs(3600)).is_over());
        assert!(!Until::default().is_over());
    }

    #[test]
    fn copies_are_told_too() {
        let (until, stop) = Until::told();
        let copy = until.clone();
        assert!(!copy.is_over());
        stop.clone().now();
        assert!(until.is_over() && copy.is_over());
    }
}
