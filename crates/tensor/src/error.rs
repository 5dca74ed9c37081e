//! What can go wrong with tensors: what met what, at which call, and what to do.
//!
//! A message reads like a compiler's:
//!
//! ```text
//! matmul: the inner sizes differ
//!   --> src/main.rs:7:13
//!    | self:  float32[2, 3]
//!    | other: float32[4, 5]
//!    = help: the last size of self (3) must equal the second last of other (4)
//! ```

use std::fmt;
use std::panic::Location;

use thiserror::Error as ThisError;
use tonnage_device::DeviceError;
use tonnage_engine::{AllocError, CacheError};
use tonnage_memory::PinnedError;

use crate::entry::entry;
use crate::tensor::Tensor;

/// A result of a tensor operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A public call: its name and where it stands in the caller's code, and in a model's.
///
/// Made at the top of a public method with [`Call::here`], and passed down, so that errors, live
/// tensors, graph nodes and queued work all name the same line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// The program's line.
    pub(crate) site: &'static Location<'static>,
    /// The line of the model that runs, if it is one of this crate; otherwise the same.
    pub(crate) line: &'static Location<'static>,
}

impl Call {
    /// The call of the public method that stands one `#[track_caller]` above.
    #[track_caller]
    pub(crate) fn here(name: &'static str) -> Self {
        let line = Location::caller();
        Self { name, site: entry().unwrap_or(line), line }
    }

    /// An error of this call.
    pub(crate) fn error(self, kind: ErrorKind, what: impl Into<String>) -> Error {
        let report =
            Report { call: self, kind, what: what.into(), lines: Vec::new(), help: String::new() };
        Error(Box::new(report))
    }

    /// Shapes that do not fit.
    pub(crate) fn shape_error(self, what: impl Into<String>) -> Error {
        self.error(ErrorKind::Shape, what)
    }

    /// An element type that the operation does not have.
    pub(crate) fn dtype_error(self, what: impl Into<String>) -> Error {
        self.error(ErrorKind::DType, what)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.site)
    }
}

/// What the caller can do about an [`Error`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes do not fit: change the call.
    Shape,
    /// Element types do not fit: convert with `to`.
    DType,
    /// Tensors lie on different devices: copy one of them.
    Device,
    /// A number is outside of what the operation takes: change it.
    Value,
    /// The graph does not allow it: detach, clone, or use `no_grad`.
    Autograd,
    /// No memory now: freeing some may help.
    Memory(AllocError),
    /// No pinned memory now: dropping some may help.
    Pinned(PinnedError),
    /// Work that was queued before has failed; the call names who queued it.
    Queued,
    /// A file cannot be read or written, or is not what it should be.
    File,
    /// The device has no kernel for the operation: another device may.
    NoKernel,
    /// The device failed for a reason of its own.
    Driver(DeviceError),
    /// Not an error: a hook ends a computation whose rest is not needed.
    Interrupted,
}

/// An operation that could not be done. It changed nothing, unless its kind says otherwise.
#[derive(Clone, ThisError)]
#[error("{0}")]
pub struct Error(Box<Report>);

#[derive(Clone)]
struct Report {
    call: Call,
    kind: ErrorKind,
    what: String,
    lines: Vec<(String, String)>,
    help: String,
}

impl Error {
    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.call.name
    }

    /// Where it was called.
    #[must_use]
    pub fn site(&self) -> &'static Location<'static> {
        self.0.call.site
    }

    /// Ends a computation from inside a hook on saved tensors: see
    /// [`saved_tensors_hooks`](crate::autograd::saved_tensors_hooks).
    #[track_caller]
    #[must_use]
    pub fn interrupt() -> Self {
        Call::here("interrupt").error(ErrorKind::Interrupted, "the rest is not needed")
    }

    /// Adds a line with a name: what was met.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, what: impl fmt::Display) -> Self {
        self.0.lines.push((name.to_owned(), what.to_string()));
        self
    }

    /// Adds a line for a tensor: its type and shape.
    #[must_use]
    pub(crate) fn with_tensor(self, name: &str, tensor: &Tensor) -> Self {
        self.with(name, Summary(tensor))
    }

    /// Says what to do.
    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = help.into();
        self
    }
}

/// A tensor in one line: `float32[2, 3]`.
struct Summary<'a>(&'a Tensor);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0.dtype(), self.0.shape())?;
        if !self.0.is_contiguous() {
            write!(f, " with strides {:?}", self.0.strides())?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.call.name, self.what)?;
        write!(f, "  --> {}", self.call.site)?;
        let width = self.lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
        for (name, what) in &self.lines {
            write!(f, "\n   | {:width$} {what}", format!("{name}:"))?;
        }
        if !self.help.is_empty() {
            write!(f, "\n   = help: {}", self.help)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Call {
    pub(crate) fn memory(self, error: AllocError) -> Error {
        let what = error.to_string();
        self.error(ErrorKind::Memory(error), what)
    }

    pub(crate) fn pinned(self, error: PinnedError) -> Error {
        let what = error.to_string();
        self.error(ErrorKind::Pinned(error), what)
    }

    pub(crate) fn driver(self, error: DeviceError) -> Error {
        let what = error.to_string();
        self.error(ErrorKind::Driver(error), what)
    }
}

impl From<CacheError> for Error {
    #[track_caller]
    fn from(error: CacheError) -> Self {
        let call = Call::here("empty_cache");
        match error {
            CacheError::Device(error) => call.driver(error),
            other => call.error(ErrorKind::Value, other.to_string()),
        }
    }
}
