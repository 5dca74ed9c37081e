//! Pinned memory that could not be had, sorted by what the caller can do.

use thiserror::Error;
use tonnage_device::DeviceError;

/// Pinned memory that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// No bytes were asked for.
    #[error("pinned memory has at least one byte")]
    Empty,
    /// No machine has so many bytes.
    #[error("{requested} bytes of pinned memory are more than there are addresses")]
    TooLarge {
        /// Bytes that were asked for.
        requested: u64,
    },
    /// No room at this moment: dropping blocks may help. What was cached has been given back.
    #[error(
        "no {rounded} bytes of pinned memory for {requested} (in use: {in_use}, pending: {pending})"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        requested: u64,
        /// The same, rounded up to its class.
        rounded: u64,
        /// Bytes of the blocks handed out.
        in_use: u64,
        /// Bytes of dropped blocks that a stream may still use.
        pending: u64,
    },
    /// Its bytes cannot be looked at: a `dry` device counts pinned memory, and this machine has not so many.
    #[error(
        "a dry device counts its pinned memory: this machine has no {bytes} bytes to look at instead"
    )]
    Counted {
        /// Bytes that the block occupies.
        bytes: u64,
    },
    /// The driver failed for a reason of its own.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
