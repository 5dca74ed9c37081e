//! What can go wrong with a recipe, sorted by what to do about it.

use thiserror::Error as ThisError;
use tonnage_engine::{AllocError, ConfigError, OutOfMemory};
use tonnage_memory::{OpenError, SaveError};
use tonnage_tensor::ErrorKind;

use crate::meter::Phase;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A recipe that could not be run.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// An option is outside of what the recipe takes: change it.
    #[error("{0}")]
    Options(String),
    /// The allocator's settings are wrong.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// The device cannot be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The recipe does not fit: make it smaller, or apply a technique.
    // Without the line that asked, which is one of this library's and not the user's.
    #[error("out of memory in step {step}, {phase}, by `{}`\n{}", source.operation(), what(source))]
    OutOfMemory {
        /// The step, from 1.
        step: usize,
        /// What it was doing.
        phase: Phase,
        /// The request that failed.
        source: tonnage_tensor::Error,
    },
    /// Something else failed.
    #[error(transparent)]
    Tensor(#[from] tonnage_tensor::Error),
    /// The snapshot could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
}

/// What the allocator says of a request.
fn what(source: &tonnage_tensor::Error) -> String {
    match source.kind() {
        ErrorKind::Memory(error) => error.to_string(),
        _ => source.to_string(),
    }
}

impl Error {
    /// An error of a phase: out of memory, or another.
    pub(crate) fn during(source: tonnage_tensor::Error, step: usize, phase: Phase) -> Self {
        match source.kind() {
            ErrorKind::Memory(
                AllocError::OutOfMemory(_) | AllocError::Rejected(_) | AllocError::TooLarge(_),
            ) => Self::OutOfMemory { step, phase, source },
            _ => Self::Tensor(source),
        }
    }

    /// What the allocator says of the request that did not fit, if that is what went wrong.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            Self::OutOfMemory { source, .. } => match source.kind() {
                ErrorKind::Memory(AllocError::OutOfMemory(it)) => Some(it),
                ErrorKind::Memory(AllocError::Rejected(it)) => Some(&it.moment),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tonnage_engine::{Config, Release};
    use tonnage_memory::DeviceOptions;
    use tonnage_tensor::{DType, Device, Tensor};

    use super::*;

    #[test]
    fn a_request_that_settings_reject_does_not_fit_either() {
        for conf in ["", "throw_on_cudamalloc_oom:True"] {
            let config = Config::parse(conf, Release::NEWEST).unwrap();
            let options = DeviceOptions { config, ..DeviceOptions::default() };
            let device = Device::dry_with(64_u64 << 20, options).unwrap();
            let source = Tensor::empty([100_usize << 20], (&device, DType::F32)).unwrap_err();
            let error = Error::during(source, 1, Phase::Forward);
            assert!(matches!(error, Error::OutOfMemory { .. }), "{conf}: {error}");
            let asked = error.out_of_memory().map(|it| it.requested);
            assert_eq!(asked, Some(400 << 20), "{conf}: {error}");
        }
    }
}
