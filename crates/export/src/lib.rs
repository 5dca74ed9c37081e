//! Memory snapshots for other tools.
//!
//! In:  a [`SnapshotFile`](tonnage_snapshot::SnapshotFile).
//! Out: a trace that the Perfetto UI opens, or one of four tables as CSV or Parquet, written piece by
//!      piece to anything that can be written to; or as Arrow arrays.
//!
//! Nothing here computes a figure: lifetimes, levels and call sites are those of
//! [`tonnage_analysis`].
//!
//! ```
//! use tonnage_export::{Table, write_csv};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
//! let file = tonnage_snapshot::open(path.as_ref())?;
//! let mut text = Vec::new();
//! let rows = write_csv(&file, Table::Allocations, &mut text)?;
//! assert_eq!(String::from_utf8(text)?.lines().count() as u64, rows + 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;

// What the tables hold, and their rows.
mod table;

mod rows;

// The formats.
#[cfg(feature = "arrow")]
mod arrow;

#[cfg(feature = "arrow")]
mod arrow_events;

mod csv;

#[cfg(feature = "parquet")]
mod parquet;

mod perfetto;

#[cfg(feature = "arrow")]
pub use arrow::{arrow_batches, arrow_schema};
#[cfg(feature = "arrow")]
pub use arrow_events::{EventColumns, recorded_events_schema};
pub use csv::write_csv;
pub use error::ExportError;
#[cfg(feature = "parquet")]
pub use parquet::{write_parquet, write_values};
pub use perfetto::write_perfetto;
pub use rows::Values;
pub use table::{Column, ColumnKind, Table};
