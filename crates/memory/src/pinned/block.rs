//! A block of pinned memory, and its bytes.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::{ptr, slice};

use tonnage_events::StreamId;

use crate::device::Device;
use crate::pinned::PinnedError;
use crate::pinned::span::Span;
use crate::sync::{Mutex, lock};

/// Pinned memory of the host, in its owner's hands: bytes, as in a boxed slice.
///
/// Dropped, it goes back into the cache; memory that streams were recorded for is reused only when
/// these are done.
///
/// On `dry` blocks are counted, of any size: there is no memory behind one until its bytes are looked
/// at, which is when the machine must have it.
///
/// # Work that uses it
///
/// Copies that are queued on a stream reach the memory through [`pointer`](Self::pointer), in
/// unsafe code that promises:
///
/// 1. The stream is [recorded](Self::record_stream) before the block is dropped, and is not
///    destroyed before that.
/// 2. Until the work is done, nobody writes to the block; if the work writes, nobody reads it
///    either.
pub struct PinnedBlock {
    device: Device,
    span: Span,
    len: usize,
    streams: Mutex<Vec<StreamId>>,
}

impl PinnedBlock {
    pub(super) fn new(device: Device, span: Span, len: usize) -> Self {
        Self { device, span, len, streams: Mutex::new(Vec::new()) }
    }

    /// How many bytes were asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: there always are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that were asked for.
    ///
    /// # Panics
    ///
    /// On `dry`, if this machine has not so many bytes: [`try_as_slice`](Self::try_as_slice) says so instead.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.try_as_slice().unwrap_or_else(|error| no_bytes(&error))
    }

    /// The bytes that were asked for.
    ///
    /// # Errors
    ///
    /// [`PinnedError::Counted`] on `dry`, if this machine has not so many bytes.
    pub fn try_as_slice(&self) -> Result<&[u8], PinnedError> {
        let start = self.span.start()?;
        // SAFETY:
        // - Readable: the span is this block's alone, no shorter than `len`, and stays while the
        //   device does, to which the block has a handle.
        // - Initialised: zeroed when it was obtained, or the driver's, which is foreign memory.
        // - Not written meanwhile: the slice borrows the block; nor by work, by promise 2 of its
        //   author.
        Ok(unsafe { slice::from_raw_parts(start.as_ptr(), self.len) })
    }

    /// The bytes that were asked for, to be changed.
    ///
    /// # Panics
    ///
    /// On `dry`, if this machine has not so many bytes: [`try_as_mut_slice`](Self::try_as_mut_slice) says so instead.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.try_as_mut_slice().unwrap_or_else(|error| no_bytes(&error))
    }

    /// The bytes that were asked for, to be changed.
    ///
    /// # Errors
    ///
    /// [`PinnedError::Counted`] on `dry`, if this machine has not so many bytes.
    pub fn try_as_mut_slice(&mut self) -> Result<&mut [u8], PinnedError> {
        let start = self.span.start()?;
        // SAFETY: as in `as_slice`; the slice borrows the block exclusively, and by the same
        // promise no work touches it meanwhile.
        Ok(unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.len) })
    }

    /// Where work finds the bytes. What it must promise to use them is under *Work that uses it*.
    ///
    /// # Panics
    ///
    /// On `dry`, if this machine has not so many bytes.
    #[must_use]
    pub fn pointer(&self) -> *mut [u8] {
        let start = self.span.start().unwrap_or_else(|error| no_bytes(&error));
        ptr::slice_from_raw_parts_mut(start.as_ptr(), self.len)
    }

    /// Bytes that it occupies: those asked for, rounded up to a power of two.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.span.capacity()
    }

    /// The device it is for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Notes that work on `stream` uses the block: once dropped, its memory waits for what is queued
    /// there by then. Of a stream that the device does not know it waits for the device's end.
    pub fn record_stream(&self, stream: StreamId) {
        let mut streams = lock(&self.streams);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
}

#[cold]
fn no_bytes(error: &PinnedError) -> ! {
    panic!("{error}")
}

impl Deref for PinnedBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for PinnedBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let streams = mem::take(&mut *lock(&self.streams));
        self.device.give_back_pinned(mem::take(&mut self.span), streams);
    }
}

impl fmt::Debug for PinnedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, capacity) = (self.len, self.capacity());
        write!(f, "PinnedBlock({len} of {capacity} bytes for {:?})", self.device)
    }
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<PinnedBlock>();
};
