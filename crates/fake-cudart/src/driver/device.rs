//! Devices and contexts of the driver.

use std::ffi::{c_char, c_int, c_uint, c_void};

use tonnage_cuda_codes::{Code, driver_text};
use tonnage_device::Device;

use super::entry;
use super::outsiders::note_outsider;
use crate::devices::{bus_id, current, put_text};
use crate::state::put;

/// The handle of the one context.
const CONTEXT: u64 = 0x4000;

/// Its version: the manual's number.
const CONTEXT_VERSION: c_uint = 3020;

entry! {
    /// Nothing has to be done.
    fn cuInit(_flags: c_uint) |state| {
        if state.devices() == 0 { Err(Code::NO_DEVICE) } else { Ok(()) }
    }

    /// The version that the profile tells.
    fn cuDriverGetVersion(version: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(version, state.profile.version) }
    }

    /// How many devices there are.
    fn cuDeviceGetCount(count: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(count, state.devices()) }
    }

    /// A device goes by its number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |state| {
        if !(0..state.devices().max(1)).contains(&ordinal) {
            return Err(Code::INVALID_DEVICE);
        }
        // SAFETY: the caller's promise.
        unsafe { put(device, ordinal) }
    }

    /// Of the profile.
    fn cuDeviceGetAttribute(value: *mut c_int, number: c_int, _device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(value, state.profile.attribute(number)) }
    }

    /// Of the profile.
    fn cuDeviceGetName(text: *mut c_char, length: c_int, _device: c_int) |state| {
        let name = format!("{}\0", state.profile.name);
        // SAFETY: the caller's promise.
        unsafe { put_text(text, length, name.as_bytes()) }
    }

    /// Where it is plugged in.
    fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { bus_id(text, length, device) }
    }

    /// The device's memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(bytes, state.device.total() as usize) }
    }

    /// The architecture in two numbers.
    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, _device: c_int) |state| {
        let architecture = state.profile.architecture();
        // SAFETY: the caller's promise.
        unsafe { put(major, architecture / 10) }?;
        // SAFETY: the caller's promise.
        unsafe { put(minor, architecture % 10) }
    }

    /// The one context.
    fn cuCtxGetCurrent(context: *mut u64) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(context, CONTEXT) }
    }

    /// It is always current.
    fn cuCtxSetCurrent(_context: u64) |_| { Ok(()) }

    /// It is always current.
    fn cuCtxPushCurrent_v2(_context: u64) |_| { Ok(()) }

    /// It stays current.
    fn cuCtxPopCurrent_v2(context: *mut u64) |_| {
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { put(context, CONTEXT) }
    }

    /// That of the thread.
    fn cuCtxGetDevice(device: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(device, current()) }
    }

    /// The manual's number.
    fn cuCtxGetApiVersion(_context: u64, version: *mut c_uint) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(version, CONTEXT_VERSION) }
    }

    /// Everything is done at once.
    fn cuCtxSynchronize() |_| { Ok(()) }

    /// The one context.
    fn cuDevicePrimaryCtxRetain(context: *mut u64, _device: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(context, CONTEXT) }
    }

    /// It stays.
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) |_| { Ok(()) }

    /// It is there.
    fn cuDevicePrimaryCtxGetState(_device: c_int, flags: *mut c_uint, active: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(flags, 0) }?;
        // SAFETY: the caller's promise.
        unsafe { put(active, 1) }
    }

    /// A code in words.
    fn cuGetErrorString(code: c_int, words: *mut *const c_char) |_| {
        let text = driver_text(code).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(words, text.1.as_ptr()) }
    }

    /// The name of a code.
    fn cuGetErrorName(code: c_int, name: *mut *const c_char) |_| {
        let text = driver_text(code).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(name, text.0.as_ptr()) }
    }

    /// Private tables are not imitated: their owner is told that there are none.
    fn cuGetExportTable(table: *mut *const c_void, _id: *const c_void) first () = note_outsider(), |_| {
        // SAFETY: the caller's promise.
        unsafe { put(table, std::ptr::null()) }?;
        Err(Code::NOT_FOUND)
    }

    /// Runtimes inside other libraries find nothing, and do without a device.
    fn cuGetProcAddress(
        _name: *const c_char,
        place: *mut *const c_void,
        _version: c_int,
        _flags: u64,
    ) first () = note_outsider(), |_| {
        // SAFETY: the caller's promise.
        unsafe { put(place, std::ptr::null()) }?;
        Err(Code::NOT_FOUND)
    }

    /// Runtimes inside other libraries find nothing, and do without a device.
    fn cuGetProcAddress_v2(
        _name: *const c_char,
        place: *mut *const c_void,
        _version: c_int,
        _flags: u64,
        status: *mut c_int,
    ) first () = note_outsider(), |_| {
        if !status.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(status, 1) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { put(place, std::ptr::null()) }?;
        Err(Code::NOT_FOUND)
    }

    /// Nothing is ever logged.
    fn cuLogsRegisterCallback(_callback: *const c_void, _data: *const c_void, handle: *mut u64) |state| {
        let made = state.next_handle();
        // SAFETY: the caller's promise.
        unsafe { put(handle, made) }
    }

    /// Nothing was ever logged.
    fn cuLogsUnregisterCallback(_handle: u64) |_| { Ok(()) }
}
