//! Contents: copies and fills, at once or queued on a stream.
//!
//! Every function checks its addresses against the books first.

use tonnage_events::{Address, StreamId};

use super::Cuda;
use crate::DeviceError;

impl Cuda {
    /// Copies memory of the device into `into`, and waits for the copy.
    ///
    /// The default stream orders it: what other streams are to write there must be done.
    ///
    /// # Errors
    ///
    /// If not all of it is memory of this device, or if earlier work failed.
    pub fn read(&mut self, address: Address, into: &mut [u8]) -> Result<(), DeviceError> {
        let memory = self.held_memory("read", address, into.len() as u64)?;
        // SAFETY: to take memory away takes the device, which is borrowed meanwhile.
        unsafe { memory.read(into) }
    }

    /// Copies `bytes` into memory of the device, and waits until they have been read.
    ///
    /// The default stream orders it: other streams see the bytes once it is done.
    ///
    /// # Errors
    ///
    /// If not all of it is memory of this device, or if earlier work failed.
    pub fn write(&mut self, address: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = self.held_memory("write", address, bytes.len() as u64)?;
        // SAFETY: to take memory away takes the device, which is borrowed meanwhile.
        unsafe { memory.write(bytes) }
    }

    /// Queues the filling of `size` bytes with `value` on `stream`.
    ///
    /// # Errors
    ///
    /// If not all of it is memory of this device, or if there is no such stream.
    pub fn fill(
        &mut self,
        address: Address,
        value: u8,
        size: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.check_held("fill", address, size)?;
        let stream = self.queues.streams().get("fill", stream)?;
        if size == 0 {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY:
        // - Stream: alive by the books; the context is current by type.
        // - Memory: this device's by the books. Taking it back before the filling is done is for
        //   the allocator's events to prevent; it would fault on the device, not in the host.
        unsafe { current.fill_async(address.0, value, size, stream) }
    }

    /// Queues a copy into `into` on `stream`.
    ///
    /// # Errors
    ///
    /// If not all of it is memory of this device, or if there is no such stream.
    ///
    /// # Safety
    ///
    /// Until what is queued on `stream` is done, `into` stays alive, and nobody uses it.
    pub unsafe fn read_async(
        &mut self,
        address: Address,
        into: *mut [u8],
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.check_held("read_async", address, into.len() as u64)?;
        let stream = self.queues.streams().get("read_async", stream)?;
        if into.is_empty() {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY: stream and device memory by the books, `into` by the caller's promise; the
        // context is current by type, and `stream` orders the copy.
        unsafe { current.copy_to_host_async(into.cast(), address.0, into.len(), stream) }
    }

    /// Queues a copy of `bytes` on `stream`.
    ///
    /// # Errors
    ///
    /// If not all of it is memory of this device, or if there is no such stream.
    ///
    /// # Safety
    ///
    /// Until what is queued on `stream` is done, `bytes` stays alive, and nobody changes it.
    pub unsafe fn write_async(
        &mut self,
        address: Address,
        bytes: *const [u8],
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.check_held("write_async", address, bytes.len() as u64)?;
        let stream = self.queues.streams().get("write_async", stream)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY: stream and device memory by the books, `bytes` by the caller's promise; the
        // context is current by type, and `stream` orders the copy.
        unsafe { current.copy_to_device_async(address.0, bytes.cast(), bytes.len(), stream) }
    }

    pub(super) fn check_held(
        &self,
        call: &'static str,
        address: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        if self.books.holds(address, size) {
            return Ok(());
        }
        Err(DeviceError::misuse(
            call,
            format!("{size} bytes at {address} are not all memory of this device"),
        ))
    }
}
