//! cuDNN's functions, as far as its backend is asked for engines: descriptors come and go, and the heuristics know no
//! engine for any operation. So whoever convolves must have another way, which is what tests see.

use std::ffi::{c_char, c_int, c_void};

const SUCCESS: c_int = 0;
const BAD_PARAM: c_int = 2000;

/// What a handle and a descriptor are: places that are theirs alone.
struct Object {
    /// So that each has an address of its own.
    _kind: c_int,
}

/// Writes an exported function that takes and gives what the library's does.
macro_rules! entry {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $answer:ty $body:block) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the library's function of this name: pointers are good for what it reads or writes there, and handles and
        /// descriptors are alive.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the library's name")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> $answer $body
    };
}

/// Gives a new object away.
///
/// # Safety
///
/// `place` can be written.
unsafe fn give(place: *mut *mut c_void, kind: c_int) -> c_int {
    if place.is_null() {
        return BAD_PARAM;
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(Box::into_raw(Box::new(Object { _kind: kind })).cast()) };
    SUCCESS
}

/// Takes an object back.
///
/// # Safety
///
/// It is one that [`give`] gave, not taken back yet.
unsafe fn take(object: *mut c_void) -> c_int {
    if object.is_null() {
        return BAD_PARAM;
    }
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(object.cast::<Object>()) });
    SUCCESS
}

entry! {
    /// The version: 9.0.0.
    fn cudnnGetVersion() -> usize {
        90_000
    }
}

entry! {
    /// The name of a status.
    fn cudnnGetErrorString(status: c_int) -> *const c_char {
        match status {
            SUCCESS => c"CUDNN_STATUS_SUCCESS".as_ptr(),
            BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM".as_ptr(),
            _ => std::ptr::null(),
        }
    }
}

entry! {
    /// No more words.
    fn cudnnGetLastErrorString(message: *mut c_char, size: usize) -> () {
        if !message.is_null() && size > 0 {
            // SAFETY: the caller's promise: there is room for so many.
            unsafe { message.write(0) };
        }
    }
}

entry! {
    /// A handle.
    fn cudnnCreate(handle: *mut *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { give(handle, -1) }
    }
}

entry! {
    /// Ends a handle.
    fn cudnnDestroy(handle: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { take(handle) }
    }
}

entry! {
    /// Nothing is queued on any.
    fn cudnnSetStream(handle: *mut c_void, _stream: *mut c_void) -> c_int {
        if handle.is_null() { BAD_PARAM } else { SUCCESS }
    }
}

entry! {
    /// A descriptor.
    fn cudnnBackendCreateDescriptor(kind: c_int, descriptor: *mut *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { give(descriptor, kind) }
    }
}

entry! {
    /// Ends a descriptor.
    fn cudnnBackendDestroyDescriptor(descriptor: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { take(descriptor) }
    }
}

entry! {
    /// Whatever was described is fine.
    fn cudnnBackendFinalize(descriptor: *mut c_void) -> c_int {
        if descriptor.is_null() { BAD_PARAM } else { SUCCESS }
    }
}

entry! {
    /// Whatever it is.
    fn cudnnBackendSetAttribute(
        descriptor: *mut c_void, _name: c_int, _kind: c_int, count: i64, values: *const c_void,
    ) -> c_int {
        if descriptor.is_null() || count < 1 || values.is_null() { BAD_PARAM } else { SUCCESS }
    }
}

entry! {
    /// There are none of any: no engines.
    fn cudnnBackendGetAttribute(
        descriptor: *mut c_void, _name: c_int, _kind: c_int, _wanted: i64, count: *mut i64, _values: *mut c_void,
    ) -> c_int {
        if descriptor.is_null() || count.is_null() {
            return BAD_PARAM;
        }
        // SAFETY: the caller's promise.
        unsafe { count.write(0) };
        SUCCESS
    }
}

entry! {
    /// No plan can be had, so none can be executed.
    fn cudnnBackendExecute(_handle: *mut c_void, _plan: *mut c_void, _pack: *mut c_void) -> c_int {
        BAD_PARAM
    }
}
