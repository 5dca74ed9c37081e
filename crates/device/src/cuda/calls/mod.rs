//! Level 2: the driver's calls, returning `Result`.
//!
//! One function per call, with the driver's call, code and words in the error. Calls about devices
//! and contexts are functions of [`Driver`]; calls that work *in* a context are
//! functions of [`Current`](super::context::Current), which exists only while the device's context
//! is current on this thread. So that a context is current is shown by the type.

// Which devices there are; contexts.
mod device;

// Captured work.
mod graph;

// Compiled kernels, and launching them.
mod kernel;

// Segments, pages, copies.
mod memory;

// Streams and events.
mod stream;

pub use kernel::Extent;

use super::Driver;
use super::sys::CUresult;
use crate::DeviceError;

impl Driver {
    /// A result that means success or failure.
    pub(super) fn check(&self, call: &'static str, code: CUresult) -> Result<(), DeviceError> {
        if code == CUresult::SUCCESS {
            return Ok(());
        }
        Err(DeviceError::Driver { call, code: code.0, message: self.text(code) })
    }

    /// The result of a call that obtains memory: only here does the driver's "out of memory" mean
    /// that freeing some may help.
    fn check_memory(
        &self,
        call: &'static str,
        requested: u64,
        code: CUresult,
    ) -> Result<(), DeviceError> {
        if code == CUresult::OUT_OF_MEMORY {
            return Err(DeviceError::OutOfMemory { requested });
        }
        self.check(call, code)
    }

    /// The result of asking whether work is done.
    fn check_ready(&self, call: &'static str, code: CUresult) -> Result<bool, DeviceError> {
        if code == CUresult::NOT_READY {
            return Ok(false);
        }
        self.check(call, code).map(|()| true)
    }
}
