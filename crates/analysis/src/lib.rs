//! What a memory snapshot tells, without a GPU.
//!
//! In:  a [`SnapshotFile`](tonnage_snapshot::SnapshotFile).
//! Out: lifetimes of allocations, levels over time, peaks, what is in a file, what changed between
//!      two, and the diagnosis. Only the diagnosis replays, to try other settings.
//!
//! | stage | in → out | lives in |
//! | --- | --- | --- |
//! | 1 device | file → one device's segments and history | `device_view.rs` |
//! | 2 lifetimes | entries → one row for each allocation | `lifetimes.rs`, `block_sizes.rs` |
//! | 3 levels | lifetimes → bytes after every entry, peaks | `levels.rs` |
//! | 4 extents | entries, the state before them → memory from the device, and when it was there | `extents.rs` |
//! | 4 strata | lifetimes, levels, what they are for → memory over time by groups | `strata.rs` |
//! | 5 call sites | stack → the line of the user's program, the modules on its way | `call_site.rs`, `module_path.rs`; which layer it is: `layers/`; what the program was doing: `phases.rs` |
//! | 6 answers | all of these → [`Inspection`], [`Comparison`] | `inspect.rs`, `diff.rs` |
//! | 7 diagnosis | all of these, and a replay → [`report::Report`] | `report/` |
//!
//! A history has requested sizes only. How large the blocks were follows from the rounding rules
//! and, in large segments, from the addresses: what is left behind a block, up to the next one, is
//! split off only if it is large enough. So the levels are exact wherever the sizes of all blocks
//! follow, also where a replay is not exact and where the history has lost its beginning.
//!
//! ```
//! use tonnage_analysis::{Inspection, devices, Lifetimes, Levels};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
//! let file = tonnage_snapshot::open(path.as_ref())?;
//! for device in &Inspection::of(&file).devices {
//!     println!("{} bytes at event {:?}", device.allocated, device.allocated_peak_event);
//! }
//!
//! // What was alive when most was allocated?
//! let device = &devices(&file)[0];
//! let lifetimes = Lifetimes::of(device);
//! let peak = Levels::of(device, &lifetimes).peak(|level| level.allocated).unwrap();
//! let live: u64 = lifetimes.iter().filter(|it| it.is_live_after(peak.moment)).map(|it| it.size).sum();
//! assert_eq!(live, peak.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// 1. One device of a file.
mod device_view;

// 2. Allocations, from their entries.
mod lifetimes;

mod block_sizes;

mod total_bytes;

// 3. Bytes over time.
mod levels;

// 4. Memory from the device over time.
mod extents;

mod strata;

// 5. Who asked.
mod call_site;

mod module_path;

mod layers;

mod phases;

// 6. Answers.
mod inspect;

mod pinned;

mod diff;

// 7. The diagnosis.
pub mod report;

pub use call_site::CallSites;
pub use device_view::{DeviceView, devices};
pub use diff::{
    Change, Comparison, DeviceComparison, Group, GroupChange, GrownPeak, SegmentChange,
    SettingChange,
};
pub use extents::{Extent, Extents};
pub use inspect::{DeviceInspection, HistoryKind, Inspection};
pub use layers::ModulePaths;
pub use levels::{Level, Levels, Peak};
pub use lifetimes::{Lifetime, Lifetimes, Moment};
pub use module_path::{ModuleCall, module_path, show_module_path};
pub use phases::{Phase, Phases};
pub use pinned::{PinnedInspection, PinnedLine};
pub use strata::{GroupBy, Strata, Stratum};
pub use tonnage_events::call_site;
