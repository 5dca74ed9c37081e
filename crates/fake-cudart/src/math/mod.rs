//! Libraries that compute: handles and what is asked of them. Functions that only compute have no behaviour.

mod cublas;

mod cublas_lt;

mod cufft;

mod cusolver;

mod cusparse;

use crate::entry::library_entry as entry;
use crate::state::{State, put};

/// Writes a new handle.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written.
unsafe fn new_handle(state: &mut State, place: *mut u64) -> Result<(), tonnage_cuda_codes::Code> {
    let handle = state.next_handle();
    // SAFETY: the caller's promise.
    unsafe { put(place, handle) }
}

/// Functions whose first argument is where a new handle goes; what follows is not looked at.
macro_rules! handles {
    ($($name:ident)*) => {
        crate::math::entry! {$(
            /// A handle.
            fn $name(place: *mut u64) |state| {
                // SAFETY: the caller's promise.
                unsafe { crate::math::new_handle(state, place) }
            }
        )*}
    };
}

use handles;
