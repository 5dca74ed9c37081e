//! The driver's functions that have behaviour: virtual memory.
//!
//! They are handed out by name (`cudaGetDriverEntryPoint`) and not exported: whole scripts will look for
//! them in a library of their own.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use tonnage_device::Device;

use crate::absent;
use crate::codes::text;
use crate::state::{driver_call, put};

/// What `CUmemAccessDesc` and the like are to us: not looked at.
type Opaque = *const c_void;

macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) |$state:pat_param| $body:block
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the driver's function of this name: a pointer is null, which is refused, or good
            /// for what the function reads or writes there.
            #[allow(non_snake_case, reason = "the driver's name")]
            unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
                driver_call(|$state| $body)
            }
        )*

        /// The function of this name; for a name without behaviour one that says so.
        pub(crate) fn function(name: &CStr) -> *const c_void {
            match name.to_bytes() {
                $(bytes if bytes == stringify!($name).as_bytes() => $name as *const c_void,)*
                _ => absent::function(name),
            }
        }
    };
}

functions! {
    /// Nothing special can be done: every attribute is 0.
    fn cuDeviceGetAttribute(value: *mut c_int, _attribute: c_int, _device: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(value, 0) }
    }

    /// There is one device.
    fn cuDeviceGet(device: *mut c_int, _ordinal: c_int) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(device, 0) }
    }

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
        let made = state.device.create_page(size as u64)?;
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

    /// Nobody looks at the memory.
    fn cuMemSetAccess(_address: u64, _size: usize, _access: Opaque, _count: usize) |_| { Ok(()) }

    /// A code in words.
    fn cuGetErrorString(code: c_int, words: *mut *const c_char) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(words, text(code).1.as_ptr()) }
    }

    /// Nothing is ever logged.
    fn cuLogsRegisterCallback(_callback: Opaque, _data: Opaque, handle: *mut u64) |state| {
        let made = state.next_handle();
        // SAFETY: the caller's promise.
        unsafe { put(handle, made) }
    }

    /// Nothing was ever logged.
    fn cuLogsUnregisterCallback(_handle: u64) |_| { Ok(()) }

    /// Everything is done at once.
    fn cuMemsetD32Async(_address: u64, _value: c_uint, _count: usize, _stream: u64) |_| { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_name_and_others_say_that_they_are_absent() {
        assert_eq!(function(c"cuMemCreate"), cuMemCreate as *const c_void);
        assert_eq!(function(c"cuMulticastCreate"), function(c"cuNoSuchThing"));
        assert_ne!(function(c"cuMemMap"), function(c"cuNoSuchThing"));
    }
}
