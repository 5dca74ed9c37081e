//! cuDNN: the library that is installed answers, in its documented device-less mode, and nothing is executed.
//!
//! The functions here stand in front of the installed library's: those that need a handle, which no library can make
//! without a device, and the graph interface, which is told the device of the profile and asked for the rest. All other
//! functions (descriptors) go to the installed library without passing through here.

// The graph interface.
mod backend;

// Functions that take a handle.
mod handle;

// Recurrent layers: sizes by rule, since the installed library needs a device to tell them.
mod recurrent;

// Workspaces that the installed library needs a device to tell.
pub mod workspaces;

use std::ffi::{CStr, c_int, c_void};

pub(crate) use recurrent::Recurrent;

/// What a forwarded function answers if the library is not there.
const NOT_INITIALIZED: c_int = 1001;

/// The installed library's function of this name; nothing if the library is not loaded.
fn installed(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends in a zero byte; nothing is loaded that is not there.
    let library =
        unsafe { libc::dlopen(c"libcudnn.so.9".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded, and the name ends in a zero byte.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A function of ours that calls the installed library's of the same name; if there is none, it fails.
macro_rules! forward {
    ($(fn $name:ident / $symbol:literal($($arg:ident: $kind:ty),* $(,)?);)*) => {$(
        /// As the installed library's.
        ///
        /// # Safety
        ///
        /// As for the library's function of this name.
        unsafe fn $name($($arg: $kind),*) -> std::ffi::c_int {
            type Function = unsafe extern "C" fn($($kind),*) -> std::ffi::c_int;
            static FOUND: std::sync::OnceLock<Option<Function>> = std::sync::OnceLock::new();
            let found = FOUND.get_or_init(|| {
                let found = crate::cudnn::installed($symbol)?;
                // SAFETY: the library's function of this name has this type.
                Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(found) })
            });
            match found {
                // SAFETY: the caller's promise.
                Some(function) => unsafe { function($($arg),*) },
                None => crate::cudnn::NOT_INITIALIZED,
            }
        }
    )*};
}

use forward;
