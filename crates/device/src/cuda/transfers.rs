//! Contents: copies and fills, at once or queued on a stream, and host memory for them.
//!
//! Every function checks its addresses against the books first.

use std::ptr::NonNull;

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
        self.check_held("read", address, into.len() as u64)?;
        if into.is_empty() {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY: the bytes are memory of this device by the books; the context is current by type.
        unsafe { current.copy_to_host(into, address.0) }
    }

    /// Copies `bytes` into memory of the device, and waits until they have been read.
    ///
    /// The default stream orders it: other streams see the bytes once it is done.
    ///
    /// # Errors
    ///
    /// If not all of it is memory of this device, or if earlier work failed.
    pub fn write(&mut self, address: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_held("write", address, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY: the bytes are memory of this device by the books; the context is current by type.
        unsafe { current.copy_to_device(address.0, bytes) }
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
        let stream = self.streams.get("fill", stream)?;
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
        let stream = self.streams.get("read_async", stream)?;
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
        let stream = self.streams.get("write_async", stream)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY: stream and device memory by the books, `bytes` by the caller's promise; the
        // context is current by type, and `stream` orders the copy.
        unsafe { current.copy_to_device_async(address.0, bytes.cast(), bytes.len(), stream) }
    }

    /// Obtains `size` bytes of host memory that the device reaches directly, which queued copies
    /// need to run beside other work. It is the caller's until
    /// [`release_pinned`](Self::release_pinned), or until the device is gone.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if they are not to be had.
    pub fn acquire_pinned(&mut self, size: usize) -> Result<NonNull<u8>, DeviceError> {
        let none = || DeviceError::misuse("acquire_pinned", "pinned memory has at least one byte");
        if size == 0 {
            return Err(none());
        }
        let current = self.context.enter()?;
        let memory = NonNull::new(current.host_alloc(size)?).ok_or_else(none)?;
        self.pinned.push(memory.as_ptr().expose_provenance());
        Ok(memory)
    }

    /// Gives pinned memory back.
    ///
    /// # Errors
    ///
    /// If no pinned memory begins there.
    ///
    /// # Safety
    ///
    /// Neither the host nor queued work uses the memory any more.
    pub unsafe fn release_pinned(&mut self, memory: NonNull<u8>) -> Result<(), DeviceError> {
        let place = self.pinned.iter().position(|pinned| *pinned == memory.as_ptr().addr());
        let place = place.ok_or_else(|| {
            DeviceError::misuse("release_pinned", format!("no pinned memory begins at {memory:p}"))
        })?;
        let current = self.context.enter()?;
        // SAFETY: ours by the books, used by nobody by the caller's promise; the books forget it
        // next. The context is current by type.
        unsafe { current.host_free(memory.as_ptr()) }?;
        self.pinned.swap_remove(place);
        Ok(())
    }

    fn check_held(
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
