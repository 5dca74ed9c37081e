//! Pinned host memory, from a cache of its own: what copies to and from a device read and write.
//!
//! In:  sizes; streams whose work uses a block.
//! Out: [`PinnedBlock`]s, bytes of the host that go back into the cache when dropped.
//!
//! Pinning costs a driver call that takes as long as touching every page, so memory is kept by
//! class: sizes are rounded up to powers of two, and a block serves any request of its class, last
//! in first out. On `cuda` it comes from the driver; `host` has nothing to pin for, and gets ordinary
//! memory under the same rules; on `dry` it is counted, and obtained only when its bytes are looked at.
//!
//! *In use + pending + cached = reserved.* A dropped block is pending while work of a recorded
//! stream may use it: each of these becomes an event at the drop. Events are asked when the cache
//! has no block of a class, not at every allocation as in PyTorch: whoever finds a free block needs
//! neither the driver nor the engine's lock, and asking later never finds fewer.
//!
//! # Locks
//!
//! | lock | guards | held for |
//! | --- | --- | --- |
//! | a pool's `books` | cached and pending memory, figures | a few moves, never a device call |
//! | the engine's, but on `host` | events | calls about events |
//! | a block's `streams` | who uses it | a look |
//!
//! No two of them are held at once, so that no order can be wrong. None is held while memory is obtained from the
//! driver or given back, which takes long. Pending memory is out of the
//! books while its events are asked; another thread may then obtain more than it had to.

// What can go wrong.
mod error;

mod stats;

// Where memory comes from.
mod span;

// What dropped blocks wait for.
mod pending;

mod books;

mod block;

use std::fmt;
use std::mem;

pub use block::PinnedBlock;
pub(crate) use books::PinnedPool;
pub use error::PinnedError;
use pending::Pending;
use span::{Class, Span, total};
pub use stats::{PinnedBytes, PinnedStats};
use tonnage_device::DeviceError;
use tonnage_events::StreamId;

use crate::device::Device;
use crate::sync::lock;

/// Gives out pinned host memory for one device, and keeps what comes back: a handle, like
/// [`Device`], that can be cloned and sent.
///
/// ```
/// # use tonnage_memory::Device;
/// let device = Device::host("64 MiB")?;
/// let pinned = device.pinned();
/// let mut staging = pinned.allocate(1_000)?;
/// staging.fill(7);
/// assert_eq!((staging.len(), staging.capacity()), (1_000, 1_024));
///
/// let block = device.allocate(1_000)?;
/// block.write(0, &staging)?;
/// drop(staging);
/// let mut result = pinned.allocate(600)?; // the same memory
/// block.read(0, &mut result)?;
/// assert!(result.iter().all(|byte| *byte == 7));
/// assert_eq!(pinned.stats().hits, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedAllocator {
    device: Device,
}

