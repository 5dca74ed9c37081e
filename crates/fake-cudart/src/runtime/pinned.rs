//! Page-locked memory of the host, and whose a pointer is.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;

use super::entry;
use crate::devices::current;
use crate::state::{State, put};

/// What page-locked memory is aligned to.
const PAGE: usize = 4096;

/// Whose a pointer is, in the runtime's numbers.
const OF_NOBODY: c_int = 0;
const OF_THE_HOST: c_int = 1;
const OF_THE_DEVICE: c_int = 2;

/// The device of memory that has none.
const NO_DEVICE: c_int = -2;

/// `cudaPointerAttributes`, as far as all releases have it.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    on_device: *mut c_void,
    on_host: *mut c_void,
}

fn layout(size: usize) -> Result<Layout, Code> {
    Layout::from_size_align(size.max(1), PAGE).map_err(|_| Code::INVALID_VALUE)
}

/// Page-locked memory.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
unsafe fn lock(state: &mut State, place: *mut *mut c_void, size: usize) -> Result<(), Code> {
    let layout = layout(size)?;
    // SAFETY: the layout has at least a byte.
    let memory = unsafe { alloc(layout) };
    if memory.is_null() {
        return Err(Code::OUT_OF_MEMORY);
    }
    state.pinned.insert(memory.addr(), layout.size());
    // SAFETY: the caller's promise.
    unsafe { put(place, memory.cast()) }
}

entry! {
    /// Page-locked memory.
    fn cudaHostAlloc(place: *mut *mut c_void, size: usize, _flags: c_uint) |state| {
        // SAFETY: the caller's promise.
        unsafe { lock(state, place, size) }
    }

    /// Page-locked memory.
    fn cudaMallocHost(place: *mut *mut c_void, size: usize) |state| {
        // SAFETY: the caller's promise.
        unsafe { lock(state, place, size) }
    }

    /// Gives page-locked memory back; null is nothing.
    fn cudaFreeHost(memory: *mut c_void) |state| {
        if memory.is_null() {
            return Ok(());
        }
        let size = state.pinned.remove(&memory.addr()).ok_or(Code::INVALID_VALUE)?;
        let layout = layout(size)?;
        // SAFETY: it was allocated by `lock` with this layout, and is freed once: it was in the books.
        unsafe { dealloc(memory.cast(), layout) };
        Ok(())
    }

    /// Memory of the program's counts as page-locked.
    fn cudaHostRegister(memory: *mut c_void, size: usize, _flags: c_uint) |state| {
        state.registered.insert(memory.addr(), size);
        Ok(())
    }

    /// It does no more.
    fn cudaHostUnregister(memory: *mut c_void) |state| {
        state.registered.remove(&memory.addr()).map(drop).ok_or(Code::INVALID_VALUE)
    }

    /// The device sees it where the host does.
    fn cudaHostGetDevicePointer(place: *mut *mut c_void, memory: *mut c_void, _flags: c_uint) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(place, memory) }
    }

    /// Whose a pointer is.
    fn cudaPointerGetAttributes(place: *mut c_void, pointer: *mut c_void) |state| {
        let nowhere = std::ptr::null_mut();
        let attributes = if state.on_device(pointer.addr()) {
            let device = state.holder(pointer.addr() as u64).unwrap_or_else(current);
            PointerAttributes { kind: OF_THE_DEVICE, device, on_device: pointer, on_host: nowhere }
        } else if state.is_pinned(pointer.addr()) {
            PointerAttributes { kind: OF_THE_HOST, device: current(), on_device: pointer, on_host: pointer }
        } else {
            PointerAttributes { kind: OF_NOBODY, device: NO_DEVICE, on_device: nowhere, on_host: pointer }
        };
        // SAFETY: the caller's promise.
        unsafe { put(place.cast(), attributes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::with_state;

    #[test]
    fn page_locked_memory_is_told_from_other_memory() {
        let mut memory = std::ptr::null_mut();
        let kind = |pointer: *mut c_void| {
            let mut attributes = [0_u64; 16];
            let place = attributes.as_mut_ptr().cast();
            // SAFETY: the place is longer than any release's attributes.
            let code = unsafe { cudaPointerGetAttributes(place, pointer) };
            assert_eq!(code, 0);
            attributes[0] as c_int
        };
        // SAFETY: the place can be written.
        assert_eq!(unsafe { cudaHostAlloc(&raw mut memory, 100, 0) }, 0);
        assert_eq!(kind(memory), OF_THE_HOST);
        assert_eq!(kind(memory.wrapping_byte_add(99)), OF_THE_HOST);
        assert_eq!(kind(memory.wrapping_byte_add(100)), OF_NOBODY);
        assert_eq!(kind(std::ptr::without_provenance_mut(1 << 46)), OF_THE_DEVICE);
        // SAFETY: it is ours.
        assert_eq!(unsafe { cudaFreeHost(memory) }, 0);
        assert_eq!(kind(memory), OF_NOBODY);
        // SAFETY: it is refused.
        assert_eq!(unsafe { cudaFreeHost(memory) }, Code::INVALID_VALUE.0);
        let mut own = [0_u8; 8];
        let place = own.as_mut_ptr().cast();
        // SAFETY: nothing is done with it.
        assert_eq!(unsafe { cudaHostRegister(place, 8, 0) }, 0);
        assert_eq!(kind(place), OF_THE_HOST);
        // SAFETY: it is not ours to free, which is refused.
        assert_eq!(unsafe { cudaFreeHost(place) }, Code::INVALID_VALUE.0);
        // SAFETY: nothing is done with it.
        assert_eq!(unsafe { cudaHostUnregister(place) }, 0);
        assert!(with_state(|state| state.registered.is_empty()).unwrap());
    }
}
