//! Which line of a program led into a model of this crate.
//!
//! A call names the program's line, since that is what its author can change; but a model is one
//! line of the program and hundreds of calls. So models run [`within`], and a [`Call`](crate::error::Call)
//! made there has both lines.

use std::cell::Cell;
use std::panic::Location;

thread_local! {
    static ENTRY: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// The line that led into the outermost model that runs on this thread.
pub(crate) fn entry() -> Option<&'static Location<'static>> {
    ENTRY.get()
}

/// Runs a part of a model. Calls of `body` are found by their own lines; the caller's is where the model was
/// entered, unless that was before.
#[track_caller]
pub(crate) fn within<T>(body: impl FnOnce() -> T) -> T {
    let _entered = enter(entry().or(Some(Location::caller())));
    body()
}

/// Makes this the line that led here, until dropped.
pub(crate) fn enter(line: Option<&'static Location<'static>>) -> Entered {
    Entered(ENTRY.replace(line))
}

/// See [`enter`].
pub(crate) struct Entered(Option<&'static Location<'static>>);

impl Drop for Entered {
    fn drop(&mut self) {
        ENTRY.set(self.0);
    }
}