impl PinnedAllocator {
    /// The allocator of a device. There is one: every handle to the device leads to the same.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone() }
    }

    /// The device it is for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Allocates at least `bytes`, with any contents.
    ///
    /// A failure of work that dropped blocks wait for is not this request's: it is kept for
    /// [`Device::synchronize`] or [`empty_cache`](Self::empty_cache) to report.
    ///
    /// # Errors
    ///
    /// If it cannot be served; see [`PinnedError`].
    pub fn allocate(&self, bytes: u64) -> Result<PinnedBlock, PinnedError> {
        let class = Class::of(bytes)?;
        let span = match self.take(class) {
            Some(hit) => hit,
            None => self.acquire_or_reclaim(class).map_err(|it| self.refusal(bytes, class, it))?,
        };
        Ok(PinnedBlock::new(self.device.clone(), span, bytes as usize))
    }

    /// The figures now.
    #[must_use]
    pub fn stats(&self) -> PinnedStats {
        lock(&self.pool().books).stats
    }

    /// Gives back all memory that no block and no recorded stream uses.
    ///
    /// # Errors
    ///
    /// If the device fails, or failed before where nobody could be told. What it did not take stays
    /// cached.
    pub fn empty_cache(&self) -> Result<(), DeviceError> {
        self.device.shared.engine.take_untold()?;
        let polled = self.poll();
        polled.and(self.release_cached())
    }

    fn pool(&self) -> &PinnedPool {
        &self.device.shared.pinned
    }

    /// Takes from the cache; if it has nothing, from what is pending no more.
    fn take(&self, class: Class) -> Option<Span> {
        let hit = lock(&self.pool().books).take(class);
        hit.or_else(|| {
            self.device.keep_pinned_untold(self.poll());
            lock(&self.pool().books).take(class)
        })
    }

    /// Obtains new memory, if need be in place of what is cached.
    fn acquire_or_reclaim(&self, class: Class) -> Result<Span, DeviceError> {
        match self.acquire(class) {
            Err(DeviceError::OutOfMemory { .. }) => {
                self.device.keep_pinned_untold(self.release_cached());
                self.acquire(class)
            }
            other => other,
        }
    }

    /// Obtains new memory, and counts it.
    fn acquire(&self, class: Class) -> Result<Span, DeviceError> {
        let span = self.obtain(class)?;
        // What cannot be counted was not obtained either, but counted only: no machine has so many bytes.
        if lock(&self.pool().books).add(class) {
            return Ok(span);
        }
        Err(DeviceError::OutOfMemory { requested: class.size() as u64 })
    }

    fn obtain(&self, class: Class) -> Result<Span, DeviceError> {
        match &self.device.shared.driver_pinned {
            Some(driver) => Ok(Span::of_driver(class, driver.acquire(class.size())?)),
            None if self.device.kind() == "dry" => Ok(Span::counted(class)),
            None => Span::obtain(class),
        }
    }

    fn refusal(&self, requested: u64, class: Class, error: DeviceError) -> PinnedError {
        let DeviceError::OutOfMemory { .. } = error else { return error.into() };
        let (rounded, PinnedStats { in_use, pending, .. }) = (class.size() as u64, self.stats());
        PinnedError::OutOfMemory { requested, rounded, in_use: in_use.current, pending }
    }

    /// Asks how pending memory stands, and caches what nothing uses any more. What the device
    /// cannot tell of stays pending.
    fn poll(&self) -> Result<(), DeviceError> {
        let mut pending = mem::take(&mut lock(&self.pool().books).pending);
        if pending.is_empty() {
            return Ok(());
        }
        let mut failure = None;
        {
            let mut events = self.device.shared.events();
            for waiting in &mut pending {
                waiting.poll(&mut events, &mut failure);
            }
        }
        let mut books = lock(&self.pool().books);
        pending.into_iter().for_each(|waiting| books.sort(waiting));
        failure.map_or(Ok(()), Err)
    }

    /// Gives cached memory back; what the device does not take is cached again.
    fn release_cached(&self) -> Result<(), DeviceError> {
        let spans = lock(&self.pool().books).take_cached();
        let size = total(&spans);
        let (kept, released) = self.release(spans);
        let mut books = lock(&self.pool().books);
        books.stats.reserved.fall(size - total(&kept));
        kept.into_iter().for_each(|span| books.put(span));
        released
    }

    fn release(&self, spans: Vec<Span>) -> (Vec<Span>, Result<(), DeviceError>) {
        let (mut kept, mut failure) = (Vec::new(), None);
        // Ordinary memory goes with its spans.
        let Some(driver) = &self.device.shared.driver_pinned else { return (kept, Ok(())) };
        for span in spans {
            let Some(start) = span.driver_start() else { continue };
            // SAFETY: it was cached, so its block is dropped, and of every stream that was recorded for
            // it the work up to then is done; being taken out, it is found no more.
            if let Err(error) = unsafe { driver.release(start) } {
                failure.get_or_insert(error);
                kept.push(span);
            }
        }
        (kept, failure.map_or(Ok(()), Err))
    }
}

impl fmt::Debug for PinnedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedAllocator({:?})", self.device)
    }
}

impl Device {
    /// Pinned host memory for this device.
    #[must_use]
    pub fn pinned(&self) -> PinnedAllocator {
        PinnedAllocator::new(self)
    }

    /// Caches a dropped block's memory, or lets it wait for the streams that use it.
    fn give_back_pinned(&self, span: Span, streams: Vec<StreamId>) {
        let mut waiting = Pending::new(span, streams);
        let recorded = if waiting.marks.is_empty() {
            Ok(())
        } else {
            waiting.record(&mut self.shared.events())
        };
        lock(&self.shared.pinned.books).free(waiting);
        self.keep_pinned_untold(recorded);
    }

    fn keep_pinned_untold(&self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.shared.engine.keep_untold(error);
        }
    }
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<PinnedAllocator>();
};

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tonnage_device::cuda::{Cuda, Driver};
    use tonnage_fake_cuda::Fake;

    use super::*;
    use crate::{AnyDevice, DeviceOptions};

    #[test]
    fn the_driver_is_asked_for_memory_while_another_has_the_allocator() {
        let fake = Fake::start().expect("cargo builds the fake driver with this test");
        // SAFETY: the fake keeps to the driver's interface: that is what it is for.
        let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
        let cuda = AnyDevice::Cuda(Box::new(Cuda::open_with(driver, 0).unwrap()));
        let device = Device::of(cuda, DeviceOptions::default());
        let (pinned, (done, ended)) = (device.pinned(), mpsc::channel());
        let engine = device.shared.engine.lock();
        let asks = thread::spawn(move || {
            drop(pinned.allocate(100).unwrap());
            pinned.empty_cache().unwrap();
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(Duration::from_secs(300));
        drop(engine);
        asks.join().unwrap();
        assert!(ended.is_ok(), "pinned memory waited for the allocator");
        assert_eq!((device.pinned().stats().allocations, fake.live().pinned), (1, 0));
    }
}
