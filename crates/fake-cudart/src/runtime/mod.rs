//! The runtime's functions, under the runtime's names and with the runtime's types.
//!
//! Where releases of the runtime differ, both names are here: a library asks for the one that it knows.

// Devices and their properties.
mod device;

// Segments.
mod memory;

// Streams, and whether they are being captured.
mod stream;

mod event;

// Functions of the driver, by name.
mod entry_point;

// Names and words of codes.
mod text;

/// Writes an exported function whose body sees the state as `$state`.
macro_rules! entry {
    (
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) |$state:pat_param| $body:block
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the runtime's function of this name: a pointer is null, which is refused, or good
        /// for what the function reads or writes there.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the runtime's name")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> std::ffi::c_int {
            crate::state::runtime_call(|$state| $body)
        }
    };
}

use entry;
