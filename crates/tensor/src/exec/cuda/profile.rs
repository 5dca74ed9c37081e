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

/// How long a kind of work took on a GPU: kernels, products and convolutions, not copies between it and this machine.
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
    /// While work is captured: moments would be captured too.
    pauses: AtomicBool,
    measured: Mutex<Measured>,
}

#[derive(Default)]
struct Measured {
    pending: Vec<(String, TimedEvent, TimedEvent)>,
    times: BTreeMap<String, (u64, Duration)>,
    /// The first time that could not be taken.
    failed: Option<DeviceError>,
}

impl Measured {
    /// Waits for what is pending, and adds it up.
    fn settle(&mut self) {
        for (name, from, to) in std::mem::take(&mut self.pending) {
            match to.since(&from) {
                Ok(took) => {
                    let (count, time) = self.times.entry(name).or_default();
                    *count += 1;
                    *time += took;
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: DeviceError) {
        self.failed.get_or_insert(error);
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

    /// Measures nothing while this is so.
    pub(super) fn pause(&self, pauses: bool) {
        self.pauses.store(pauses, Ordering::Relaxed);
    }

    /// Ends measuring; what took longest comes first.
    pub(super) fn take(&self) -> Result<Vec<WorkTime>, DeviceError> {
        self.is_on.store(false, Ordering::Relaxed);
        let mut measured = std::mem::take(&mut *self.lock());
        measured.settle();
        if let Some(error) = measured.failed {
            return Err(error);
        }
        let each = measured.times.into_iter();
        let mut times: Vec<_> =
            each.map(|(name, (count, time))| WorkTime { name, count, time }).collect();
        times.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        Ok(times)
    }

    /// Queues work, between two moments if anybody asks: what becomes of the work is what is returned. Every so often this
    /// waits until the GPU has caught up, and others who queue work wait too.
    pub(super) fn measure<E: From<DeviceError>>(
        &self,
        launcher: &Launcher,
        stream: StreamId,
        name: impl FnOnce() -> String,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.is_on.load(Ordering::Relaxed) || self.pauses.load(Ordering::Relaxed) {
            return queue();
        }
        let from = launcher.moment(stream);
        queue()?;
        let to = launcher.moment(stream);
        let mut measured = self.lock();
        match (from, to) {
            (Ok(from), Ok(to)) => measured.pending.push((name(), from, to)),
            (Err(error), _) | (_, Err(error)) => measured.fail(error),
        }
        if measured.pending.len() >= PENDING {
            measured.settle();
        }
        Ok(())
    }
}
