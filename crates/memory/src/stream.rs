//! A stream of work on a device.

use tonnage_device::DeviceError;
use tonnage_events::StreamId;

use crate::device::Device;

/// Work on a device that runs in order. Destroyed when dropped, after what is queued: the drop waits for it. A failure
/// of its work that nobody was told of, or of the driver, is then kept for [`Device::synchronize`] and
/// [`empty_cache`](crate::Memory::empty_cache) to report. Dropped by work of the device, which cannot wait, it ends by
/// itself, and what failed behind that work is not told.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    id: StreamId,
}

/// The number of the first stream that `dry` names; later ones count up.
#[cfg(not(feature = "shuttle"))]
static NEXT_DRY_STREAM: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

#[cfg(not(feature = "shuttle"))]
fn next_number() -> u64 {
    NEXT_DRY_STREAM.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(feature = "shuttle")]
fn next_number() -> u64 {
    1
}

impl Stream {
    pub(crate) fn create(device: &Device) -> Result<Self, DeviceError> {
        let id = device.shared.create_stream(next_number())?;
        Ok(Self { device: device.clone(), id })
    }

    /// Its handle.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The device it runs on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Queues work. On `host` it runs on the stream's own thread, after what is queued before; on `dry`
    /// it does not run at all.
    ///
    /// Work may drop blocks of any device, launch more work, and use pinned memory; and it may wait for
    /// threads that do no more than this. A thread that gives memory back to the device waits for all
    /// work: a request that finds no room does so with the allocator in its hands, and
    /// [`empty_cache`](crate::Memory::empty_cache) for what was queued after it began. So work must not
    /// do what takes the allocator of this device, nor wait for a thread that does, or the two may wait
    /// for each other for ever:
    ///
    /// - allocate ([`Device::allocate`] and the like);
    /// - [`Block::record_stream`](crate::Block::record_stream), [`read`](crate::Block::read) and
    ///   [`write`](crate::Block::write);
    /// - ask for figures, or change settings or the cache ([`Device::memory`]).
    ///
    /// Nor may a thread that work waits for drop the last handle to the device, which waits for work.
    ///
    /// # Errors
    ///
    /// On `cuda`, whose work is kernels and copies, and on a device that was made elsewhere; or if the
    /// system gives no thread for the stream's first work.
    pub fn launch(&self, work: impl FnOnce() + Send + 'static) -> Result<(), DeviceError> {
        match &self.device.shared.streams {
            Some(streams) => streams.launch(self.id, work),
            None if self.device.kind() == "dry" => Ok(()),
            None => {
                let reason = format!(
                    "closures run on a host device; work of {:?} is queued by its own means",
                    self.device
                );
                Err(DeviceError::Misuse { call: "launch", reason })
            }
        }
    }

    /// Lets what is queued here from now on wait for what is queued on `other` by now.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn wait_for(&self, other: StreamId) -> Result<(), DeviceError> {
        self.device.shared.order_behind(self.id, other)
    }

    /// Waits for everything queued.
    ///
    /// # Errors
    ///
    /// If some of it failed.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.device.shared.synchronize(self.id)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Before its number can be that of another stream.
        self.device.shared.tell_stream_end(self.id);
        self.device.shared.end_stream(self.id);
    }
}
