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
//! # Threads
//!
//! A [`Device`] is a handle: clone it, send it, use it from any thread. Calls on one device take
//! turns, so concurrent use is the same as some sequential use, and sequential use is exact.

// Host memory that a device reaches is raw memory: `pinned` says so.
#![deny(unsafe_code)]

// Locks, or a model checker's.
mod sync;

// One type for every device.
mod any_device;

mod device;

mod block;

mod stream;

mod view;

mod dump;

mod oom;

// Figures for other programs.
mod publish;

#[allow(unsafe_code, reason = "host memory that a device reaches is raw memory")]
mod pinned;

mod current;

pub use any_device::AnyDevice;
pub use block::Block;
pub use current::{current_device, current_stream, set_current_device, with_stream};
pub use device::{Device, DeviceOptions, OpenError, ToBytes};
pub use dump::{SaveError, snapshot_file};
pub use pinned::{Level, PinnedAllocator, PinnedBlock, PinnedError, PinnedStats};
pub use stream::Stream;
pub use tonnage_device::{DeviceError, MemoryInfo};
pub use tonnage_engine::{
    AllocError, CacheError, Config, OutOfMemory, RecordOptions, Release, Snapshot, Stats,
};
pub use tonnage_events::{Address, Bytes, DeviceId, StreamId};
pub use tonnage_monitor::PublishError;
pub use view::Memory;
