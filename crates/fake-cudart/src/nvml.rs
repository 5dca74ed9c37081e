//! What PyTorch asks the management library when memory runs out: no other process uses the device. And what programs ask it:
//! how many devices there are, and how much of each is used.

use std::ffi::{c_char, c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;

use crate::devices::put_text;
use crate::driver::outsiders::note_asking;
use crate::entry::library_entry as entry;
use crate::state::{State, put};

/// Success.
const SUCCESS: c_int = 0;

/// The function does nothing here.
const NOT_SUPPORTED: c_int = 3;

/// Where in the answer about the fabric its state is told; 0 says that there is none.
const FABRIC_STATE: usize = 28;

/// An argument that is none, in this library's numbers.
const INVALID: Code = Code(2);

/// The driver that is told.
const DRIVER: &[u8] = b"580.00\0";

/// Bytes of a device, as `nvmlMemory_t` has them.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The same with the driver's share apart, as `nvmlMemory_v2_t` has them.
#[repr(C)]
struct MemoryV2 {
    version: u64,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Busy percent of processors and memory.
#[repr(C)]
struct Utilization {
    processors: c_uint,
    memory: c_uint,
}

/// A handle is the device's number and 1, since 0 is none.
fn number(state: &State, handle: usize) -> Result<c_int, Code> {
    let number = c_int::try_from(handle).map_err(|_| INVALID)? - 1;
    if (0..state.profile.devices.max(1)).contains(&number) { Ok(number) } else { Err(INVALID) }
}

entry! {
    /// Begins.
    fn nvmlInitWithFlags(_flags: c_uint) |_| { Ok(()) }

    /// Ends.
    fn nvmlShutdown() |_| { Ok(()) }

    /// All of the host, whatever a program hides from itself.
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(count, c_uint::try_from(state.profile.devices).unwrap_or(1).max(1)) }
    }

    /// By its number.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut usize) |state| {
        let handle = index as usize + 1;
        number(state, handle)?;
        // SAFETY: the caller's promise.
        unsafe { put(device, handle) }
    }

    /// Of the profile.
    fn nvmlDeviceGetName(device: usize, text: *mut c_char, length: c_uint) |state| {
        number(state, device)?;
        let name = format!("{}\0", state.profile.name);
        // SAFETY: the caller's promise.
        unsafe { put_text(text, c_int::try_from(length).unwrap_or(c_int::MAX), name.as_bytes()) }
    }

    /// What can be had, and what is taken; the driver's share is taken.
    fn nvmlDeviceGetMemoryInfo(
        device: usize,
        memory: *mut Memory,
    ) first () = note_asking("nvmlDeviceGetMemoryInfo"), |state| {
        let info = state.memory_info_of(number(state, device)?);
        let used = info.total - info.free;
        // SAFETY: the caller's promise.
        unsafe { put(memory, Memory { total: info.total, free: info.free, used }) }
    }

    /// The same.
    fn nvmlDeviceGetMemoryInfo_v2(
        device: usize,
        memory: *mut MemoryV2,
    ) first () = note_asking("nvmlDeviceGetMemoryInfo"), |state| {
        let info = state.memory_info_of(number(state, device)?);
        let used = info.total - info.free;
        let told = MemoryV2 { version: 0, total: info.total, reserved: 0, free: info.free, used };
        // SAFETY: the caller's promise.
        unsafe { put(memory, told) }
    }

    /// Nothing is computed.
    fn nvmlDeviceGetUtilizationRates(device: usize, rates: *mut Utilization) |state| {
        number(state, device)?;
        // SAFETY: the caller's promise.
        unsafe { put(rates, Utilization { processors: 0, memory: 0 }) }
    }

    /// A driver.
    fn nvmlSystemGetDriverVersion(text: *mut c_char, length: c_uint) |_| {
        // SAFETY: the caller's promise.
        unsafe { put_text(text, c_int::try_from(length).unwrap_or(c_int::MAX), DRIVER) }
    }
}

/// No result is in words here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn nvmlErrorString(_result: c_int) -> *const c_char {
    c"a result of the fake management library".as_ptr()
}

/// Begins.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

/// The one device.
///
/// # Safety
///
/// `device` is null or can be written.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    _bus: *const c_char,
    device: *mut usize,
) -> c_int {
    if !device.is_null() {
        // SAFETY: the caller's promise.
        unsafe { device.write(1) };
    }
    SUCCESS
}

/// None.
///
/// # Safety
///
/// `count` is null or can be written.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    _device: usize,
    count: *mut c_uint,
    _processes: *mut c_void,
) -> c_int {
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { count.write(0) };
    }
    SUCCESS
}

/// There is no fabric.
///
/// # Safety
///
/// `fabric` is null or a `nvmlGpuFabricInfoV_t`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(_device: usize, fabric: *mut u8) -> c_int {
    if !fabric.is_null() {
        // SAFETY: the structure is longer than that.
        let state = unsafe { fabric.add(FABRIC_STATE) };
        // SAFETY: the caller's promise.
        unsafe { state.write(0) };
    }
    SUCCESS
}

macro_rules! unsupported {
    ($($name:ident)*) => {$(
        /// Not here.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the library's name")]
        extern "C" fn $name() -> c_int {
            NOT_SUPPORTED
        }
    )*};
}

unsupported! {
    nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlSystemGetCudaDriverVersion_v2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_with_its_memory() {
        let (mut count, mut device) = (0, 0);
        let mut memory = Memory { total: 0, free: 0, used: 0 };
        // SAFETY: the place can be written.
        assert_eq!(unsafe { nvmlDeviceGetCount_v2(&raw mut count) }, SUCCESS);
        // SAFETY: as above.
        assert_eq!(unsafe { nvmlDeviceGetHandleByIndex_v2(0, &raw mut device) }, SUCCESS);
        // SAFETY: as above.
        assert_eq!(unsafe { nvmlDeviceGetMemoryInfo(device, &raw mut memory) }, SUCCESS);
        let mut none = 0;
        // SAFETY: as above.
        assert_eq!(unsafe { nvmlDeviceGetHandleByIndex_v2(count, &raw mut none) }, INVALID.0);
        // SAFETY: as above.
        assert_eq!(unsafe { nvmlDeviceGetMemoryInfo(none, &raw mut memory) }, INVALID.0);
        assert_eq!((count, memory.free + memory.used), (1, memory.total));
    }
}
