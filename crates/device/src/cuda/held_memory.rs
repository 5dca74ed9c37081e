//! Copying memory of a device without the device: whoever shares one behind a lock need not hold it
//! meanwhile.

use std::sync::Arc;

use tonnage_events::Address;

use super::Cuda;
use super::context::Context;
use crate::DeviceError;

/// Memory that a device holds, to be copied from any thread while the device is used by others.
///
/// Copies wait for themselves. The default stream orders them: what other streams are to do to the
/// memory before must be done, and they see what was written once the copy is done.
#[derive(Debug)]
pub struct HeldMemory {
    address: Address,
    size: u64,
    /// The memory is no longer there once it is gone, nor is the driver asked.
    context: Arc<Context>,
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<HeldMemory>();
};

impl Cuda {
    /// The `size` bytes at `address`, to be copied without the device; `call` is what errors name.
    ///
    /// # Errors
    ///
    /// If not all of it is memory of this device.
    pub fn held_memory(
        &self,
        call: &'static str,
        address: Address,
        size: u64,
    ) -> Result<HeldMemory, DeviceError> {
        self.check_held(call, address, size)?;
        Ok(HeldMemory { address, size, context: Arc::clone(&self.context) })
    }
}

impl HeldMemory {
    /// Copies all of it into `into`.
    ///
    /// # Errors
    ///
    /// If `into` has another size, or if earlier work failed.
    ///
    /// # Safety
    ///
    /// Until this returns the device still holds the memory: none of it is released or unmapped.
    pub unsafe fn read(&self, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check_size("read", into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY: the bytes were memory of the device by its books, and still are by promise; the
        // context is current by type.
        unsafe { current.copy_to_host(into, self.address.0) }
    }

    /// Copies `bytes` over all of it; returns when they have been read.
    ///
    /// # Errors
    ///
    /// If there are more or fewer bytes, or if earlier work failed.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read).
    pub unsafe fn write(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_size("write", bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let current = self.context.enter()?;
        // SAFETY: as in `read`.
        unsafe { current.copy_to_device(self.address.0, bytes) }
    }

    fn check_size(&self, call: &'static str, size: usize) -> Result<(), DeviceError> {
        if size as u64 == self.size {
            return Ok(());
        }
        let what = format!("{size} bytes do not fit the {} bytes at {}", self.size, self.address);
        Err(DeviceError::misuse(call, what))
    }
}
