//! NVIDIA devices through the CUDA driver.
//!
//! The driver library is opened at run time through a small table of our own: building and testing
//! need no CUDA, and a machine without a driver gets an error that says so. Three levels, each
//! using only the one before:
//!
//! 1. `sys` and `driver`: C types, and the table of the driver's functions;
//! 2. `calls` and `context`: the same calls returning [`Result`](crate::DeviceError), those that
//!    need a context only where one is current;
//! 3. [`Cuda`]: the [`Device`](crate::Device), with its books.
//!
//! Errors keep the driver's call, code and words; nothing here panics.

// 1. C types and the table.
mod sys;

mod driver;

// 2. Calls that return `Result`, and the context they are made in.
mod calls;

mod context;

// 3. The device: its books, and what it can do.
mod books;

mod closing;

mod device;

mod events;

mod event_wait;

mod held_memory;

mod pinned;

mod properties;

mod streams;

mod transfers;

pub use device::{Cuda, Live};
pub use driver::Driver;
pub use event_wait::EventWait;
pub use held_memory::HeldMemory;
pub use pinned::Pinned;
pub use properties::Properties;

use crate::DeviceError;

/// The CUDA devices that this process may use.
///
/// # Errors
///
/// If there is no driver, or if it does not start.
pub fn devices() -> Result<Vec<Properties>, DeviceError> {
    Driver::load()?.devices()
}
