//! How much can your GPU carry? GPU memory management for deep learning.
//!
//! PyTorch's caching allocator as one deterministic engine, with its settings, figures and
//! histories. The same engine runs on a device that has no memory at all, so a dry run is a
//! prediction; and it takes PyTorch's decisions byte for byte, so a recording of anyone's job can be
//! replayed.
//!
//! # Allocate, without a GPU
//!
//! ```
//! use tonnage::{Config, Dry, Engine, Release, StreamId};
//!
//! let config = Config::parse("expandable_segments:True", Release::default())?;
//! let mut engine = Engine::new(Dry::new(80 << 30), config);
//! let weights = engine.allocate(124_000_000 * 4, StreamId::DEFAULT)?;
//! println!("{}", engine.memory_summary(true));
//! engine.free(&weights)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Replay a PyTorch snapshot
//!
//! ```
//! use tonnage::replay::recording::{RecordingOptions, replay_recording};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
//! let file = tonnage::snapshot::open(path.as_ref())?;
//! let outcome = replay_recording(&file, &RecordingOptions::default())?;
//! assert!(outcome.exact());
//! assert_eq!(outcome.stats.max_memory_reserved(), 218_103_808);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each layer is a crate of its own, re-exported here under its name.

#![forbid(unsafe_code)]

pub use tonnage_device as device;
pub use tonnage_device::{DeviceError, Dry};
pub use tonnage_engine as engine;
pub use tonnage_engine::{
    AllocError, Allocation, Config, ConfigError, Engine, FreeError, OutOfMemory, Policy, Release,
    Stats,
};
pub use tonnage_events as events;
pub use tonnage_events::{Address, Bytes, DeviceId, PoolId, StreamId};
pub use tonnage_memory as memory;
pub use tonnage_replay as replay;
pub use tonnage_snapshot as snapshot;

/// The README's code runs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
