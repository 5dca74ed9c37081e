//! Segments, and the driver's own pools, which hold nothing back.

use std::ffi::{c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;
use tonnage_events::Address;

use super::entry;
use crate::driver::outsiders::note_asking;
use crate::state::{State, put};

/// The handle of the device's one pool.
const POOL: u64 = 0x5000;

/// Attributes of a pool that are an `int`, in the runtime's numbers: what it may reuse. Others have 64 bits.
const REUSES: std::ops::RangeInclusive<c_int> = 1..=3;

/// Obtains a segment; no bytes are at no address.
///
/// # Safety
///
/// `address` is null, which is refused, or can be written.
unsafe fn acquire(state: &mut State, address: *mut *mut c_void, size: usize) -> Result<(), Code> {
    if address.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        return unsafe { put(address, std::ptr::null_mut()) };
    }
    let segment = state.acquire(size as u64)?;
    // SAFETY: the caller's promise. Nothing lies there: nobody follows the pointer.
    unsafe { put(address, std::ptr::without_provenance_mut(segment.0 as usize)) }
}

fn release(state: &mut State, address: *mut c_void) -> Result<(), Code> {
    if address.is_null() {
        return Ok(());
    }
    state.release(Address(address.addr() as u64))
}

entry! {
    /// Obtains a segment.
    fn cudaMalloc(address: *mut *mut c_void, size: usize) |state| {
        // SAFETY: the caller's promise.
        unsafe { acquire(state, address, size) }
    }

    /// The same: everything is done at once.
    fn cudaMallocAsync(address: *mut *mut c_void, size: usize, _stream: u64) |state| {
        // SAFETY: the caller's promise.
        unsafe { acquire(state, address, size) }
    }

    /// Takes a segment back; null is nothing.
    fn cudaFree(address: *mut c_void) |state| { release(state, address) }

    /// The same: everything is done at once.
    fn cudaFreeAsync(address: *mut c_void, _stream: u64) |state| { release(state, address) }

    /// Free and total bytes.
    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) first () = note_asking("cudaMemGetInfo"), |state| {
        let info = state.memory_info();
        // SAFETY: the caller's promise.
        unsafe { put(free, info.free as usize) }?;
        // SAFETY: the caller's promise.
        unsafe { put(total, info.total as usize) }
    }

    /// The device's one pool.
    fn cudaDeviceGetDefaultMemPool(pool: *mut u64, _device: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(pool, POOL) }
    }

    /// The pool holds nothing back, and may reuse what it has, as pools do that were told nothing.
    fn cudaMemPoolGetAttribute(_pool: u64, attribute: c_int, value: *mut c_void) |_| {
        if REUSES.contains(&attribute) {
            // SAFETY: the caller's promise.
            return unsafe { put(value.cast::<c_int>(), 1) };
        }
        // SAFETY: the caller's promise; the others have 64 bits.
        unsafe { put(value.cast::<u64>(), 0) }
    }

    /// Nobody else looks at the memory.
    fn cudaMemPoolSetAccess(_pool: u64, _access: *const c_void, _count: usize) |_| { Ok(()) }

    /// The pool holds nothing back, whatever it is told.
    fn cudaMemPoolSetAttribute(_pool: u64, _attribute: c_int, _value: *mut c_void) |_| { Ok(()) }

    /// The pool holds nothing back.
    fn cudaMemPoolTrimTo(_pool: u64, _keep: usize) |_| { Ok(()) }

    /// Memory of both host and device is refused: kernels that write it do nothing here.
    fn cudaMallocManaged(_address: *mut *mut c_void, _size: usize, _flags: c_uint) |_| {
        Err(Code::NOT_SUPPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_are_at_no_address_and_attributes_have_their_own_width() {
        let mut address = std::ptr::without_provenance_mut(1);
        // SAFETY: the place can be written.
        assert_eq!(unsafe { cudaMalloc(&raw mut address, 0) }, 0);
        assert!(address.is_null());
        for (attribute, answer) in [(1, [1, 7]), (3, [1, 7]), (4, [0, 0])] {
            // As wide as the widest, and aligned for it.
            let mut place = 7_u64 << 32 | 7;
            // SAFETY: there are 64 bits.
            let code = unsafe { cudaMemPoolGetAttribute(POOL, attribute, (&raw mut place).cast()) };
            let halves = [place & 0xffff_ffff, place >> 32];
            assert_eq!((code, halves), (0, answer), "{attribute}");
        }
    }
}
