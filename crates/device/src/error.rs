//! What can go wrong at a device, sorted by what the caller can do.

use thiserror::Error;

/// A device call that failed. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Not enough memory now: freeing some may help.
    #[error("the device has no {requested} bytes to give")]
    OutOfMemory {
        /// Bytes that were asked for.
        requested: u64,
    },
    /// The caller named something that the device did not give it, or asked for what no device
    /// gives. The caller has a bug.
    #[error("{call}: {reason}")]
    Misuse {
        /// The call that was refused.
        call: &'static str,
        /// What was wrong about it.
        reason: String,
    },
    /// There is no such device here, or nothing to reach it with. Another device may do.
    #[error("{0}")]
    Unavailable(String),
    /// The driver failed for a reason of its own: its context may be lost.
    #[error("{call} failed with code {code}: {message}")]
    Driver {
        /// The driver's call.
        call: &'static str,
        /// The driver's code.
        code: i32,
        /// The driver's words for it.
        message: String,
    },
}

impl DeviceError {
    /// A call that the device refuses because of what it was given.
    pub(crate) fn misuse(call: &'static str, reason: impl Into<String>) -> Self {
        Self::Misuse { call, reason: reason.into() }
    }
}
