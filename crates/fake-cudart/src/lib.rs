//! A CUDA runtime without a GPU, under PyTorch's own libraries.
//!
//! `fake-cuda` is a driver with real memory, for our CUDA code. This is the other end: released libraries
//! of PyTorch, unchanged, call the runtime's functions, and their caching allocator then does what it does
//! on a GPU, since it never looks at memory. Device memory is [`Dry`](tonnage_device::Dry): addresses and
//! counts, by the same rules as the device of our own engine, so that the two can be compared to the byte.
//!
//! # Layout
//!
//! | what | where |
//! | --- | --- |
//! | the state of the device, behind one lock, and the way into every call | `state`, `entry` |
//! | its parts: events, captures, virtual memory, known bytes, what the host reads | `events`, `captures`, `pages`, `shadow`, `reads` |
//! | the device that is imitated; how many there are, and what each has given out | [`profile`], `devices`, `cards` |
//! | `cudaMalloc`, `cudaEventRecord` …: the runtime | `runtime/`, a file for each part of it |
//! | `cuMemCreate`, `cuModuleLoad` …: the driver | `driver/` |
//! | `cublasCreate`, `cufftCreate` …: libraries that compute | `math/` |
//! | `ncclAllGather` …: other ranks | `nccl` |
//! | `cudnnBackendFinalize` …: forwarded to the cuDNN that is installed | `cudnn/` |
//! | `nvmlInit` …: management | `nvml` |
//! | names without behaviour | `unknown` |
//! | what whoever started the process is told | [`notes`] |
//! | kernels of others than PyTorch, graphs | `launches` |
//! | the status that a process ends with | `status` |
//! | what a test says to the fake | [`control`] |
//! | the libraries that the archive is linked to for the oracle, and their symbol versions | [`libraries`] |
//!
//! As a shared library it holds every function that has behaviour, of all libraries, under plain names. `tonnage-scripts`
//! writes a small library for each one that a program asks for, with its name, its symbol versions and all other names
//! it exports; those call `tonnage_fake_unknown`.

// The device that is imitated.
pub mod profile;

mod devices;

mod cards;

mod addresses;

// Its state, and the parts of that.
mod state;

mod events;

mod captures;

mod pages;

mod shadow;

pub mod reads;

// How functions are written.
mod entry;

// The runtime's functions.
mod runtime;

// The driver's functions.
mod driver;

// cuBLAS and others.
mod math;

mod nccl;

mod launches;

mod status;

mod cudnn;

pub use cudnn::workspaces;

mod nvml;

mod cupti;

// Everything else.
mod unknown;

pub mod notes;

pub mod control;

pub mod libraries;
