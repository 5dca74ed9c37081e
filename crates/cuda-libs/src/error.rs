//! What can go wrong, sorted by what the caller can do.

use thiserror::Error;
use tonnage_device::DeviceError;

/// The answer of a call of a library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A library is not there, or cannot be used: it can be installed.
    #[error("{0}")]
    Missing(String),
    /// A kernel does not compile. It has a bug.
    #[error("the kernel {name} does not compile for {architecture}:\n{log}")]
    Compile {
        /// The source's name.
        name: String,
        /// What it was compiled for: `sm_90`.
        architecture: String,
        /// What the compiler says.
        log: String,
    },
    /// A library refused a call.
    #[error("{library}: {call} failed with {status} for {what}")]
    Refused {
        /// Which library.
        library: &'static str,
        /// Its function.
        call: &'static str,
        /// Its name for the reason, or the number.
        status: String,
        /// What it was asked for: a shape, a source.
        what: String,
    },
    /// What was asked for is not possible, or makes no sense. The caller has a bug.
    #[error("{0}")]
    Misuse(String),
    /// The driver failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
