//! A CUDA driver made of host memory, to test CUDA code without a GPU.
//!
//! Built as a `cdylib` it exports the driver's functions under the driver's names, so that the code
//! under test opens it as it opens NVIDIA's `libcuda.so.1`, through the same table. What it keeps
//! to, because it was measured on a real device or stands in the manual:
//!
//! - memory has contents: segments are anonymous mappings, pages are memory files, so that a page
//!   mapped at two addresses shows the same bytes at both;
//! - pages and ranges are whole granules of 2 MiB; a page is mapped whole, at offset 0 (otherwise
//!   code 801); unmapping or giving access to part of a mapping is refused (code 1);
//! - a mapping cannot be touched before access is given;
//! - each device has a capacity, beyond which code 2 is returned;
//! - contexts are current per thread, with push and pop; calls about memory, streams and events
//!   need one (code 201);
//! - segments and pinned memory are given back after all work of the device;
//! - events complete in stream order, and late if told ([`control::HOLD`]);
//! - modules are PTX or cubins, read for the names of their kernels and the sizes of their parameters; a launch is
//!   refused beyond a block's threads or the shared memory that the function may ask for;
//! - what is queued on a stream that is captured becomes work of a graph.
//!
//! What it adds, through the entry point [`control`](mod@control): a failure at any call, the
//! number of calls, what was not given back, the launches with their arguments, and bodies that a test gives kernels
//! ([`Fake::on_launch`]). What it leaves out: kernels, time, and the order
//! between the default stream and streams that wait for it. Copies, fills and bodies happen when they are
//! queued; only their completion can be late.
//!
//! The same file answers for NVML, for cuBLASLt, whose products are computed on the host, and for a cuDNN that has no
//! engine for any convolution ([`Fake::install`]).
//!
//! The rlib holds [`Fake`], which loads a private copy of the library, so that tests that run at
//! the same time do not see each other.

// Result codes, and who is who.
mod codes;

// The operating system's memory.
mod host_memory;

// Segments and pages on it.
mod memory;

// Streams and events.
mod queues;

// Compiled kernels, and what was launched.
mod image;

mod launches;

// What is queued, and what is written down instead.
mod captures;

mod work;

// Everything together, and the way into every call.
mod state;

// The exported functions: the driver's and NVML's, and those of a library over the driver.
mod api;

mod cublaslt;

mod cudnn;

pub mod control;

// For tests in Rust.
mod loader;

pub use loader::{Fake, Live, SeenLaunch};
