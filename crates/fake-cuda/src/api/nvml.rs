//! NVML's functions, for the same devices: a file may be loaded under both names.
//!
//! This process holds what it was given, and a context; a neighbour, process 1, holds a gibibyte.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::codes::Code;
use crate::state::with_state;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;

/// Bytes of a context, and of the neighbour.
const CONTEXT: u64 = 512 << 20;
const NEIGHBOUR: u64 = 1 << 30;

/// `nvmlProcessInfo_t`
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Starts NVML.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

/// Words for a code.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
extern "C" fn nvmlErrorString(_status: c_int) -> *const c_char {
    c"the fake has no words for this".as_ptr()
}

/// The driver's version.
///
/// # Safety
///
/// `text` has `length` bytes.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, length: c_uint) -> c_int {
    let version = c"580.00.00".to_bytes_with_nul();
    if text.is_null() || (length as usize) < version.len() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the caller's promise, and there is room.
    unsafe { crate::host_memory::copy(text.cast(), version.as_ptr(), version.len() as u64) };
    SUCCESS
}

/// A device by its place on the bus; its handle is its number, and one more.
///
/// # Safety
///
/// `place` ends in a zero byte; `device` can be written.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    place: *const c_char,
    device: *mut u64,
) -> c_int {
    if place.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    let place = unsafe { CStr::from_ptr(place) }.to_string_lossy().into_owned();
    let count = with_state(|state| state.devices.len()).unwrap_or(0);
    let Some(number) = (0..count).find(|it| place == format!("0000:{:02x}:00.0", 0x1b + it)) else {
        return NOT_FOUND;
    };
    // SAFETY: the caller's promise.
    let written = unsafe { super::put(device, number as u64 + 1) };
    written.map_or(INVALID_ARGUMENT, |()| SUCCESS)
}

/// The processes on a device.
///
/// # Safety
///
/// `count` can be read and written; `list` has as many places.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVML's name")]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: u64,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    let answer = || {
        let place = usize::try_from(device).ok().and_then(|it| it.checked_sub(1));
        let place = place.ok_or(Code::INVALID_VALUE)?;
        let (used, retained) = with_state(|state| {
            let budget = state.memory.budgets.get(place)?;
            Some((budget.used, state.devices.get(place)?.retained))
        })
        .flatten()
        .ok_or(Code::INVALID_VALUE)?;
        let mut processes = vec![(1, NEIGHBOUR)];
        if retained > 0 {
            processes.push((std::process::id(), used + CONTEXT));
        }
        // SAFETY: the caller's promise.
        let room = unsafe { super::get(count) }?;
        // SAFETY: the caller's promise.
        unsafe { super::put(count, processes.len() as c_uint) }?;
        if (room as usize) < processes.len() || list.is_null() {
            return Ok(INSUFFICIENT_SIZE);
        }
        for (index, (pid, used)) in processes.into_iter().enumerate() {
            let info = ProcessInfo { pid, used, gpu_instance: 0, compute_instance: 0 };
            // SAFETY: the caller's promise: there is room.
            unsafe { super::put(list.wrapping_add(index), info) }?;
        }
        Ok::<_, Code>(SUCCESS)
    };
    answer().unwrap_or(INVALID_ARGUMENT)
}
