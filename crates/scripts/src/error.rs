//! Why there is no prediction.

use std::io;
use std::path::{Path, PathBuf};

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command cannot be run.
    #[error("cannot run {program}: {error}")]
    Program {
        /// As it was given.
        program: String,
        /// What the system says.
        error: io::Error,
    },
    /// The Python of the command has no PyTorch for CUDA.
    #[error("{python} has no PyTorch built for CUDA: {reason}")]
    NoTorch {
        /// The interpreter.
        python: String,
        /// What is missing.
        reason: String,
    },
    /// The libraries with behaviour are not where the command lies.
    #[error(
        "the fake CUDA libraries ({file}) are not beside {program}: install tonnage whole, or name their folder in \
         TONNAGE_LIBRARIES"
    )]
    NoLibraries {
        /// The file that is looked for.
        file: &'static str,
        /// This program.
        program: PathBuf,
    },
    /// Nobody knows this GPU.
    #[error("no GPU is called `{name}` here: known are {known}; or name a file with a GPU's data")]
    NoGpu {
        /// As it was given.
        name: String,
        /// Names that there are.
        known: String,
    },
    /// A GPU's data cannot be read.
    #[error("{path}: no data of a GPU: {reason}")]
    BadGpu {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A card's data cannot be had from it.
    #[error("no data of a card could be had: {reason}")]
    NoCapture {
        /// What went wrong.
        reason: String,
    },
    /// More is to be kept free than there is.
    #[error("a limit of {limit} bytes leaves nothing: the driver's own share is {context} bytes")]
    NoRoom {
        /// As it was given.
        limit: u64,
        /// What the driver takes.
        context: u64,
    },
    /// A file that is ours, or that the script's process wrote.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The snapshot of the script's process cannot be read.
    #[error("PyTorch's history of the script: {0}")]
    Snapshot(String),
    /// Nobody waits for the answer any more.
    #[error("the script was stopped before its end")]
    Stopped,
    /// This machine is of another kind.
    #[error("scripts are predicted on Linux on x86-64")]
    Platform,
}

impl Error {
    /// Of a file.
    pub(crate) fn of(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { path, error }
    }
}
