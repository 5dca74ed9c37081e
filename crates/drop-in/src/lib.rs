//! The allocator behind a C interface: a framework's own allocator class, written against it, hands every call on.
//!
//! ```text
//! PyTorch ─ its abstract class ─ shim/tonnage_shim.cpp ─ [`Interface`] ─ engine ─ device
//! ```
//!
//! In:  calls with numbers and pointers, from any thread. Out: a status each; where it is not [`Status::Ok`], a sentence.
//!
//! *Nothing unwinds into C.* A panic is stopped where it would: what the engine's books say afterwards nobody knows, so
//! that call and every later one answer [`Status::Broken`], with what happened first.
//!
//! *No callback of the framework runs under the engine's lock* but those that must, and none of these comes back to the engine: the
//! filter of a private pool, which compares a stream; whether a thread captures, which the CUDA runtime is asked; the tracker of changes, which
//! looks up a stack and holds the list of stacks for that, a lock under which nothing else is taken; what forgets a filter; and the allocator
//! behind a `MemPool`, whose thread is refused what it asks for meanwhile. So a request comes in two steps: what is cached, and after the
//! framework's callbacks the rest.

// Pointers of callers are followed in `interface`; `devices` trusts the streams they name.
#![deny(unsafe_code)]

// The C types.
mod types;

// What is said when something is wrong.
mod failure;

// The allocators of this process, by device.
#[allow(unsafe_code, reason = "the streams of a framework are adopted as it names them")]
mod devices;

// Processes that others have forked off.
#[allow(unsafe_code, reason = "the system is told of a function")]
mod forks;

// Allocators of the program's own, behind private pools.
mod pool_allocator;

// A moment, flat.
mod moment;

// The functions.
#[allow(unsafe_code, reason = "arguments are a C caller's")]
mod interface;

// The functions of PyTorch's own way in.
#[allow(unsafe_code, reason = "arguments are a C caller's")]
mod pluggable;

// What a program asks for itself.
mod sharing;

pub use interface::{INTERFACE, Interface, tonnage_interface};
pub use sharing::{
    SharingError, check_pause, pause, paused_devices, paused_pools, release, resume, tag,
};
pub use types::{
    Block, ContextLevel, Entry, Failure, Moment, Options, PoolName, Quantity, Segment, Status,
    TextFn, TrackerFn,
};
