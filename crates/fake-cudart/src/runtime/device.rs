//! One device, and what PyTorch asks of it.

use std::ffi::{c_int, c_uint, c_void};

use tonnage_device::Device;

use super::entry;
use crate::codes::Code;
use crate::state::put;

/// The version of driver and runtime that is told: 13.0, in the runtime's way of writing it.
const VERSION: c_int = 13000;

/// Bytes of `cudaDeviceProp`, by release of the runtime.
const PROPERTIES_12: usize = 1032;
const PROPERTIES_13: usize = 1008;

/// Where in `cudaDeviceProp` the total memory is, in both.
const TOTAL_MEMORY: usize = 288;

const NAME: &[u8] = b"Tonnage fake device";

entry! {
    /// There is one device.
    fn cudaGetDeviceCount(count: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(count, 1) }
    }
}

entry! {
    /// It is always current.
    fn cudaGetDevice(device: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(device, 0) }
    }
}

entry! {
    /// Nothing changes.
    fn cudaSetDevice(device: c_int) |_| {
        if device == 0 { Ok(()) } else { Err(Code::INVALID_DEVICE) }
    }
}

entry! {
    /// Everything is done at once.
    fn cudaDeviceSynchronize() |_| { Ok(()) }
}

entry! {
    /// Name and memory; all else is 0. As of release 12.
    fn cudaGetDeviceProperties_v2(properties: *mut c_void, device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { write_properties(properties.cast(), PROPERTIES_12, device, state.device.total()) }
    }
}

entry! {
    /// Name and memory; all else is 0. As of release 13.
    fn cudaGetDeviceProperties(properties: *mut c_void, device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { write_properties(properties.cast(), PROPERTIES_13, device, state.device.total()) }
    }
}

/// Fills in `size` bytes of properties.
///
/// # Safety
///
/// `properties` is null, which is refused, or good for `size` bytes.
unsafe fn write_properties(
    properties: *mut u8,
    size: usize,
    device: c_int,
    total: u64,
) -> Result<(), Code> {
    if device != 0 {
        return Err(Code::INVALID_DEVICE);
    }
    if properties.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { properties.write_bytes(0, size) };
    // SAFETY: the caller's promise; all of it was written above.
    let bytes = unsafe { std::slice::from_raw_parts_mut(properties, size) };
    bytes[..NAME.len()].copy_from_slice(NAME);
    bytes[TOTAL_MEMORY..TOTAL_MEMORY + 8].copy_from_slice(&total.to_le_bytes());
    Ok(())
}

entry! {
    /// The driver's version.
    fn cudaDriverGetVersion(version: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(version, VERSION) }
    }
}

entry! {
    /// The runtime's version.
    fn cudaRuntimeGetVersion(version: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(version, VERSION) }
    }
}

entry! {
    /// There is no other device.
    fn cudaDeviceCanAccessPeer(can: *mut c_int, _device: c_int, _peer: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(can, 0) }
    }
}

entry! {
    /// There is no other device.
    fn cudaDeviceEnablePeerAccess(_peer: c_int, _flags: c_uint) |_| { Err(Code::INVALID_DEVICE) }
}

entry! {
    /// No memory belongs to graphs.
    fn cudaDeviceGetGraphMemAttribute(_device: c_int, _attribute: c_int, value: *mut u64) |_| {
        // SAFETY: the caller's promise; every attribute has 64 bits.
        unsafe { put(value, 0) }
    }
}

entry! {
    /// No memory belongs to graphs.
    fn cudaDeviceSetGraphMemAttribute(_device: c_int, _attribute: c_int, _value: *mut u64) |_| {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_hold_the_memory_where_the_runtime_puts_it() {
        for size in [PROPERTIES_12, PROPERTIES_13] {
            let mut bytes = vec![0xAA; size + 8];
            // SAFETY: the buffer has `size` bytes and more.
            unsafe { write_properties(bytes.as_mut_ptr(), size, 0, 0x1234_5678_9ABC) }.unwrap();
            assert_eq!(bytes[..7], *b"Tonnage");
            assert_eq!(bytes[288..296], 0x1234_5678_9ABC_u64.to_le_bytes());
            assert_eq!(bytes[size..], [0xAA; 8]);
        }
    }
}
