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
    /// Memory levels, limits and clocks.
    pub hardware: Hardware,
}

/// What kernels are fitted to. Fixed for a device's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hardware {
    /// Bytes of the second-level cache.
    pub l2: u64,
    /// Bytes of shared memory that a block gets without asking.
    pub shared_per_block: u32,
    /// Bytes of shared memory that a block can ask for ([`Function::allow_shared`](super::Function::allow_shared)).
    pub shared_per_block_most: u32,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_multiprocessor: u32,
    /// Registers, of four bytes, that a block can have.
    pub registers_per_block: u32,
    /// Registers, of four bytes, of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Threads that a block can have.
    pub threads_per_block: u32,
    /// Threads that a multiprocessor can hold at once.
    pub threads_per_multiprocessor: u32,
    /// Threads of a warp.
    pub warp: u32,
    /// Clock of the multiprocessors at its peak, in kHz.
    pub clock_khz: u32,
    /// Clock of the memory at its peak, in kHz.
    pub memory_clock_khz: u32,
    /// Width of the bus to the memory, in bits.
    pub memory_bus_bits: u32,
}

impl Hardware {
    /// Bytes a second that the memory can move at its peak: two transfers for each clock.
    #[must_use]
    pub fn bandwidth(&self) -> u64 {
        2 * u64::from(self.memory_clock_khz) * 1000 * u64::from(self.memory_bus_bits) / 8
    }
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
            hardware: self.hardware(device)?,
        })
    }

    fn hardware(&self, device: CUdevice) -> Result<Hardware, DeviceError> {
        let attribute =
            |which| self.device_attribute(which, device).map(|value| value.unsigned_abs());
        Ok(Hardware {
            l2: attribute(CUdeviceAttribute::L2_CACHE_SIZE)?.into(),
            shared_per_block: attribute(CUdeviceAttribute::MAX_SHARED_MEMORY_PER_BLOCK)?,
            shared_per_block_most: attribute(CUdeviceAttribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_per_multiprocessor: attribute(
                CUdeviceAttribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )?,
            registers_per_block: attribute(CUdeviceAttribute::MAX_REGISTERS_PER_BLOCK)?,
            registers_per_multiprocessor: attribute(
                CUdeviceAttribute::MAX_REGISTERS_PER_MULTIPROCESSOR,
            )?,
            threads_per_block: attribute(CUdeviceAttribute::MAX_THREADS_PER_BLOCK)?,
            threads_per_multiprocessor: attribute(
                CUdeviceAttribute::MAX_THREADS_PER_MULTIPROCESSOR,
            )?,
            warp: attribute(CUdeviceAttribute::WARP_SIZE)?,
            clock_khz: attribute(CUdeviceAttribute::CLOCK_RATE)?,
            memory_clock_khz: attribute(CUdeviceAttribute::MEMORY_CLOCK_RATE)?,
            memory_bus_bits: attribute(CUdeviceAttribute::GLOBAL_MEMORY_BUS_WIDTH)?,
        })
    }
}
