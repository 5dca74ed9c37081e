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
//! | the state of the device, behind one lock | `state` |
//! | `cudaMalloc`, `cudaEventRecord` …: the runtime | `runtime/`, a file for each part of it |
//! | `cuMemCreate`, `cuMemMap` …: what the runtime hands out by name | `driver` |
//! | `nvmlInit` …: what is asked when memory runs out | `nvml` |
//! | names without behaviour, which say so when called | `absent` |
//! | what a test says to the fake | [`control`] |
//! | the libraries that the archive is linked to, and their symbol versions | [`libraries`] |
//!
//! Whole scripts need more libraries (cuBLAS, cuDNN, NCCL …) and more behaviour: each gets its module
//! here and its row in [`libraries::LIBRARIES`].

// Result codes, and their words.
mod codes;

// The device.
mod state;

// The runtime's functions.
mod runtime;

// The driver's functions.
mod driver;

mod nvml;

mod absent;

pub mod control;

pub mod libraries;
