//! Which devices there are, and what they are like.

use tonnage_events::DeviceId;

use super::Driver;
use super::sys::{CUdevice, CUdeviceAttribute};
use crate::DeviceError;

/// What the driver tells of a device. Fixed for its lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The ordinal, as in `cuda:0`.
    pub id: DeviceId,
    /// NVIDIA's name.
    pub name: String,
    /// Bytes of memory.
    pub total: u64,
    /// Major and minor: (9, 0) for Hopper.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Whether pages can be mapped, as expandable segments need.
    pub virtual_memory: bool,
    /// Where the device is plugged in: `0000:1b:00.0`.
    pub pci_bus_id: String,
}

impl Driver {
    /// The devices that this process may use (`CUDA_VISIBLE_DEVICES` hides others).
    ///
    /// # Errors
    ///
    /// If the driver cannot tell.
    pub fn devices(&self) -> Result<Vec<Properties>, DeviceError> {
        (0..self.device_count()?)
            .map(|ordinal| self.properties(ordinal, self.device_get(ordinal)?))
            .collect()
    }

    pub(super) fn properties(
        &self,
        ordinal: u32,
        device: CUdevice,
    ) -> Result<Properties, DeviceError> {
        let attribute =
            |which| self.device_attribute(which, device).map(|value| value.unsigned_abs());
        Ok(Properties {
            id: DeviceId(ordinal),
            name: self.device_name(device)?,
            total: self.device_total_memory(device)?,
            compute_capability: (
                attribute(CUdeviceAttribute::COMPUTE_CAPABILITY_MAJOR)?,
                attribute(CUdeviceAttribute::COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(CUdeviceAttribute::MULTIPROCESSOR_COUNT)?,
            virtual_memory: attribute(CUdeviceAttribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0,
            pci_bus_id: format!(
                "{:04x}:{:02x}:{:02x}.0",
                attribute(CUdeviceAttribute::PCI_DOMAIN_ID)?,
                attribute(CUdeviceAttribute::PCI_BUS_ID)?,
                attribute(CUdeviceAttribute::PCI_DEVICE_ID)?,
            ),
        })
    }
}
