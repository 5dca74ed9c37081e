//! What PyTorch asks the management library when memory runs out: no other process uses the device.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Success.
const SUCCESS: c_int = 0;

/// The function does nothing here.
const NOT_SUPPORTED: c_int = 3;

/// Where in the answer about the fabric its state is told; 0 says that there is none.
const FABRIC_STATE: usize = 28;

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
