//! CUPTI, by which profilers learn what a GPU does. There is none, so that it never begins: they go on with what the host does.
//!
//! The real one is of no use here: it looks for tables of the driver's that are not imitated, and that of CUDA 13.2 does so for ever,
//! since it asks for them again to say that they are not there.

use std::ffi::{CStr, c_char, c_int};

/// What every function of it answers: it was not initialised.
pub(crate) const NOT_INITIALIZED: c_int = 15;

/// The same as text.
const WORDS: &CStr = c"CUPTI_ERROR_NOT_INITIALIZED";

/// Whether a function is one of it, by its name.
pub(crate) fn is_it(name: &str) -> bool {
    name.starts_with("cupti")
}

/// A code as text; there is but one.
///
/// # Safety
///
/// `text` is null, which is refused, or a pointer can be written there.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn cuptiGetResultString(_code: c_int, text: *mut *const c_char) -> c_int {
    if text.is_null() {
        return NOT_INITIALIZED;
    }
    // SAFETY: the caller's promise.
    unsafe { text.write(WORDS.as_ptr()) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_words() {
        let mut text = std::ptr::null();
        // SAFETY: a place of ours.
        let code = unsafe { cuptiGetResultString(NOT_INITIALIZED, &raw mut text) };
        // SAFETY: null is refused.
        let refused = unsafe { cuptiGetResultString(NOT_INITIALIZED, std::ptr::null_mut()) };
        assert_eq!([code, refused], [0, NOT_INITIALIZED]);
        // SAFETY: a text of ours.
        assert_eq!(unsafe { CStr::from_ptr(text) }, WORDS);
    }
}
