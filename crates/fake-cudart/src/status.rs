//! The status that a process ends with, written to a file: whoever started it may not look.

use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Where it goes, and the process that said so: one that is forked later has another.
static PLACE: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);

#[cfg(target_os = "linux")]
unsafe extern "C" {
    /// Has C's library call a function when the process exits.
    fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

#[cfg(target_os = "linux")]
extern "C" fn tell(status: c_int, _argument: *mut c_void) {
    let place = PLACE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, path)) = place.as_ref().filter(|(process, _)| *process == std::process::id()) {
        // Nobody could be told that nobody can be told.
        let _ = std::fs::write(path, format!("{status}\n"));
    }
}

/// Once this process exits by itself, its status is written to this file.
///
/// # Safety
///
/// `path` is null or ends in a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn tonnage_fake_status_to(path: *const c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { std::ffi::CStr::from_ptr(path) };
    let path = PathBuf::from(path.to_string_lossy().into_owned());
    *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = Some((std::process::id(), path));
    #[cfg(target_os = "linux")]
    // SAFETY: the function takes what it is called with, and stays.
    unsafe {
        on_exit(tell, std::ptr::null_mut());
    }
}
