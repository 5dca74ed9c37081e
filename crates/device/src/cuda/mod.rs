//! NVIDIA devices through the CUDA driver.
//!
//! The driver library is opened at run time through a small table of our own: building and testing
//! need no CUDA, and a machine without a driver gets an error that says so. Three levels, each
//! using only the one before:
//!
//! 1. `sys` and `driver`: C types, and the table of the driver's functions;
//! 2. `calls` and `context`: the same calls returning [`Result`](crate::DeviceError), those that
//!    need a context only where one is current;
//! 3. [`Cuda`]: the [`Device`](crate::Device), with its books; [`Launcher`]: its streams, for those who queue work
//!    without the device.
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

mod queues;

mod streams;

mod transfers;

// Work that is queued without the device.
mod arguments;

mod graph;

mod launcher;

mod module;

mod timed_event;

pub use arguments::{Argument, Arguments};
pub use calls::Extent;
pub use device::{Cuda, Live};
pub use driver::Driver;
pub use event_wait::EventWait;
pub use graph::{Capture, Graph};
pub use held_memory::HeldMemory;
pub use launcher::{Entered, Launcher};
pub use module::{Function, Module, Needs};
pub use pinned::Pinned;
pub use properties::{Hardware, Properties};
pub use timed_event::TimedEvent;

use crate::DeviceError;

/// The CUDA devices that this process may use.
///
/// # Errors
///
/// If there is no driver, or if it does not start.
pub fn devices() -> Result<Vec<Properties>, DeviceError> {
    Driver::load()?.devices()
}
