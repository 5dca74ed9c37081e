//! Calls about memory, in the current context.
//!
//! Addresses and handles are plain numbers to the driver, which refuses those it does not know. What
//! it cannot refuse is taking back memory that is still used: hence the promises.

use std::ffi::{c_int, c_void};

use crate::cuda::context::Current;
use crate::cuda::sys::*;
use crate::{DeviceError, MemoryInfo};

/// The memory of a device.
fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { kind: LOCATION_DEVICE, id: device as c_int }
}

impl Current<'_> {
    pub(in crate::cuda) fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: `free` and `total` are places for one number each.
        let code = unsafe { (self.table().memory_info)(&mut free, &mut total) };
        self.check("cuMemGetInfo", code)?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Memory that belongs to the caller until `memory_free`.
    pub(in crate::cuda) fn memory_alloc(&self, size: u64) -> Result<CUdeviceptr, DeviceError> {
        let mut address = 0;
        // SAFETY: `address` is a place for one address. The caller frees it.
        let code = unsafe { (self.table().memory_alloc)(&mut address, size as usize) };
        self.check_memory("cuMemAlloc", size, code)?;
        Ok(address)
    }

    /// Waits for all work of the context, then takes the memory back.
    ///
    /// # Safety
    ///
    /// The memory is the caller's, from `memory_alloc`, and no work queued from now on uses it.
    pub(in crate::cuda) unsafe fn memory_free(
        &self,
        address: CUdeviceptr,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; work queued before is waited for by the driver.
        let code = unsafe { (self.table().memory_free)(address) };
        self.check("cuMemFree", code)
    }

    /// Memory from the driver's own pool, to be used after what is queued on `stream` now.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context, not destroyed.
    pub(in crate::cuda) unsafe fn memory_alloc_async(
        &self,
        size: u64,
        stream: CUstream,
    ) -> Result<CUdeviceptr, DeviceError> {
        let mut address = 0;
        // SAFETY: `address` is a place for one address; the stream is good by promise. The caller
        // frees the memory.
        let code =
            unsafe { (self.table().memory_alloc_async)(&mut address, size as usize, stream) };
        self.check_memory("cuMemAllocAsync", size, code)?;
        Ok(address)
    }

    /// Gives memory back to the driver's own pool once what is queued on `stream` is done.
    ///
    /// # Safety
    ///
    /// 1. `stream` is a stream of this context, not destroyed.
    /// 2. The memory is the caller's, from `memory_alloc_async`, and every use of it is done or
    ///    ordered before this point of `stream`.
    pub(in crate::cuda) unsafe fn memory_free_async(
        &self,
        address: CUdeviceptr,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2; `stream` orders the taking back.
        let code = unsafe { (self.table().memory_free_async)(address, stream) };
        self.check("cuMemFreeAsync", code)
    }

    /// What pages of this device are made of: its own memory, never shared with other processes.
    fn page_properties(&self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            kind: ALLOCATION_PINNED,
            requested_handle_types: 0,
            location: location(self.device()),
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: CUmemAllocationFlags::default(),
        }
    }

    pub(in crate::cuda) fn allocation_granularity(&self) -> Result<u64, DeviceError> {
        let properties = self.page_properties();
        let mut granularity = 0;
        // SAFETY: `granularity` is a place for one number; `properties` is a whole structure that
        // lives through the call.
        let code = unsafe {
            (self.table().allocation_granularity)(
                &mut granularity,
                &properties,
                GRANULARITY_MINIMUM,
            )
        };
        self.check("cuMemGetAllocationGranularity", code)?;
        Ok(granularity as u64)
    }

    /// Addresses that belong to the caller until `address_free`.
    pub(in crate::cuda) fn address_reserve(
        &self,
        size: u64,
        alignment: u64,
    ) -> Result<CUdeviceptr, DeviceError> {
        let mut address = 0;
        // SAFETY: `address` is a place for one address; no wish (0) and no flags (0) are given.
        let code = unsafe {
            (self.table().address_reserve)(&mut address, size as usize, alignment as usize, 0, 0)
        };
        self.check("cuMemAddressReserve", code)?;
        Ok(address)
    }

    /// Gives addresses back.
    ///
    /// # Safety
    ///
    /// The range is the caller's, whole, from `address_reserve`, and nothing is mapped into it.
    pub(in crate::cuda) unsafe fn address_free(
        &self,
        address: CUdeviceptr,
        size: u64,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().address_free)(address, size as usize) };
        self.check("cuMemAddressFree", code)
    }

    /// A page that belongs to the caller until `memory_release`.
    pub(in crate::cuda) fn memory_create(
        &self,
        size: u64,
    ) -> Result<CUmemGenericAllocationHandle, DeviceError> {
        let properties = self.page_properties();
        let mut handle = 0;
        // SAFETY: `handle` is a place for one handle; `properties` is a whole structure that lives
        // through the call. The caller releases the page.
        let code =
            unsafe { (self.table().memory_create)(&mut handle, size as usize, &properties, 0) };
        self.check_memory("cuMemCreate", size, code)?;
        Ok(handle)
    }

    /// Gives a page back.
    ///
    /// # Safety
    ///
    /// The page is the caller's, from `memory_create`, and mapped nowhere.
    pub(in crate::cuda) unsafe fn memory_release(
        &self,
        handle: CUmemGenericAllocationHandle,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().memory_release)(handle) };
        self.check("cuMemRelease", code)
    }

    /// Puts a whole page at an address, which cannot be used until `memory_set_access`.
    ///
    /// # Safety
    ///
    /// 1. The page is the caller's and has `size` bytes.
    /// 2. The addresses are the caller's, from `address_reserve`, and nothing is mapped there.
    pub(in crate::cuda) unsafe fn memory_map(
        &self,
        address: CUdeviceptr,
        size: u64,
        handle: CUmemGenericAllocationHandle,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2. The offset is 0: drivers refuse any other.
        let code = unsafe { (self.table().memory_map)(address, size as usize, 0, handle, 0) };
        self.check("cuMemMap", code)
    }

    /// Takes a page away from an address. Does not wait for work that uses it.
    ///
    /// # Safety
    ///
    /// 1. The mapping is the caller's, whole, from `memory_map`.
    /// 2. No work that uses these addresses is queued or running, on any stream.
    pub(in crate::cuda) unsafe fn memory_unmap(
        &self,
        address: CUdeviceptr,
        size: u64,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2.
        let code = unsafe { (self.table().memory_unmap)(address, size as usize) };
        self.check("cuMemUnmap", code)
    }

    /// Lets devices read and write a mapping; what others may stays.
    pub(in crate::cuda) fn memory_set_access(
        &self,
        address: CUdeviceptr,
        size: u64,
        devices: &[CUdevice],
    ) -> Result<(), DeviceError> {
        let access = devices.iter().map(|&device| CUmemAccessDesc {
            location: location(device),
            flags: ACCESS_READ_WRITE,
        });
        let access: Vec<_> = access.collect();
        // SAFETY: `access` has as many structures as the driver is told, and lives through the
        // call. The driver refuses addresses where nothing is mapped.
        let code = unsafe {
            (self.table().memory_set_access)(address, size as usize, access.as_ptr(), access.len())
        };
        self.check("cuMemSetAccess", code)
    }

    /// Copies to the device; returns when `from` has been read.
    ///
    /// # Safety
    ///
    /// All `from.len()` bytes at `to` are the caller's device memory.
    pub(in crate::cuda) unsafe fn copy_to_device(
        &self,
        to: CUdeviceptr,
        from: &[u8],
    ) -> Result<(), DeviceError> {
        let source = from.as_ptr().cast::<c_void>();
        // SAFETY: `source` has as many bytes as the driver is told, unchanged for the time of the
        // call; `to` is good by promise. The legacy default stream orders the copy.
        let code = unsafe { (self.table().copy_to_device)(to, source, from.len()) };
        self.check("cuMemcpyHtoD", code)
    }

    /// Copies from the device; returns when `to` has been written.
    ///
    /// # Safety
    ///
    /// All `to.len()` bytes at `from` are the caller's device memory.
    pub(in crate::cuda) unsafe fn copy_to_host(
        &self,
        to: &mut [u8],
        from: CUdeviceptr,
    ) -> Result<(), DeviceError> {
        let target = to.as_mut_ptr().cast::<c_void>();
        // SAFETY: `target` has room for as many bytes as the driver is told, ours alone for the
        // time of the call; `from` is good by promise. The legacy default stream orders the copy.
        let code = unsafe { (self.table().copy_to_host)(target, from, to.len()) };
        self.check("cuMemcpyDtoH", code)
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    ///
    /// 1. `stream` is a stream of this context, not destroyed.
    /// 2. `size` bytes at `from` can be read, and do not change, until the copy is done.
    /// 3. `size` bytes at `to` are the caller's device memory until then.
    pub(in crate::cuda) unsafe fn copy_to_device_async(
        &self,
        to: CUdeviceptr,
        from: *const u8,
        size: usize,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 to 3; `stream` orders the copy.
        let code = unsafe { (self.table().copy_to_device_async)(to, from.cast(), size, stream) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    /// Queues a copy from the device.
    ///
    /// # Safety
    ///
    /// 1. `stream` is a stream of this context, not destroyed.
    /// 2. `size` bytes at `to` can be written, and are used by nobody else, until the copy is done.
    /// 3. `size` bytes at `from` are the caller's device memory until then.
    pub(in crate::cuda) unsafe fn copy_to_host_async(
        &self,
        to: *mut u8,
        from: CUdeviceptr,
        size: usize,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 to 3; `stream` orders the copy.
        let code = unsafe { (self.table().copy_to_host_async)(to.cast(), from, size, stream) };
        self.check("cuMemcpyDtoHAsync", code)
    }

    /// Queues a copy inside the device.
    ///
    /// # Safety
    ///
    /// 1. `stream` is a stream of this context, not destroyed.
    /// 2. `size` bytes at `from` and at `to` are the caller's device memory until the copy is done.
    pub(in crate::cuda) unsafe fn copy_within_async(
        &self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        size: u64,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2; `stream` orders the copy.
        let code = unsafe { (self.table().copy_within_async)(to, from, size as usize, stream) };
        self.check("cuMemcpyDtoDAsync", code)
    }

    /// Queues a copy from memory of another context.
    ///
    /// # Safety
    ///
    /// 1. `stream` is a stream of this context, not destroyed; `other` is alive.
    /// 2. `size` bytes at `to` are the caller's memory of this context's device, and at `from` of
    ///    the other's, until the copy is done.
    pub(in crate::cuda) unsafe fn copy_peer_async(
        &self,
        to: CUdeviceptr,
        (other, from): (CUcontext, CUdeviceptr),
        size: u64,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        let (size, this) = (size as usize, self.handle());
        // SAFETY: promises 1 and 2; `stream` orders the copy.
        let code = unsafe { (self.table().copy_peer_async)(to, this, from, other, size, stream) };
        self.check("cuMemcpyPeerAsync", code)
    }

    /// Queues the filling of device memory with one word of four bytes.
    ///
    /// # Safety
    ///
    /// 1. `stream` is a stream of this context, not destroyed.
    /// 2. `count` words at `to` are the caller's device memory until the filling is done.
    pub(in crate::cuda) unsafe fn fill_words_async(
        &self,
        to: CUdeviceptr,
        value: u32,
        count: u64,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2; `stream` orders the filling.
        let code = unsafe { (self.table().fill_words_async)(to, value, count as usize, stream) };
        self.check("cuMemsetD32Async", code)
    }

    /// Queues the filling of device memory with one byte.
    ///
    /// # Safety
    ///
    /// 1. `stream` is a stream of this context, not destroyed.
    /// 2. `size` bytes at `to` are the caller's device memory until the filling is done.
    pub(in crate::cuda) unsafe fn fill_async(
        &self,
        to: CUdeviceptr,
        value: u8,
        size: u64,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2; `stream` orders the filling.
        let code = unsafe { (self.table().fill_async)(to, value, size as usize, stream) };
        self.check("cuMemsetD8Async", code)
    }

    /// Host memory that the device reaches directly, the caller's until `host_free`.
    pub(in crate::cuda) fn host_alloc(&self, size: usize) -> Result<*mut u8, DeviceError> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: `memory` is a place for one pointer. The caller frees the memory.
        let code = unsafe { (self.table().host_alloc)(&mut memory, size, 0) };
        self.check_memory("cuMemHostAlloc", size as u64, code)?;
        Ok(memory.cast())
    }

    /// Frees host memory.
    ///
    /// # Safety
    ///
    /// The memory is the caller's, from `host_alloc`, and neither the host nor queued work uses it.
    pub(in crate::cuda) unsafe fn host_free(&self, memory: *mut u8) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().host_free)(memory.cast()) };
        self.check("cuMemFreeHost", code)
    }
}
