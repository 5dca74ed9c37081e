//! Why an export was not finished.

use thiserror::Error;

/// An export that was not finished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// It could not be written.
    #[error("cannot write")]
    Io(#[from] std::io::Error),
    /// The library that writes Parquet refused.
    #[error("cannot write as Parquet: {0}")]
    Parquet(String),
    /// The library that makes Arrow arrays refused.
    #[error("cannot be made into Arrow arrays: {0}")]
    Arrow(String),
}

impl ExportError {
    /// Whether whoever reads the output has gone away, as `head` does.
    #[must_use]
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }
}
