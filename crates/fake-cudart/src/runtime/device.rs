//! Devices, all alike, and what PyTorch asks of them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;
use tonnage_device::Device;

use super::{entry, properties};
use crate::devices::{bus_id, current, make_current};
use crate::state::{State, put};

/// The version that is told without a profile: 13.0, in the runtime's way of writing it.
const VERSION: c_int = 13000;

fn version(state: &State) -> c_int {
    if state.profile.version == 0 { VERSION } else { state.profile.version }
}

entry! {
    /// Those of the profile, unless the environment hides some.
    fn cudaGetDeviceCount(count: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(count, state.devices()) }?;
        if state.devices() == 0 { Err(Code::NO_DEVICE) } else { Ok(()) }
    }

    /// That of the thread.
    fn cudaGetDevice(device: *mut c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(device, current()) }
    }

    /// The thread's from now on.
    fn cudaSetDevice(device: c_int) |state| {
        if !state.has_device(device) {
            return Err(Code::INVALID_DEVICE);
        }
        make_current(device);
        Ok(())
    }

    /// Everything is done at once.
    fn cudaDeviceSynchronize() |_| { Ok(()) }

    /// Of the profile.
    fn cudaDeviceGetAttribute(value: *mut c_int, number: c_int, _device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(value, state.profile.attribute(number)) }
    }

    /// Name, memory and attributes. As of release 12.
    fn cudaGetDeviceProperties_v2(place: *mut c_void, device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { write_properties(place.cast(), properties::SIZE_12, device, state) }
    }

    /// Name, memory and attributes. As of release 13.
    fn cudaGetDeviceProperties(place: *mut c_void, device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { write_properties(place.cast(), properties::SIZE_13, device, state) }
    }

    /// Where it is plugged in.
    fn cudaDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { bus_id(text, length, device) }
    }

    /// The driver's version.
    fn cudaDriverGetVersion(place: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(place, version(state)) }
    }

    /// The runtime's version.
    fn cudaRuntimeGetVersion(place: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(place, version(state)) }
    }

    /// Devices of a host reach each other's memory.
    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |state| {
        if !state.has_device(device) || !state.has_device(peer) {
            return Err(Code::INVALID_DEVICE);
        }
        // SAFETY: the caller's promise.
        unsafe { put(can, c_int::from(state.reaches(device, peer))) }
    }

    /// Nothing has to be done for it.
    fn cudaDeviceEnablePeerAccess(peer: c_int, _flags: c_uint) |state| {
        match state.has_device(peer) && state.reaches(current(), peer) {
            true => Ok(()),
            false => Err(Code::INVALID_DEVICE),
        }
    }

    /// No memory belongs to graphs.
    fn cudaDeviceGetGraphMemAttribute(_device: c_int, _attribute: c_int, value: *mut u64) |_| {
        // SAFETY: the caller's promise; every attribute has 64 bits.
        unsafe { put(value, 0) }
    }

    /// No memory belongs to graphs.
    fn cudaDeviceSetGraphMemAttribute(_device: c_int, _attribute: c_int, _value: *mut u64) |_| {
        Ok(())
    }

    /// No limit holds: none is reached.
    fn cudaDeviceGetLimit(value: *mut usize, _limit: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(value, 0) }
    }

    /// No limit holds.
    fn cudaDeviceSetLimit(_limit: c_int, _value: usize) |_| { Ok(()) }
}

/// Fills in `size` bytes of properties.
///
/// # Safety
///
/// `place` is null, which is refused, or good for `size` bytes.
unsafe fn write_properties(
    place: *mut u8,
    size: usize,
    device: c_int,
    state: &State,
) -> Result<(), Code> {
    if !state.has_device(device) {
        return Err(Code::INVALID_DEVICE);
    }
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { place.write_bytes(0, size) };
    // SAFETY: the caller's promise; all of it was written above.
    let bytes = unsafe { std::slice::from_raw_parts_mut(place, size) };
    properties::fill(bytes, &state.profile, state.device.total(), device);
    Ok(())
}
