//! The allocator as programs use it: from many threads, with blocks that go back when dropped.
//!
//! ```
//! use tonnage_memory::Device;
//!
//! let device = Device::host("1 GiB")?; // Device::cuda(0)?, Device::dry("80 GiB")?
//! let block = device.allocate(1000)?;
//! assert_eq!(device.memory().allocated(), 1024);
//! drop(block);
//! device.memory().empty_cache()?;
//! assert_eq!(device.memory().reserved(), 0);
//! println!("{}", device.memory().summary());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Small by default
//!
//! A failed request says what the moment tells. With the feature `explain` it says what its history
//! tells too, in the words of `tonnage report`, and `Memory::dump_snapshot` writes histories for
//! PyTorch's tools: that takes the crates `analysis`, `replay` and `snapshot`. `tonnage-tensor` and
//! `tonnage` turn it on; programs can explain failures in their own way, or not at all
//! ([`DeviceOptions::explain`]).
//!
//! # Threads
//!
//! A [`Device`] is a handle: clone it, send it, use it from any thread. Calls on one device take
//! turns, so concurrent use is the same as some sequential use, and sequential use is exact.

// Host memory that a device reaches is raw memory: `pinned` and `copies` say so.
#![deny(unsafe_code)]

// Locks, or a model checker's.
mod sync;

// One type for every device.
mod any_device;

// The engine behind its lock.
mod shared_engine;

mod device;

mod block;

#[allow(unsafe_code, reason = "a block's memory is reached by its address")]
mod copies;

mod stream;

mod capture_pool;

// Streams and events without the engine's lock.
mod waiting;

mod view;

// Memory that others have for a while.
mod pause;

#[cfg(feature = "explain")]
mod dump;

// What failures have to do with what came before.
mod oom;

// Figures for other programs.
mod publish;

#[allow(unsafe_code, reason = "host memory that a device reaches is raw memory")]
mod pinned;

mod current;

pub use any_device::AnyDevice;
pub use block::Block;
pub use capture_pool::CapturePool;
pub use current::{current_device, current_stream, set_current_device, with_stream};
pub use device::{Device, DeviceOptions, OpenError, ToBytes};
#[cfg(feature = "explain")]
pub use dump::{SaveError, snapshot_file};
#[cfg(feature = "explain")]
pub use oom::ReportVerdict;
pub use oom::{Diagnosis, Explain, Explainer, FailedRequest, NotLookedAt, SnapshotOnOom};
pub use pause::Contents;
pub use pinned::{PinnedAllocator, PinnedBlock, PinnedBytes, PinnedError, PinnedStats};
pub use stream::Stream;
pub use tonnage_device::{DeviceError, MemoryInfo};
pub use tonnage_engine::{
    AllocError, CacheError, Config, OomNote, OomNotes, OutOfMemory, PauseError, Policy, PoolError,
    RecordOptions, Release, ResumeError, Snapshot, Stats,
};
pub use tonnage_events::{Address, Bytes, DeviceId, StreamId};
pub use tonnage_monitor::PublishError;
pub use view::Memory;
