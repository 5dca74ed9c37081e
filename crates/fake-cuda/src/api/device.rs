//! Devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use super::{entry, put};
use crate::codes::Code;
use crate::state::{context_of, current_context, pop_context};

/// CUDA 13.0
const VERSION: c_int = 13_000;

entry! {
    /// Starts the driver; without devices it does not start.
    fn cuInit(flags: c_uint) by call_before_init |state| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if state.devices.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        state.initialised = true;
        Ok(())
    }
}

entry! {
    /// The CUDA version of the driver.
    fn cuDriverGetVersion(version: *mut c_int) by call_before_init |_| {
        // SAFETY: the caller's promise.
        unsafe { put(version, VERSION) }
    }
}

entry! {
    /// The number of devices.
    fn cuDeviceGetCount(count: *mut c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(count, state.devices.len() as c_int) }
    }
}

entry! {
    /// A device by its ordinal.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |state| {
        state.device(ordinal)?;
        // SAFETY: the caller's promise.
        unsafe { put(device, ordinal) }
    }
}

entry! {
    /// A device's name.
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) |state| {
        state.device(device)?;
        let length = usize::try_from(length).unwrap_or(0);
        if name.is_null() || length == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let text = format!("Fake CUDA device {device}");
        let bytes = text.bytes().take(length - 1).chain([0]);
        for (place, byte) in bytes.enumerate() {
            // SAFETY: `place` is below `length`, which the caller vouches for.
            let to = unsafe { name.add(place) };
            // SAFETY: as above: one byte inside the caller's buffer.
            unsafe { put(to, byte as c_char) }?;
        }
        Ok(())
    }
}

entry! {
    /// A device's memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |state| {
        let place = state.device(device)?;
        // SAFETY: the caller's promise.
        unsafe { put(bytes, state.memory.budgets[place].capacity as usize) }
    }
}

entry! {
    /// A device's attribute.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) |state| {
        let place = state.device(device)?;
        let answer = match attribute {
            // Threads of a block, and of a multiprocessor; a warp.
            1 => 1024,
            39 => 2048,
            10 => 32,
            // Shared memory of a block without asking and with, and of a multiprocessor.
            8 => 48 << 10,
            97 => 227 << 10,
            81 => 228 << 10,
            // Registers of a block and of a multiprocessor.
            12 | 82 => 65_536,
            // Clocks of multiprocessors and memory in kHz, bits of the bus, second-level cache: an H200's.
            13 => 1_980_000,
            36 => 3_201_000,
            37 => 6144,
            38 => 60 << 20,
            // Multiprocessors.
            16 => 132,
            // PCI bus, device and domain.
            33 => 0x1b + device,
            34 | 50 => 0,
            // Compute capability, major and minor.
            75 => 9,
            76 => 0,
            // Virtual memory management.
            102 => c_int::from(state.devices[place].virtual_memory),
            // Memory pools.
            115 => 1,
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the caller's promise.
        unsafe { put(value, answer) }
    }
}

entry! {
    /// A reference to a device's primary context.
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) |state| {
        let place = state.device(device)?;
        // SAFETY: the caller's promise.
        unsafe { put(context, context_of(place)) }?;
        state.devices[place].retained += 1;
        Ok(())
    }
}

entry! {
    /// Gives a reference back. What was made in the context stays in the books, as a leak.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |state| {
        let place = state.device(device)?;
        let retained = &mut state.devices[place].retained;
        *retained = retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        Ok(())
    }
}

entry! {
    /// Replaces the current context.
    fn cuCtxSetCurrent(context: u64) |state| {
        state.set_context(context)
    }
}

entry! {
    /// The current context, or null.
    fn cuCtxGetCurrent(context: *mut u64) |_| {
        let current = current_context()?;
        // SAFETY: the caller's promise.
        unsafe { put(context, current) }
    }
}

entry! {
    /// The device of the current context.
    fn cuCtxGetDevice(device: *mut c_int) |state| {
        let current = state.current()?;
        // SAFETY: the caller's promise.
        unsafe { put(device, current as c_int) }
    }
}

entry! {
    /// Makes a context current on top of the one that was.
    fn cuCtxPushCurrent_v2(context: u64) |state| {
        state.push_context(context)
    }
}

entry! {
    /// Takes the current context away. Its handle is written where the caller wants it.
    fn cuCtxPopCurrent_v2(context: *mut u64) |_| {
        let popped = pop_context()?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { put(context, popped) }
    }
}

entry! {
    /// Waits for all work of the current context.
    fn cuCtxSynchronize() by wait |state| {
        let device = state.current()?;
        state.captures.refuse_context()?;
        Ok(state.queues.try_finish_device(device))
    }
}
