//! How exported functions are written: a name, arguments, and a body that sees the state.
//!
//! What asks the loader, or calls another library, comes `first`, without the state: a thread that loads a library has the loader's
//! lock, and waits for the state if what it loads calls us.

/// Exported functions of the runtime: a failure is what `cudaGetLastError` answers next.
macro_rules! runtime_entry {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(first $first:pat_param = $value:expr,)? |$state:pat_param| $body:block
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the runtime's function of this name: a pointer is null, which is refused, or good
        /// for what the function reads or writes there.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the runtime's name")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> std::ffi::c_int {
            $(let $first = $value;)?
            crate::state::runtime_call(|$state| $body)
        }
    )*};
}

/// Exported functions of any other library: a failure is a code, and 0 is success.
macro_rules! library_entry {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(first $first:pat_param = $value:expr,)? |$state:pat_param| $body:block
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the library's function of this name: a pointer is null, which is refused, or good
        /// for what the function reads or writes there.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the library's name")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> std::ffi::c_int {
            $(let $first = $value;)?
            crate::state::driver_call(|$state| $body)
        }
    )*};
}

pub(crate) use {library_entry, runtime_entry};
