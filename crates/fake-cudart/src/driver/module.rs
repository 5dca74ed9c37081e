//! Modules and kernels of the driver: loaded, asked about, launched, and doing nothing.

use std::ffi::{c_char, c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;

use super::entry;
use crate::profile::{Profile, attribute};
use crate::runtime::kernel::SYMBOLS;
use crate::state::put;

/// Handles, which nobody looks into.
const MODULE: u64 = 0x6000;
const FUNCTION: u64 = 0x6100;
const LIBRARY: u64 = 0x6200;
const KERNEL: u64 = 0x6300;

/// Attributes of a function, in the driver's numbers.
const FUNCTION_MAX_THREADS: c_int = 0;
const FUNCTION_REGISTERS: c_int = 4;
const FUNCTION_PTX: c_int = 5;
const FUNCTION_BINARY: c_int = 6;

/// Registers that a kernel is told to use.
const REGISTERS: c_int = 64;

/// Clusters that fit at once, as far as anyone asks.
const CLUSTERS: c_int = 16;

fn function_attribute(profile: &Profile, number: c_int) -> c_int {
    match number {
        FUNCTION_MAX_THREADS => profile.attribute(attribute::MAX_THREADS_PER_BLOCK),
        FUNCTION_REGISTERS => REGISTERS,
        FUNCTION_PTX | FUNCTION_BINARY => profile.architecture(),
        _ => 0,
    }
}

entry! {
    /// A handle.
    fn cuModuleLoad(module: *mut u64, _path: *const c_char) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(module, MODULE) }
    }

    /// A handle.
    fn cuModuleLoadData(module: *mut u64, _image: *const c_void) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(module, MODULE) }
    }

    /// A handle.
    fn cuModuleLoadDataEx(
        module: *mut u64,
        _image: *const c_void,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(module, MODULE) }
    }

    /// A handle.
    fn cuModuleLoadFatBinary(module: *mut u64, _image: *const c_void) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(module, MODULE) }
    }

    /// Nothing was loaded.
    fn cuModuleUnload(_module: u64) |_| { Ok(()) }

    /// Every function is there.
    fn cuModuleGetFunction(function: *mut u64, _module: u64, _name: *const c_char) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(function, FUNCTION) }
    }

    /// Variables of kernels lie on the device.
    fn cuModuleGetGlobal_v2(address: *mut u64, size: *mut usize, _module: u64, _name: *const c_char) |_| {
        if !address.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(address, SYMBOLS as u64) }?;
        }
        if size.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { put(size, 4) }
    }

    /// A handle.
    fn cuLibraryLoadData(
        library: *mut u64,
        _image: *const c_void,
        _options: *mut c_int,
        _values: *mut *mut c_void,
        _count: c_uint,
        _library_options: *mut c_int,
        _library_values: *mut *mut c_void,
        _library_count: c_uint,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(library, LIBRARY) }
    }

    /// Every kernel is there.
    fn cuLibraryGetKernel(kernel: *mut u64, _library: u64, _name: *const c_char) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(kernel, KERNEL) }
    }

    /// A library has one module.
    fn cuLibraryGetModule(module: *mut u64, _library: u64) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(module, MODULE) }
    }

    /// A kernel has one function.
    fn cuKernelGetFunction(function: *mut u64, _kernel: u64) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(function, FUNCTION) }
    }

    /// What schedulers choose by.
    fn cuFuncGetAttribute(value: *mut c_int, number: c_int, _function: u64) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(value, function_attribute(&state.profile, number)) }
    }

    /// The same, of a kernel.
    fn cuKernelGetAttribute(value: *mut c_int, number: c_int, _kernel: u64, _device: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(value, function_attribute(&state.profile, number)) }
    }

    /// Blocks that a multiprocessor has at once.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        count: *mut c_int,
        _function: u64,
        threads: c_int,
        _shared: usize,
    ) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(count, state.profile.blocks_at_once(threads)) }
    }

    /// Clusters that the device has at once.
    fn cuOccupancyMaxActiveClusters(count: *mut c_int, _function: u64, _configuration: *const c_void) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(count, CLUSTERS) }
    }

    /// Programs are not linked here.
    fn cuLinkCreate_v2(
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
        state: *mut u64,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(state, MODULE) }
    }

    /// What was linked is nothing.
    fn cuLinkComplete(_state: u64, image: *mut *const c_void, size: *mut usize) |_| {
        // SAFETY: the caller's promise. The place is one byte that is never read.
        unsafe { put(image, c"".as_ptr().cast()) }?;
        // SAFETY: the caller's promise.
        unsafe { put(size, 0) }
    }

    /// A texture of tensors is not described to anyone.
    fn cuTensorMapEncodeTiled(map: *mut c_void) |_| {
        if map.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }
}
