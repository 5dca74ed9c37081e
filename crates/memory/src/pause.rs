//! Memory back to the device for a while, as programs that share a GPU need.
//!
//! In:  a number of bytes, or a wish to stop and to go on.
//! Out: memory that others can have; later the same blocks at the same addresses, with their contents if they were to be kept.

use tonnage_device::{Device as _, DeviceError};
use tonnage_engine::{CacheError, PauseError};
use tonnage_events::Address;

use crate::copies::{put_back, save};
use crate::sync::lock;
use crate::view::Memory;

/// What becomes of the bytes in blocks while an allocator is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// They are copied to this machine's memory, and back.
    Kept,
    /// They are lost: blocks hold whatever the device gives.
    Lost,
}

/// Contents of a paused allocator.
pub(crate) type Saved = Vec<(Address, Vec<u8>)>;

impl Memory<'_> {
    /// Gives cached memory back to the device until `bytes` are gone, or all of it, and returns how many went. Waits for the work that
    /// uses it.
    ///
    /// # Errors
    ///
    /// If the device fails, or failed before where nobody could be told.
    #[track_caller]
    pub fn release(&self, bytes: u64) -> Result<u64, CacheError> {
        let shared = &self.device.shared;
        shared.engine.take_untold()?;
        shared.wait_before_emptying()?;
        Ok(shared.engine.lock().release(bytes)?)
    }

    /// Waits for everything that is queued and gives all memory back to the device; every block keeps its address. Returns how many
    /// bytes went. Until [`resume`](Self::resume) nothing is allocated, and no work may use a block: blocks may be dropped.
    ///
    /// Addresses can be kept under the policy `pages` and in expandable segments.
    ///
    /// # Errors
    ///
    /// See [`PauseError`].
    #[track_caller]
    pub fn pause(&self, contents: Contents) -> Result<u64, PauseError> {
        let shared = &self.device.shared;
        shared.engine.take_untold()?;
        let mut engine = shared.engine.lock();
        if engine.is_paused() {
            return Err(PauseError::Paused);
        }
        for stream in engine.device().known_streams() {
            engine.device_mut().synchronize(stream)?;
        }
        let mut saved = Saved::new();
        if contents == Contents::Kept {
            for (address, size) in engine.contents() {
                saved.push((address, save(&engine, address, size)?));
            }
        }
        let paused = engine.pause();
        if engine.is_paused() {
            *lock(&shared.saved) = saved;
        }
        paused
    }

    /// Obtains all memory again, at the same addresses, and puts contents back that were kept. If not all can be had yet, the
    /// allocator stays paused, and the next call goes on.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if others hold the memory now; or if the device fails.
    pub fn resume(&self) -> Result<(), DeviceError> {
        let shared = &self.device.shared;
        let mut engine = shared.engine.lock();
        engine.resume()?;
        let mut saved = lock(&shared.saved);
        while let Some((address, bytes)) = saved.last() {
            put_back(&engine, *address, bytes)?;
            saved.pop();
        }
        Ok(())
    }

    /// Whether the allocator is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.device.shared.engine.lock().is_paused()
    }
}
