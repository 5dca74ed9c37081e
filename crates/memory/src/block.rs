//! A block of device memory that goes back when dropped.

use std::fmt;

use tonnage_device::DeviceError;
use tonnage_engine::Allocation;
use tonnage_events::{Address, StreamId};

use crate::copies;
use crate::device::Device;

/// Memory of a device, in its owner's hands.
///
/// Dropped, it goes back to its pool; memory that other streams were recorded for is reused only when
/// these are done.
///
/// ```
/// # use tonnage_memory::Device;
/// let device = Device::host("64 MiB")?;
/// let block = device.allocate(5)?;
/// block.write(0, b"hello")?;
/// let mut bytes = [0; 5];
/// block.read(0, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Block {
    device: Device,
    allocation: Allocation,
}

impl Block {
    pub(crate) fn new(device: Device, allocation: Allocation) -> Self {
        Self { device, allocation }
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> Address {
        self.allocation.address
    }

    /// Bytes that were asked for.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.allocation.requested
    }

    /// Bytes that may be used: at least those asked for.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.allocation.size
    }

    /// The device it lies on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream it was allocated on.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.allocation.stream
    }

    /// Notes that `stream` uses the block too: once dropped, its memory waits for what is queued there
    /// by then. Not for work that is queued on the device: see [`Stream::launch`](crate::Stream::launch).
    pub fn record_stream(&self, stream: StreamId) {
        let recorded = self.device.shared.engine.lock().record_stream_of(&self.allocation, stream);
        debug_assert!(recorded.is_ok(), "an undropped block is live");
    }

    /// Notes in the history, if one is recorded, what the block is for from now on: `parameters`, `gradients`, `optimizer`,
    /// `activations`, `temporary`, `workspace` or `cache`. `tonnage report` then shows that, and does not conclude it.
    pub fn say_purpose(&self, purpose: &'static str) {
        if let Some(mut engine) = self.device.shared.engine.recording() {
            engine.say_purpose(self.address(), purpose);
        }
    }

    /// Writes into the block, after waiting for what is queued on its stream; on `cuda` for the default stream too, which
    /// orders copies. Copies of one device take turns; allocations do not wait for them.
    ///
    /// # Errors
    ///
    /// If the bytes do not fit from `offset` on, or if the device fails.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = self.place("write", offset, bytes.len())?;
        self.device.shared.synchronize(self.stream())?;
        copies::copy_into(self, at, bytes)
    }

    /// Reads from the block, after waiting as for [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// If it has not so many bytes from `offset` on, or if the device fails.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let at = self.place("read", offset, into.len())?;
        self.device.shared.synchronize(self.stream())?;
        copies::copy_from(self, at, into)
    }

    fn place(
        &self,
        call: &'static str,
        offset: u64,
        length: usize,
    ) -> Result<Address, DeviceError> {
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > self.size()) {
            let reason = format!(
                "{length} bytes from {offset} on do not lie in a block of {} bytes",
                self.size()
            );
            return Err(DeviceError::Misuse { call, reason });
        }
        Ok(self.address().offset(offset))
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        self.device.shared.engine.give_back(&self.allocation);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Allocation { address, size, stream, .. } = self.allocation;
        write!(f, "Block({size} bytes at {address} on {:?}, stream {stream})", self.device)
    }
}
