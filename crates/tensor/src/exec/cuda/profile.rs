//! How long work takes on a GPU, by what it is.
//!
//! In:  work, on its way to a stream.
//! Out: for each kind how often it ran and for how long, by the GPU's own clock. While nobody asks, this costs a look at
//!      a flag.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonnage_device::DeviceError;
use tonnage_device::cuda::{Launcher, TimedEvent};
use tonnage_memory::StreamId;

/// Work whose time is not looked at yet, at most: each has two events of the driver.
const PENDING: usize = 4096;

/// How long a kind of work took on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkTime {
    /// The kernel, or the product or convolution with its sizes.
    pub name: String,
    /// How often it ran.
    pub count: u64,
    /// How long in all. A GPU that waits for its next work waits within it.
    pub time: Duration,
}

/// What is measured of one GPU.
#[derive(Default)]
pub(super) struct Profile {
    is_on: AtomicBool,
    measured: Mutex<Measured>,
}

#[derive(Default)]
struct Measured {
    pending: Vec<(String, TimedEvent, TimedEvent)>,
    times: BTreeMap<String, (u64, Duration)>,
}

impl Measured {
    /// Waits for what is pending, and adds it up.
    fn settle(&mut self) -> Result<(), DeviceError> {
        for (name, from, to) in std::mem::take(&mut self.pending) {
            let took = to.since(&from)?;
            let (count, time) = self.times.entry(name).or_default();
            *count += 1;
            *time += took;
        }
        Ok(())
    }
}

impl Profile {
    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures from now on.
    pub(super) fn start(&self) {
        *self.lock() = Measured::default();
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends measuring; what took longest comes first.
    pub(super) fn take(&self) -> Result<Vec<WorkTime>, DeviceError> {
        self.is_on.store(false, Ordering::Relaxed);
        let mut measured = std::mem::take(&mut *self.lock());
        measured.settle()?;
        let each = measured.times.into_iter();
        let mut times: Vec<_> =
            each.map(|(name, (count, time))| WorkTime { name, count, time }).collect();
        times.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        Ok(times)
    }

    /// Queues work, between two moments if anybody asks.
    pub(super) fn measure<E: From<DeviceError>>(
        &self,
        launcher: &Launcher,
        stream: StreamId,
        name: impl FnOnce() -> String,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.is_on.load(Ordering::Relaxed) {
            return queue();
        }
        let from = launcher.moment(stream)?;
        queue()?;
        let to = launcher.moment(stream)?;
        let mut measured = self.lock();
        measured.pending.push((name(), from, to));
        if measured.pending.len() >= PENDING { Ok(measured.settle()?) } else { Ok(()) }
    }
}
