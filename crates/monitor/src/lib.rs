//! What a running process tells of its memory, to programs of the same user.
//!
//! ```text
//! process ─ sample ─ FigureSheet ─ Publisher ─► file in shared memory ─► processes() ─ FigureSheet ─ `tonnage top`
//! ```
//!
//! ```
//! use tonnage_monitor::{DeviceFigures, NowAndPeak, FigureSheet, Places, Publisher, processes};
//!
//! # let folder = tempfile::tempdir()?;
//! # let places = Places::only(folder.path());
//! # /*
//! let places = Places::from_env();
//! # */
//! let mut publisher = Publisher::create(&places)?;
//! let mut sheet = FigureSheet::of_this_process();
//! let reserved = NowAndPeak { now: 20 << 20, peak: 40 << 20 };
//! sheet.devices.push(DeviceFigures { name: "cuda:0".into(), reserved, ..DeviceFigures::default() });
//! publisher.publish(&sheet)?;
//!
//! let seen = processes(&places);
//! assert_eq!(seen.sheets[0].devices[0].reserved.peak, 40 << 20);
//!
//! drop(publisher); // nothing is left behind
//! assert!(processes(&places).sheets.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why the sheet is written and read, and not mapped
//!
//! The sheet is a file of a few kilobytes in memory that processes share (`/dev/shm` or the user's
//! runtime folder). Mapped, it would be cheaper to write by a microsecond, ten times a second; but a
//! mapped file that someone truncates, or for which the system has no memory left, kills whoever touches
//! it: the job that publishes, of all things. A call that fails is only a sample less. It needs no
//! unsafe code either.
//!
//! # Why a reader never takes half a sheet for a whole one
//!
//! A write replaces the sheet while others may read it, so what is read can be any mixture of two sheets.
//! Each carries a checksum of all that follows it, and of its own length and number. A mixture that
//! passes would have to collide in 64 bits; otherwise it is read again. No order of memory accesses is
//! assumed, neither of the kernel's nor of the machine's.
//!
//! # Why a reader knows who is alive
//!
//! A publisher holds a lock on its file for as long as it lives. The system gives the lock back when the
//! process ends, however it ends: a sheet whose lock can be had belongs to no one, and is removed. Process
//! numbers would not do. They are taken again, and mean something else in another container.
//!
//! # Why no one else's file is removed
//!
//! The folder may be anyone's choice (`TONNAGE_MONITOR_DIR`). A file goes only if it has a name that publishers
//! give, is a regular file of this user, is locked by no one, and begins as sheets do.

#![forbid(unsafe_code)]

// What is told.
mod figures;

// As bytes, and back.
mod encoding;

// Where files lie, and what they are called.
mod places;

mod names;

// The two ends.
mod publisher;

mod reader;

mod clock;

pub use clock::now_us;
pub use encoding::SheetError;
pub use figures::{
    CallSite, DeviceFigures, FigureSheet, MOST_CALL_SITES, MOST_DEVICES, MOST_POINTS, NowAndPeak,
};
pub use places::{PlaceError, PlaceProblem, Places};
pub use publisher::{PublishError, Publisher};
pub use reader::{Processes, Skipped, processes};
