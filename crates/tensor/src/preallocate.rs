//! Pre-allocation: the memory of the largest batch is obtained before training, while it is whole.

use crate::device::Device;
use crate::error::{Call, Result};

impl Device {
    /// Obtains this much memory at once and keeps it cached, so that later requests are served from
    /// one piece: PyTorch's way of making a tensor and dropping it.
    ///
    /// ```
    /// use tonnage_tensor::{Device, Tensor};
    ///
    /// let device = Device::dry("8 GiB")?;
    /// device.preallocate(1 << 30)?;
    /// assert_eq!((device.memory().allocated(), device.memory().reserved()), (0, 1 << 30));
    /// let x = Tensor::zeros([1 << 20], &device)?;
    /// assert_eq!(device.memory().reserved(), 1 << 30);
    /// # drop(x);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is not that much.
    #[track_caller]
    pub fn preallocate(&self, bytes: u64) -> Result<()> {
        let call = Call::here("preallocate");
        let block = self.allocate(bytes).map_err(|error| call.memory(error))?;
        drop(block);
        Ok(())
    }
}
