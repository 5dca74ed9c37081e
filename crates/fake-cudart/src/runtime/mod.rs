//! The runtime's functions, under the runtime's names and with the runtime's types.
//!
//! Where releases of the runtime differ, both names are here: a library asks for the one that it knows.

// Devices and their properties.
mod device;

// What `cudaDeviceProp` looks like.
mod properties;

// Segments, and pools of the driver's.
mod memory;

// Bytes that move, or would.
pub(crate) mod copies;

// Page-locked memory of the host, and whose a pointer is.
mod pinned;

// Streams, and whether they are being captured.
mod stream;

mod event;

mod graph;

// Kernels, which do nothing.
pub(crate) mod kernel;

// Functions of the driver, by name.
mod entry_point;

// Names and words of codes.
mod text;

use crate::entry::runtime_entry as entry;
