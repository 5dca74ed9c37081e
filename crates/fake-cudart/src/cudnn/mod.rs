//! cuDNN: the library that is installed answers, in its documented device-less mode, and nothing is executed.
//!
//! The functions here stand in front of the installed library's: those that need a handle, which no library can make
//! without a device, and the graph interface, which is told the device of the profile and asked for the rest. All other
//! functions (descriptors) go to the installed library without passing through here.

// The graph interface.
mod backend;

// Functions that take a handle.
mod handle;

// Normalising, and losses: sizes by rule, for the same reason as those of recurrent layers.
mod losses;

// Recurrent layers: sizes by rule, since the installed library needs a device to tell them.
mod recurrent;

// Workspaces that the installed library needs a device to tell.
pub mod workspaces;

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

pub(crate) use recurrent::Recurrent;

use crate::notes;
use crate::state::State;

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

/// The installed library's release; nothing if the library is not loaded. Not to be asked for with the state: the loader is asked.
fn release() -> Option<usize> {
    static KNOWN: OnceLock<usize> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Some(*known);
    }
    let found = installed(c"cudnnGetVersion")?;
    // SAFETY: the library's function of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(found) };
    Some(*KNOWN.get_or_init(|| function()))
}

/// The release that sizes were measured with.
const MEASURED: usize = 91900;

/// Says of sizes that follow rules that they are a guess, if they are not asked for where those were measured: with this release.
fn note_elsewhere(state: &State, release: Option<usize>, whose: &str) {
    if release != Some(MEASURED) || !state.profile.is_like_measured() {
        notes::note(
            notes::GUESSES_FILE,
            &format!("workspaces of {whose} follow those of cuDNN 9.19 on an H200"),
        );
    }
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
