//! Modules, functions and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{entry, get, put};
use crate::codes::Code;
use crate::image;
use crate::launches::{Launch, SHARED_MOST, THREADS_MOST};
use crate::work::Work;

/// `CU_JIT_ERROR_LOG_BUFFER`, and its size.
const LOG: c_int = 5;
const LOG_BYTES: c_int = 6;

/// What the fake says of an image that it refuses.
const REFUSAL: &CStr = c"the image is neither PTX nor a cubin";

entry! {
    /// Loads compiled kernels; says why not where the options ask for it.
    fn cuModuleLoadDataEx(
        module: *mut u64, image: *const c_void, count: c_uint, options: *const c_int,
        values: *const *mut c_void,
    ) |state| {
        state.current()?;
        if module.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        let kernels = match unsafe { image::kernels(image) } {
            Ok(kernels) => kernels,
            Err(code) => {
                // SAFETY: the caller's promise.
                unsafe { write_log(count as usize, options, values) }?;
                return Err(code);
            }
        };
        let handle = state.launches.load(kernels);
        // SAFETY: the caller's promise.
        unsafe { put(module, handle) }
    }
}

/// # Safety
///
/// There are `count` options and values; the log has as many bytes as its option says.
unsafe fn write_log(
    count: usize,
    options: *const c_int,
    values: *const *mut c_void,
) -> Result<(), Code> {
    let (mut log, mut size) = (std::ptr::null_mut::<u8>(), 0);
    for index in 0..count {
        // SAFETY: `index` is below `count`.
        let option = unsafe { get(options.wrapping_add(index)) }?;
        // SAFETY: as above.
        let value = unsafe { get(values.wrapping_add(index)) }?;
        match option {
            LOG => log = value.cast(),
            LOG_BYTES => size = value.addr(),
            _ => {}
        }
    }
    let text = REFUSAL.to_bytes_with_nul();
    if !log.is_null() && size >= text.len() {
        // SAFETY: the caller's promise: the log has `size` bytes.
        unsafe { crate::host_memory::copy(log, text.as_ptr(), text.len() as u64) };
    }
    Ok(())
}

entry! {
    /// Unloads a module.
    fn cuModuleUnload(module: u64) |state| {
        state.current()?;
        state.launches.unload(module)
    }
}

entry! {
    /// A kernel by its name.
    fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) |state| {
        state.current()?;
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise: it ends in a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let handle = state.launches.find(module, &name)?;
        // SAFETY: the caller's promise.
        unsafe { put(function, handle) }
    }
}

entry! {
    /// What a function needs. Only what it may ask for in shared memory is its own.
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: u64) |state| {
        let shared = state.launches.function(function)?.shared;
        let answer = match attribute {
            // Threads of a block, registers.
            0 => THREADS_MOST as c_int,
            4 => 32,
            // Shared, constant and local memory.
            1..=3 => 0,
            8 => shared as c_int,
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the caller's promise.
        unsafe { put(value, answer) }
    }
}

entry! {
    /// Allows a function more shared memory.
    fn cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) |state| {
        let function = state.launches.function(function)?;
        let value = u32::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
        if attribute != 8 || value > SHARED_MOST {
            return Err(Code::INVALID_VALUE);
        }
        function.shared = value;
        Ok(())
    }
}

entry! {
    /// Where a parameter lies and how large it is.
    fn cuFuncGetParamInfo(function: u64, index: usize, offset: *mut usize, size: *mut usize) |state| {
        let sizes = &state.launches.function(function)?.sizes;
        let found = *sizes.get(index).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(offset, sizes[..index].iter().sum()) }?;
        // SAFETY: the caller's promise.
        unsafe { put(size, found) }
    }
}

entry! {
    /// How many blocks a multiprocessor holds: by threads and shared memory alone.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: u64, threads: c_int, shared: usize,
    ) |state| {
        state.launches.function(function)?;
        let threads = usize::try_from(threads).map_err(|_| Code::INVALID_VALUE)?;
        let by_threads = 2048usize.checked_div(threads).ok_or(Code::INVALID_VALUE)?;
        let by_shared = (SHARED_MOST as usize).checked_div(shared).unwrap_or(32);
        // SAFETY: the caller's promise.
        unsafe { put(blocks, by_threads.min(by_shared).min(32) as c_int) }
    }
}

entry! {
    /// Queues a launch. The test's body for this kernel runs now, if there is one.
    fn cuLaunchKernel(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: u64,
        arguments: *const *const u8, extra: *const c_void,
    ) |state| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let function = state.launches.function(function)?;
        let threads = block.iter().try_fold(1u32, |all, it| all.checked_mul(*it));
        let fits = threads.is_some_and(|it| (1..=THREADS_MOST).contains(&it));
        if !fits || grid.contains(&0) || grid_y > 0xffff || grid_z > 0xffff
            || shared > function.shared || !extra.is_null()
        {
            return Err(Code::INVALID_VALUE);
        }
        let mut copied = Vec::new();
        for (index, size) in function.sizes.iter().enumerate() {
            if arguments.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: the caller's promise: as many arguments as the kernel has parameters.
            let argument = unsafe { get(arguments.wrapping_add(index)) }?;
            if argument.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: the caller's promise: each as large as its parameter.
            copied.push(unsafe { std::slice::from_raw_parts(argument, *size) }.to_vec());
        }
        let name = function.name.clone();
        let launch = Launch { name, grid, block, shared, stream, arguments: copied };
        // SAFETY: a launch names no memory of the caller's; what its body does is the test's.
        unsafe { state.submit(stream, Work::Launch(launch)) }
    }
}
