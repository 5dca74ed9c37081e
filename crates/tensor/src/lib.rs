//! Tensors on the engine: storage, views, operations, autograd; on `host` and on `dry`.
//!
//! ```
//! use tonnage_tensor::{Device, Tensor};
//!
//! let device = Device::host("1 GiB")?; // Device::dry("80 GiB")? computes nothing and says the bytes
//! let x = Tensor::randn([256, 1024], &device)?;
//! let weight = Tensor::randn([10, 1024], &device)?.requires_grad_(true)?;
//! let loss = x.linear(&weight, None)?.relu()?.mean()?;
//! loss.backward()?;
//! println!("{} {}", loss.item::<f32>()?, weight.grad().unwrap());
//! println!("at most {} bytes", device.memory().max_allocated());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of an operation
//!
//! ```text
//! x.sin()? ─ Call::here ─ shape rule ─ Tensor::uninit ─ Call::launch ─ record ─ result
//!            (name, line)              (the engine)     (the queue)    (the graph)
//!                                                          │
//!                                       host: a stream's thread runs the kernel later
//!                                       dry:  nothing
//! ```
//!
//! The caller never waits, except in [`Tensor::to_vec`], [`Tensor::item`] and
//! [`Device::synchronize`]; what went wrong in a kernel is reported there, with the line that
//! queued it. Frees happen when the last handle is dropped, on the caller's thread, so the sequence of
//! requests is that of the program and the same on every device.
//!
//! # How to add an operation: one file
//!
//! `ops/unary.rs` is the shortest pattern, `ops/matmul.rs` one with several inputs. Then a `mod` line in
//! `ops/mod.rs`. A file has, in this order:
//!
//! | piece | what to write | what it may use |
//! | --- | --- | --- |
//! | kernel | a struct of plain numbers that implements `Kernel` | `Args::input`, `Args::take`, `map1` to `map3`, `update1`, `update2`, `rows`, `slices`, `for_each_chunk`, `vectorised`; errors are texts |
//! | backward | a struct of `Saved` values that implements `Backward` | tensor methods; one gradient for each input, in PyTorch's order of allocation; broadcast gradients may stay wide |
//! | operation | a `#[track_caller]` method of [`Tensor`] | `Call::here`, errors by `Call::shape_error(…).with_tensor(…).help(…)`, `Tensor::uninit` for outputs in PyTorch's order, `Call::launch`, `record` |
//! | in place | the same with `check_in_place` first and `record_in_place` last | `apart_from` for inputs that may overlap |
//! | tests | values, `gradcheck`, errors, [`conformance!`] | [`testing`] |
//!
//! Rules that keep the rest true:
//!
//! - Every allocation of device memory is a tensor. Scratch memory of a host kernel is a `Vec`: it does
//!   not exist on a GPU. Scratch memory that PyTorch's kernel allocates is a tensor, dropped at the end.
//! - A kernel reads its inputs by `Input::chunk` or `Input::to_slice`, which broadcast and convert; it
//!   never assumes order or type that its operation did not establish.
//! - An operation does not ask which device it runs on. Another device brings kernels of its own for
//!   the same structs: see `exec`.
//! - Inputs are saved with `Saved::input`, outputs with `Saved::output`; whatever else a backward holds
//!   is no tensor.
//! - A composite needs no kernel and no backward: it calls other operations, as `matmul` calls `reshape`.
//!
//! # What is where
//!
//! | file | what |
//! | --- | --- |
//! | `dtype.rs`, `number.rs`, `math.rs` | element types, promotion, `dispatch!`, functions |
//! | `shape.rs` | shapes, strides, views, as arithmetic |
//! | `error.rs` | errors that read like a compiler's; `Call` |
//! | `device.rs`, `storage.rs`, `live.rs`, `peak.rs`, `levels.rs`, `workspace.rs` | memory: where from, whose, since when, what for, at the most, over time; what a library would add |
//! | `exec/` | the queue, order between streams, slices from addresses, loops over cores |
//! | `random/` | Philox; numbers by seed, draw and index |
//! | `graph/` | a step captured once and replayed as a whole |
//! | `tensor.rs`, `create.rs`, `transfer.rs`, `print.rs` | the tensor, new ones, numbers in and out, text |
//! | `ops/` | operations, one file for each family |
//! | [`autograd`] | the graph and the way back |
//! | [`nn`], [`models`], [`optim`] | modules with named parameters; models made of them; what changes them |
//! | [`checkpoint`], [`offload`], [`amp`] | less memory for the same gradients: recomputed, kept elsewhere, in 16 bits |
//! | [`data`], [`safetensors`] | batches from datasets; tensors in files |
//! | [`growth`] | what stays alive from one iteration to the next |
//! | [`testing`] | finite differences; `host` against `dry` |

// Slices from addresses, and the matrix library's call, live in `exec`, which says so.
#![deny(unsafe_code)]

// Element types,
mod dtype;

mod math;

mod number;

// shapes,
mod shape;

// what can go wrong.
mod error;

mod entry;

#[cfg(test)]
mod failures;

// Memory:
mod device;

mod storage;

mod workspace;

mod levels;

mod live;

mod peak;

mod work;

mod gpu;

// where work goes,
#[allow(unsafe_code, reason = "kernels reach device memory by address")]
mod exec;

mod random;

// as a whole, again and again,
#[allow(unsafe_code, reason = "a graph keeps the memory that its replays reach by address")]
mod graph;

// the tensor itself,
mod tensor;

mod create;

mod transfer;

mod print;

// what can be done with it,
mod ops;

// and back.
pub mod autograd;

// Training:
pub mod amp;

pub mod checkpoint;

pub mod data;

pub mod growth;

pub mod models;

pub mod nn;

pub mod offload;

pub mod optim;

mod preallocate;

pub mod safetensors;

pub mod testing;

pub use create::{Scalar, TensorOptions};
pub use device::{Device, Memory, current_device, set_device};
pub use dtype::{DType, Element, Stored};
pub use error::{Error, ErrorKind, Result};
pub use exec::after_fork;
pub use exec::cuda::WorkTime;
pub use gpu::Gpu;
pub use graph::Graph;
pub use levels::{LevelPoint, Levels};
pub use live::{Holder, Live, Role};
pub use number::{Bf16, Complex64, F16};
pub use ops::{
    AttentionOptions, BatchNormOptions, ConvOptions, CrossEntropyOptions, Pair, PoolOptions,
    Reduction, Rhs,
};
pub use peak::Peak;
pub use random::{Generator, GeneratorState};
pub use shape::Shape;
pub use tensor::Tensor;
pub use tonnage_cuda_libs::KernelSource;
pub use transfer::Pinned;
pub use work::QueuedWork;
pub use workspace::MemoryProfile;
