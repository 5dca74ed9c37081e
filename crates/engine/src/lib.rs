//! PyTorch's CUDA caching allocator as a deterministic state machine.
//!
//! ```text
//! caller ─ request ─ pool ─ block ─ segment ─ device
//!                    (split/merge)  (fixed | expandable)
//!             └── every state change ─► event ─► stats · history ─► snapshot
//! ```
//!
//! [`Engine`] is the whole of it; the stages are one file or folder each. It takes PyTorch's
//! decisions byte for byte, those of each [`Release`] from 2.8 to 2.15, asks a
//! [`Device`](tonnage_device::Device) for memory, and has neither I/O nor unsafe code.

#![forbid(unsafe_code)]

// The settings, as a value.
pub mod config;

// 1. What was asked, rounded.
mod request;

// 2. The seam for placement rules.
mod policy;

// 3. Who has a free block.
mod pool;

// 4. Blocks, cut and put together.
mod block;

// 5. Where blocks are cut from.
mod segment;

// Pages that go where they are needed.
mod pages;

// What callers ask for,
mod engine;

mod private_pools;

mod pool_state;

mod frameworks;

// and the way itself: to the owner,
mod allocate;

mod owner;

// to the device,
mod grow;

mod reserve;

// back from the owner,
mod give_back;

mod last_freed;

mod merge;

mod pending;

mod complete;

mod capture;

// and back to the device.
mod reclaim;

mod pause;

// 7. State changes become events.
mod ledger;

// 8. What they add up to.
mod history;

mod native_stacks;

mod said;

mod stats;

mod summary;

mod snapshot;

mod live_lines;

// A state to go on from.
mod restore;

mod error;

mod waste;

mod oom_verdict;

mod invariants;

#[doc(hidden)]
pub mod fuzzing;

pub use capture::{Capture, CaptureError};
pub use config::{Config, ConfigError, Release};
pub use engine::{Engine, FreeMemoryCallback, OomObserver};
pub use error::{
    AllocError, CacheError, CachedBlock, FractionError, FreeError, OomNote, OomNotes, OutOfMemory,
    PendingBlock, RecordStreamError, Rejected,
};
pub use frameworks::SegmentPlace;
pub use history::{Context, History, RecordOptions, StackDepth, system_time_us};
pub use ledger::ChangeTracker;
pub use live_lines::LiveLine;
pub use oom_verdict::OomVerdict;
pub use owner::Allocation;
pub use pause::{PauseError, ResumeError};
pub use policy::{Policy, Slack};
pub use pool::{PoolError, PoolSource, SourceFailed, StreamFilter};
pub use pool_state::{PoolChange, PoolState, PoolStateError};
pub use restore::{RestoreError, Start};
pub use said::{SaidPurpose, SaidScope};
pub use snapshot::Snapshot;
pub use stats::{Stat, StatArray, Stats};
pub use tonnage_events::{Address, DeviceId, PoolId, PoolKind, StreamId};
pub use waste::{WASTE_SHARE, Waste, WasteKind, WastePart, waste_parts};
