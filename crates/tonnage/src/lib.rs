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
//! # Train, and know the peak before the run
//!
//! ```
//! use tonnage::tensor::models::{Gpt2, Gpt2Config};
//! use tonnage::tensor::nn::Module;
//! use tonnage::tensor::optim::{AdamW, Optimizer};
//! use tonnage::tensor::{Device, Result, Tensor};
//!
//! /// One step; returns the loss and the most bytes that were allocated.
//! fn step(device: &Device) -> Result<(f32, u64)> {
//!     device.manual_seed(0);
//!     let model = Gpt2::new(Gpt2Config::bytes(2, 32, 2).context(16), device)?;
//!     let mut optimizer = AdamW::new(model.parameters(), AdamW::options().lr(1e-3))?;
//!     let tokens = Tensor::randint(0, 256, [4, 16], device)?;
//!     let loss = model.loss(&tokens, &tokens)?;
//!     loss.backward()?;
//!     optimizer.step()?;
//!     Ok((loss.item()?, device.memory().max_allocated()))
//! }
//!
//! let (_, predicted) = step(&Device::dry("80 GiB")?)?; // nothing is computed
//! let (loss, measured) = step(&Device::host("64 MiB")?)?;
//! assert_eq!(predicted, measured);
//! println!("loss {loss}, at most {measured} bytes, as predicted");
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
//! # What held the memory
//!
//! ```
//! use tonnage::analysis::{CallSites, Comparison, Inspection, Levels, Lifetimes, devices};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces");
//! # let open = |name: &str| tonnage::snapshot::open(format!("{folder}/{name}.pickle.zst").as_ref());
//! let file = open("mlp_seed.default.stacks")?;
//! let device = &Inspection::of(&file).devices[0];
//! println!("{:?} bytes at event {:?}", device.allocated_peak, device.allocated_peak_event);
//!
//! // Who held the most when most was allocated?
//! let device = &devices(&file)[0];
//! let lifetimes = Lifetimes::of(device);
//! let peak = Levels::of(device, &lifetimes).peak(|level| level.allocated).ok_or("no history")?;
//! let mut sites = CallSites::new(&file.stacks);
//! let live = lifetimes.iter().filter(|it| it.is_live_after(peak.moment));
//! let (size, site) =
//!     live.filter_map(|it| Some((it.size, sites.get(it.stack)?))).max().ok_or("no stacks")?;
//! println!("{size} bytes were asked for at {site}");
//! assert!(site.contains(".py:"));
//!
//! // What changed since?
//! let newer = open("mlp_seed.expandable")?;
//! let comparison = Comparison::of(&file, &newer);
//! assert!(comparison.settings.iter().any(|it| it.setting == "expandable_segments"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # For other tools
//!
//! ```
//! use tonnage::export::{Table, write_csv, write_perfetto};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
//! let file = tonnage::snapshot::open(path.as_ref())?;
//! let mut trace = Vec::new();
//! write_perfetto(&file, &mut trace)?; // opens at https://ui.perfetto.dev
//! let mut table = Vec::new();
//! assert_eq!(write_csv(&file, Table::Events, &mut table)?, 459);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each layer is a crate of its own, re-exported here under its name.

#![forbid(unsafe_code)]

pub use tonnage_analysis as analysis;
pub use tonnage_cuda_libs as cuda_libs;
pub use tonnage_device as device;
pub use tonnage_device::{DeviceError, Dry};
pub use tonnage_engine as engine;
pub use tonnage_engine::{
    AllocError, Allocation, Config, ConfigError, Engine, FreeError, OutOfMemory, Policy, Release,
    Stats,
};
pub use tonnage_events as events;
pub use tonnage_events::{Address, Bytes, DeviceId, PoolId, StreamId};
pub use tonnage_export as export;
pub use tonnage_html as html;
pub use tonnage_memory as memory;
pub use tonnage_monitor as monitor;
pub use tonnage_plan as plan;
pub use tonnage_replay as replay;
pub use tonnage_snapshot as snapshot;
pub use tonnage_tensor as tensor;

/// The README's code runs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The guide's too.
#[cfg(doctest)]
#[doc = include_str!("../../../GUIDE.md")]
struct Guide;
