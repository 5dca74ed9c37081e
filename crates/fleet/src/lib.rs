//! The snapshots of a thousand ranks: which differ, and why.
//!
//! In:  where the snapshots are, as people write it: folders, globs, lists, here or in object storage.
//! Out: an [`Answer`]: groups of ranks that are alike, who differs from its group and in what, who failed, who was near, what
//!      grows, how uneven it is. The same bytes in whatever order files are done.
//!
//! | stage | in → out | lives in |
//! | --- | --- | --- |
//! | 1 sources | what people write → files with size and time or ETag, sorted | `source.rs`; in storage: `address.rs`, `storage/` |
//! | 2 names | a file's name → rank, node, coordinates, step | `name.rs` |
//! | 3 look | one file → what is kept of it, by the report of `tonnage-analysis` | `look.rs`, `facts.rs`; under other settings: `settings.rs` |
//! | 4 crew | files → rows, on every core, within memory | `crew.rs` |
//! | 5 dataset | rows ↔ Parquet files, for a run that goes on and for other tools | `dataset.rs`, `table.rs`; of ranks that were simulated: `runs.rs` |
//! | 6 groups | rows → ranks that are alike, and those that are not | `profile.rs`, `groups.rs` |
//! | 7 answer | rows, groups → what to say | `answer.rs`, `differences.rs`, `lines.rs`, `text.rs` |
//! | 8 again | one row → its file, if it is still the one that was looked at | `again.rs` |
//!
//! No figure is computed here that the report of one file does not have; sums, middles and differences of them are.

#![forbid(unsafe_code)]

// 1. Where files are.
mod address;

#[cfg(feature = "storage")]
mod storage;

#[cfg(not(feature = "storage"))]
#[path = "storage_off.rs"]
mod storage;

mod source;

// 2. Whose they are.
mod name;

// 3. What is kept of one.
mod facts;

mod settings;

mod look;

// 4. All of them.
mod crew;

// 5. On the disk.
mod table;

mod hash;

mod dataset;

mod runs;

// 6. Who is like whom.
mod profile;

mod groups;

// 7. What to say.
mod answer;

mod differences;

mod lines;

mod ranges;

mod text;

// 8. One of them again.
mod again;

pub use again::read_again;
pub use answer::{
    Answer, AnswerOptions, Card, Failed, Group, Growing, Imbalance, Member, Near, NearLimit,
    Outlier, Part, Spread, Unreadable, Whose, place_rows,
};
pub use crew::{Crew, Stopped};
pub use dataset::{Dataset, DatasetError};
pub use differences::{Difference, compare_outliers};
pub use facts::{Facts, FailedRequest, GrowthFacts, IterationLevel, LimitFacts, Row, Seen, Share};
pub use hash::hash;
pub use lines::{Line, Section};
pub use look::{ANALYSIS, LookOptions, Looked, look, look_and_tell};
pub use name::{NamePattern, PatternError, Place};
pub use ranges::ranges;
pub use runs::Runs;
pub use settings::{BestSetting, Tried};
pub use source::{Found, SourceError, find, find_until};
pub use table::FleetTable;
