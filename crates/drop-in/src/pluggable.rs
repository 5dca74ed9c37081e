//! For PyTorch's pluggable interface, where no shim can be built: functions of the types that it calls.
//!
//! *Nothing here returns null for a request that failed*: PyTorch would make a tensor at address 0 of it. What raises is a
//! function of PyTorch's own library, which whoever installs this names; its exception goes through this code.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::failure::last;
use crate::interface::{INTERFACE, NO_STACK};
use crate::types::{Options, PoolName, Status};

/// Raises an error in C++ and does not return: function, file, line, words.
type Thrower = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char) -> ();

static THROWER: OnceLock<Thrower> = OnceLock::new();

/// Sets everything up. Null, or what is wrong, as long as the thread makes no other call.
///
/// # Safety
///
/// The options are null or valid, and the thrower is a function as [`Thrower`] says.
#[unsafe(no_mangle)]
unsafe extern "C" fn tonnage_pluggable_open(
    options: Option<&Options>,
    thrower: Option<Thrower>,
) -> *const c_char {
    let Some(thrower) = thrower else { return c"no function that raises errors".as_ptr() };
    // SAFETY: the caller's promise.
    if unsafe { (INTERFACE.open)(options) } != Status::Ok {
        return last().text;
    }
    // It is set up once, so that there is none yet.
    let _ = THROWER.set(thrower);
    std::ptr::null()
}

/// Raises what the last call said.
fn throw() {
    let Some(thrower) = THROWER.get() else { std::process::abort() };
    // Copied: the exception keeps its own words, but what raises it may ask for memory.
    // SAFETY: this thread's text, which nothing has changed since.
    let words = unsafe { CStr::from_ptr(last().text) }.to_owned();
    let (function, file) = (c"tonnage_pluggable_allocate", c"tonnage");
    // SAFETY: texts that end with a zero, during the call. The exception unwinds through functions that are declared to let
    // it, and drops the words.
    unsafe { thrower(function.as_ptr(), file.as_ptr(), 0, words.as_ptr()) };
    // It does not return; a null that went on instead would be followed.
    std::process::abort();
}

/// Serves a request, or raises.
#[unsafe(no_mangle)]
extern "C-unwind" fn tonnage_pluggable_allocate(
    bytes: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let Ok(bytes @ 1..) = u64::try_from(bytes) else { return std::ptr::null_mut() };
    let (device, stream) = (device.unsigned_abs(), stream.addr() as u64);
    let mut address = 0;
    // SAFETY: a place for the answer.
    let mut status =
        unsafe { (INTERFACE.allocate_cached)(device, bytes, stream, NO_STACK, Some(&mut address)) };
    if status == Status::NotCached {
        // SAFETY: as above.
        status = unsafe {
            (INTERFACE.allocate_uncached)(device, bytes, stream, NO_STACK, 0, Some(&mut address))
        };
    }
    if status != Status::Ok {
        throw();
    }
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Takes a block back, or raises. A broken allocator takes nothing back, and says so with the next request: tensors go in
/// destructors, which must not raise.
#[unsafe(no_mangle)]
extern "C-unwind" fn tonnage_pluggable_free(
    address: *mut c_void,
    _bytes: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    if address.is_null() {
        return;
    }
    let (device, address) = (device.unsigned_abs(), address.addr() as u64);
    // SAFETY: nobody wants the answers.
    let status = unsafe { (INTERFACE.free)(device, address, NO_STACK, None, None) };
    if !matches!(status, Status::Ok | Status::Broken) {
        throw();
    }
}

/// Notes that a stream uses a block, or raises. Tensors without memory, and those of other owners, PyTorch tells of too: they
/// are not the allocator's to keep.
#[unsafe(no_mangle)]
extern "C-unwind" fn tonnage_pluggable_record_stream(address: *mut c_void, stream: *mut c_void) {
    let (address, stream) = (address.addr() as u64, stream.addr() as u64);
    // SAFETY: nobody wants the answers.
    let is_ours = unsafe { (INTERFACE.segment_of)(0, address, None, None, None) } == Status::Ok;
    // SAFETY: plain numbers.
    if is_ours && unsafe { (INTERFACE.record_stream)(0, address, stream) } != Status::Ok {
        throw();
    }
}

/// Allows a share of a device, or raises.
#[unsafe(no_mangle)]
extern "C-unwind" fn tonnage_pluggable_set_fraction(fraction: f64, device: c_int) {
    // SAFETY: plain numbers.
    if unsafe { (INTERFACE.set_fraction)(device.unsigned_abs(), fraction) } != Status::Ok {
        throw();
    }
}

/// Gives cached memory back, or raises.
#[unsafe(no_mangle)]
extern "C-unwind" fn tonnage_pluggable_empty_cache() {
    // SAFETY: a plain name.
    let status = unsafe { (INTERFACE.empty_cache)(PoolName { first: 0, second: 0 }, NO_STACK) };
    if status != Status::Ok {
        throw();
    }
}
