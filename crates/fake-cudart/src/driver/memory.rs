//! Virtual memory, other memory, copies, and whose a pointer is.

use std::ffi::{c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;
use tonnage_device::Device;
use tonnage_events::Address;

use super::entry;
use super::outsiders::note_asking;
use crate::devices::current;
use crate::runtime::copies::copy;
use crate::state::put;

/// What `CUmemAllocationProp` is to us: not looked at.
type Opaque = *const c_void;

/// `CUmemAccessDesc`: a kind of place, its number, and what it may do.
#[derive(Clone, Copy)]
#[repr(C)]
struct Access {
    kind: c_int,
    device: c_int,
    flags: c_int,
}

/// The kind of place that is a device.
const OF_A_DEVICE: c_int = 1;

/// Attributes of a pointer, in the driver's numbers.
const POINTER_CONTEXT: c_int = 1;
const POINTER_MEMORY: c_int = 2;
const POINTER_ON_DEVICE: c_int = 3;
const POINTER_DEVICE: c_int = 9;

/// Whose memory is, in the driver's numbers.
const OF_THE_HOST: c_uint = 1;
const OF_THE_DEVICE: c_uint = 2;

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

entry! {
    /// The unit of mapping.
    fn cuMemGetAllocationGranularity(size: *mut usize, _properties: Opaque, _kind: c_int) |state| {
        // SAFETY: the caller's promise.
        unsafe { put(size, state.device.granularity() as usize) }
    }

    /// Addresses without memory.
    fn cuMemAddressReserve(
        address: *mut u64,
        size: usize,
        _alignment: usize,
        _wish: u64,
        _flags: u64,
    ) |state| {
        let range = state.reserve(size as u64)?;
        // SAFETY: the caller's promise.
        unsafe { put(address, range) }
    }

    /// Gives addresses back.
    fn cuMemAddressFree(address: u64, size: usize) |state| { state.unreserve(address, size as u64) }

    /// A page.
    fn cuMemCreate(page: *mut u64, size: usize, _properties: Opaque, _flags: u64) |state| {
        let made = state.create_page(size as u64)?;
        // SAFETY: the caller's promise.
        unsafe { put(page, made.0) }
    }

    /// Gives a page's handle back.
    fn cuMemRelease(page: u64) |state| { state.release_page(page) }

    /// Puts a page at an address.
    fn cuMemMap(address: u64, size: usize, _offset: usize, page: u64, _flags: u64) |state| {
        state.map(address, size as u64, page)
    }

    /// Takes pages away.
    fn cuMemUnmap(address: u64, size: usize) |state| { state.unmap(address, size as u64) }

    /// Lets devices at what is mapped. Nobody looks at the memory, but it is asked who could.
    fn cuMemSetAccess(address: u64, size: usize, access: *const Access, count: usize) |state| {
        if access.is_null() || count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise: there are so many.
        for access in unsafe { std::slice::from_raw_parts(access, count) } {
            if access.kind == OF_A_DEVICE {
                state.set_access(address, size as u64, access.device, access.flags != 0)?;
            }
        }
        Ok(())
    }

    /// A segment.
    fn cuMemAlloc_v2(address: *mut u64, size: usize) |state| {
        let segment = state.acquire(size as u64)?;
        // SAFETY: the caller's promise.
        unsafe { put(address, segment.0) }
    }

    /// Takes it back.
    fn cuMemFree_v2(address: u64) |state| { state.release(Address(address)) }

    /// Free and total bytes.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) first () = note_asking("cuMemGetInfo"), |state| {
        let info = state.memory_info();
        // SAFETY: the caller's promise.
        unsafe { put(free, info.free as usize) }?;
        // SAFETY: the caller's promise.
        unsafe { put(total, info.total as usize) }
    }

    /// Whose a pointer is.
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) |state| {
        match attribute {
            POINTER_MEMORY => {
                let whose = if state.on_device(address as usize) { OF_THE_DEVICE } else { OF_THE_HOST };
                // SAFETY: the caller's promise.
                unsafe { put(value.cast(), whose) }
            }
            // SAFETY: the caller's promise.
            POINTER_ON_DEVICE => unsafe { put(value.cast(), address) },
            // SAFETY: the caller's promise.
            POINTER_CONTEXT => unsafe { put(value.cast::<u64>(), 0) },
            // SAFETY: the caller's promise.
            POINTER_DEVICE => unsafe { put(value.cast(), state.holder(address).unwrap_or_else(current)) },
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    /// Nothing is filled that anyone looks at.
    fn cuMemsetD32Async(address: u64, _value: c_uint, count: usize, stream: u64) |state| {
        state.captures.add_node(stream);
        state.shadow.forget(address, 4 * count);
        Ok(())
    }

    /// Nothing is filled that anyone looks at.
    fn cuMemsetD8Async(address: u64, _value: u8, count: usize, stream: u64) |state| {
        state.captures.add_node(stream);
        state.shadow.forget(address, count);
        Ok(())
    }

    /// Moves bytes to the device.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, length: usize, stream: u64) |state| {
        state.captures.add_node(stream);
        // SAFETY: the caller's promise.
        unsafe { copy(state, pointer(to), from, length) };
        Ok(())
    }

    /// Moves bytes to the host.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, length: usize, stream: u64) |state| {
        state.captures.add_node(stream);
        // SAFETY: the caller's promise.
        unsafe { copy(state, to, pointer(from), length) };
        Ok(())
    }

    /// Moves bytes on the device.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, length: usize, stream: u64) |state| {
        state.captures.add_node(stream);
        state.shadow.copy(to, from, length);
        Ok(())
    }
}
