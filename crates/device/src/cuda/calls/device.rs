//! Calls that need no current context: which devices there are, and contexts themselves.

use std::ffi::{CStr, c_char, c_int};

use crate::DeviceError;
use crate::cuda::Driver;
use crate::cuda::sys::{CUcontext, CUdevice, CUdeviceAttribute};

/// Bytes for a device's name; the longest that NVIDIA ships has about fifty.
const NAME_BYTES: usize = 256;

impl Driver {
    pub(in crate::cuda) fn init(&self) -> Result<(), DeviceError> {
        // SAFETY: takes no pointers; may be called any number of times, from any thread.
        let code = unsafe { (self.table().init)(0) };
        self.check("cuInit", code)
    }

    /// The newest CUDA that the driver knows: 13000 is 13.0.
    ///
    /// # Errors
    ///
    /// If the driver cannot tell.
    pub fn version(&self) -> Result<u32, DeviceError> {
        let mut version = 0;
        // SAFETY: `version` is a place for one number.
        let code = unsafe { (self.table().driver_version)(&mut version) };
        self.check("cuDriverGetVersion", code)?;
        Ok(version.unsigned_abs())
    }

    pub(in crate::cuda) fn device_count(&self) -> Result<u32, DeviceError> {
        let mut count = 0;
        // SAFETY: `count` is a place for one number.
        let code = unsafe { (self.table().device_count)(&mut count) };
        self.check("cuDeviceGetCount", code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    pub(in crate::cuda) fn device_get(&self, ordinal: u32) -> Result<CUdevice, DeviceError> {
        let mut device = 0;
        // An ordinal that the driver's type does not hold is one that it does not have.
        let ordinal = c_int::try_from(ordinal).unwrap_or(-1);
        // SAFETY: `device` is a place for one number; the driver checks the ordinal.
        let code = unsafe { (self.table().device_get)(&mut device, ordinal) };
        self.check("cuDeviceGet", code)?;
        Ok(device)
    }

    pub(in crate::cuda) fn device_name(&self, device: CUdevice) -> Result<String, DeviceError> {
        let mut name = [0u8; NAME_BYTES];
        let place = name.as_mut_ptr().cast::<c_char>();
        // SAFETY: `place` has room for the number of bytes that the driver is told, and it is ours
        // for the time of the call.
        let code = unsafe { (self.table().device_name)(place, NAME_BYTES as c_int, device) };
        self.check("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    pub(in crate::cuda) fn device_total_memory(
        &self,
        device: CUdevice,
    ) -> Result<u64, DeviceError> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a place for one number; the driver checks the device.
        let code = unsafe { (self.table().device_total_memory)(&mut bytes, device) };
        self.check("cuDeviceTotalMem", code)?;
        Ok(bytes as u64)
    }

    pub(in crate::cuda) fn device_attribute(
        &self,
        attribute: CUdeviceAttribute,
        device: CUdevice,
    ) -> Result<c_int, DeviceError> {
        let mut value = 0;
        // SAFETY: `value` is a place for one number; the driver checks the other two.
        let code = unsafe { (self.table().device_attribute)(&mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// One more reference to the device's primary context, to be given back with
    /// [`primary_context_release`](Self::primary_context_release).
    pub(in crate::cuda) fn primary_context_retain(
        &self,
        device: CUdevice,
    ) -> Result<CUcontext, DeviceError> {
        let mut context = CUcontext::NULL;
        // SAFETY: `context` is a place for one handle. The reference is ours to give back; the
        // context's flags, which others may have set, stay as they are.
        let code = unsafe { (self.table().primary_context_retain)(&mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(context)
    }

    /// Gives back a reference.
    ///
    /// # Safety
    ///
    /// 1. The reference is one that `primary_context_retain` gave for this device, not given back
    ///    yet.
    /// 2. What its owner made in the context is not used any more: if it was the last reference,
    ///    the context goes, and everything in it.
    pub(in crate::cuda) unsafe fn primary_context_release(
        &self,
        device: CUdevice,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2, in the driver's words.
        let code = unsafe { (self.table().primary_context_release)(device) };
        self.check("cuDevicePrimaryCtxRelease", code)
    }

    /// The context that is current on this thread, or null.
    pub(in crate::cuda) fn context_get_current(&self) -> Result<CUcontext, DeviceError> {
        let mut context = CUcontext::NULL;
        // SAFETY: `context` is a place for one handle; no reference to it is taken.
        let code = unsafe { (self.table().context_get_current)(&mut context) };
        self.check("cuCtxGetCurrent", code)?;
        Ok(context)
    }

    /// Makes a context current on this thread, on top of the one that was.
    ///
    /// # Safety
    ///
    /// The context lives until it is popped.
    pub(in crate::cuda) unsafe fn context_push_current(
        &self,
        context: CUcontext,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().context_push_current)(context) };
        self.check("cuCtxPushCurrent", code)
    }

    /// Makes the context current that was so before the last push on this thread.
    pub(in crate::cuda) fn context_pop_current(&self) -> Result<(), DeviceError> {
        let mut popped = CUcontext::NULL;
        // SAFETY: `popped` is a place for one handle; no context is destroyed.
        let code = unsafe { (self.table().context_pop_current)(&mut popped) };
        self.check("cuCtxPopCurrent", code)
    }
}
