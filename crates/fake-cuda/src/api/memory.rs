//! Segments, copies and pinned host memory.

use std::ffi::{c_uint, c_void};

use super::{entry, put};
use crate::codes::Code;
use crate::host_memory::{Access, Region, copy};
use crate::memory::Origin;
use crate::state::State;
use crate::work::{Place, Work};

entry! {
    /// Free and total bytes of the current context's device.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |state| {
        let budget = state.memory.budgets[state.current()?];
        // SAFETY: the caller's promise.
        unsafe { put(free, budget.capacity.saturating_sub(budget.used) as usize) }?;
        // SAFETY: the caller's promise.
        unsafe { put(total, budget.capacity as usize) }
    }
}

entry! {
    /// Obtains a segment.
    fn cuMemAlloc_v2(address: *mut u64, size: usize) |state| {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let device = state.current()?;
        let segment = state.memory.alloc(device, size as u64, Origin::Plain)?;
        // SAFETY: the caller's promise.
        unsafe { put(address, segment) }
    }
}

entry! {
    /// Waits for all work, then takes a segment back.
    fn cuMemFree_v2(address: u64) by wait |state| {
        let device = state.current()?;
        let is_done = state.queues.try_finish_device(device);
        if is_done {
            state.memory.free(address, Origin::Plain)?;
        }
        Ok(is_done)
    }
}

entry! {
    /// Obtains a segment in stream order.
    fn cuMemAllocAsync(address: *mut u64, size: usize, stream: u64) |state| {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let device = state.current()?;
        let queue = state.queues.key(stream, device)?;
        let segment = state.memory.alloc(device, size as u64, Origin::Pool)?;
        state.queues.push(queue);
        // SAFETY: the caller's promise.
        unsafe { put(address, segment) }
    }
}

entry! {
    /// Takes a segment back in stream order.
    fn cuMemFreeAsync(address: u64, stream: u64) |state| {
        let device = state.current()?;
        let queue = state.queues.key(stream, device)?;
        state.memory.free(address, Origin::Pool)?;
        state.queues.push(queue);
        Ok(())
    }
}

entry! {
    /// Copies to the device.
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize) by wait |state| {
        let device = state.current()?;
        state.memory.check_access(to, size as u64, true)?;
        let queue = state.queues.key(0, device)?;
        let is_done = state.queues.try_copy(queue);
        if is_done {
            // SAFETY: `to` is writable memory of the fake, checked above; `from` by the caller's
            // promise.
            unsafe { copy(pointer(to), from.cast(), size as u64) };
        }
        Ok(is_done)
    }
}

entry! {
    /// Copies from the device.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, size: usize) by wait |state| {
        let device = state.current()?;
        state.memory.check_access(from, size as u64, false)?;
        let queue = state.queues.key(0, device)?;
        let is_done = state.queues.try_copy(queue);
        if is_done {
            // SAFETY: `from` is readable memory of the fake, checked above; `to` by the caller's
            // promise.
            unsafe { copy(to.cast(), pointer(from), size as u64) };
        }
        Ok(is_done)
    }
}

entry! {
    /// Copies to the device in stream order.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, size: usize, stream: u64) |state| {
        let from = Place::Host(from.expose_provenance() as u64);
        // SAFETY: the caller's promise.
        unsafe { submit_copy(state, Place::Device(to), from, size, stream) }
    }
}

entry! {
    /// Copies from the device in stream order.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, size: usize, stream: u64) |state| {
        let to = Place::Host(to.expose_provenance() as u64);
        // SAFETY: the caller's promise.
        unsafe { submit_copy(state, to, Place::Device(from), size, stream) }
    }
}

entry! {
    /// Copies inside the device in stream order.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: u64) |state| {
        // SAFETY: no memory of the caller's is named.
        unsafe { submit_copy(state, Place::Device(to), Place::Device(from), size, stream) }
    }
}

entry! {
    /// Copies between devices in stream order.
    fn cuMemcpyPeerAsync(
        to: u64, to_context: u64, from: u64, from_context: u64, size: usize, stream: u64,
    ) |state| {
        for context in [to_context, from_context] {
            state.device_of(context)?;
        }
        // SAFETY: no memory of the caller's is named.
        unsafe { submit_copy(state, Place::Device(to), Place::Device(from), size, stream) }
    }
}

entry! {
    /// Fills memory of the device in stream order.
    fn cuMemsetD8Async(to: u64, value: u8, size: usize, stream: u64) |state| {
        let fill = Work::Fill { to, word: [value; 4], width: 1, count: size as u64 };
        // SAFETY: no memory of the caller's is named.
        unsafe { state.submit(stream, fill) }
    }
}

entry! {
    /// Fills memory of the device with words in stream order.
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: u64) |state| {
        let fill = Work::Fill { to, word: value.to_ne_bytes(), width: 4, count: count as u64 };
        // SAFETY: no memory of the caller's is named.
        unsafe { state.submit(stream, fill) }
    }
}

/// # Safety
///
/// Memory of the caller's that is named is good until the copy is done.
unsafe fn submit_copy(
    state: &mut State,
    to: Place,
    from: Place,
    size: usize,
    stream: u64,
) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    unsafe { state.submit(stream, Work::Copy { to, from, size: size as u64 }) }
}

entry! {
    /// Obtains pinned host memory.
    fn cuMemHostAlloc(memory: *mut *mut c_void, size: usize, _flags: c_uint) |state| {
        state.current()?;
        if memory.is_null() || size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let region = Region::new(size as u64, Access::ReadWrite)?;
        let address = region.address();
        state.pinned.insert(address, region);
        // SAFETY: the caller's promise.
        unsafe { put(memory, pointer(address).cast()) }
    }
}

entry! {
    /// Waits for all work, then takes pinned host memory back.
    fn cuMemFreeHost(memory: *mut c_void) by wait |state| {
        let device = state.current()?;
        let is_done = state.queues.try_finish_device(device);
        if is_done {
            let region = state.pinned.remove(&(memory.addr() as u64));
            region.map(drop).ok_or(Code::INVALID_VALUE)?;
        }
        Ok(is_done)
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
