//! The driver's functions, under the driver's names and with the driver's types.

// Devices and contexts.
mod device;

// Captured work.
mod graph;

// Compiled kernels, and launches.
mod kernel;

// Segments and copies.
mod memory;

// Which processes there are.
mod nvml;

// Virtual memory.
mod pages;

// Streams and events.
mod stream;

// Names and words of codes.
mod text;

use crate::codes::Code;

/// Writes an exported function whose body sees the state as `$state`.
macro_rules! entry {
    (
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) |$state:pat_param| $body:block
    ) => {
        entry! { $(#[$doc])* fn $name($($arg: $kind),*) by call |$state| $body }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) by $way:ident |$state:pat_param| $body:block
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the driver's function of this name: a pointer is null, which is refused, or good
        /// for what the function reads or writes there.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> std::ffi::c_int {
            crate::state::$way(|$state| $body)
        }
    };
}

use entry;

/// Writes a function's answer.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads what a function was given by pointer.
///
/// # Safety
///
/// `place` is null, which is refused, or can be read.
unsafe fn get<T: Copy>(place: *const T) -> Result<T, Code> {
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { place.read() })
}
