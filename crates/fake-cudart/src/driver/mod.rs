//! The driver's functions: exported, and handed out by name.

// Devices and contexts.
mod device;

// Virtual memory, and other memory.
mod memory;

// Streams and events.
mod stream;

// Modules and kernels.
mod module;

// Runtimes beside PyTorch's.
pub(crate) mod outsiders;

use std::ffi::{CStr, CString, c_int, c_void};

use crate::unknown;
use crate::{launches, notes};

/// Writes exported functions and a table of them. What comes `first` does so without the state, as `entry.rs` says.
macro_rules! entry {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(first $first:pat_param = $value:expr,)? |$state:pat_param| $body:block
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the driver's function of this name: a pointer is null, which is refused, or good
            /// for what the function reads or writes there.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the driver's name")]
            unsafe extern "C" fn $name($($arg: $kind),*) -> std::ffi::c_int {
                $(let $first = $value;)?
                crate::state::driver_call(|$state| $body)
            }
        )*

        /// The function of this name, if it is here.
        pub(super) fn function(name: &[u8]) -> Option<*const c_void> {
            $(
                if name == stringify!($name).as_bytes() {
                    return Some($name as *const c_void);
                }
            )*
            None
        }
    };
}

use entry;

/// Suffixes of later versions of a function; the latest is meant.
const VERSIONS: [&str; 4] = ["_v4", "_v3", "_v2", ""];

/// The function of this name; for a name without behaviour one that notes it.
pub(crate) fn function(name: &CStr) -> *const c_void {
    let plain = name.to_string_lossy();
    for version in VERSIONS {
        let name = format!("{plain}{version}");
        let parts = [
            device::function,
            memory::function,
            stream::function,
            module::function,
            launches::function,
        ];
        for part in parts {
            if let Some(found) = part(name.as_bytes()) {
                return found;
            }
        }
    }
    library_function(&plain).unwrap_or_else(|| {
        notes::note(notes::UNKNOWN_FILE, &plain);
        nameless as *const c_void
    })
}

/// What the library of the driver's name exports: every public name, each noting itself.
fn library_function(name: &str) -> Option<*const c_void> {
    // SAFETY: the name ends in a zero byte; nothing is loaded that is not there.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    VERSIONS.iter().find_map(|version| {
        let name = CString::new(format!("{name}{version}")).ok()?;
        // SAFETY: the library is loaded, and the name ends in a zero byte.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found.cast_const())
    })
}

/// Stands for a function that only its caller knows the name of.
extern "C" fn nameless() -> c_int {
    unknown::called("a function of the driver that it does not Export")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_name_and_others_say_that_they_are_absent() {
        assert!(memory::function(b"cuMemCreate").is_some());
        assert_eq!(Some(function(c"cuMemCreate")), memory::function(b"cuMemCreate"));
        assert_eq!(Some(function(c"cuMemGetInfo")), memory::function(b"cuMemGetInfo_v2"));
        assert_eq!(function(c"cuMulticastCreate"), function(c"cuNoSuchThing"));
        assert_ne!(function(c"cuMemMap"), function(c"cuNoSuchThing"));
    }
}
