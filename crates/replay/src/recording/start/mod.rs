//! The state where a history begins.
//!
//! In: the entries of a history and the segments at its end. Out: the segments and blocks that were
//! there before the first entry. PyTorch's ring keeps the last entries only, so that a history
//! seldom goes back to an empty allocator.
//!
//! Free neighbours are always merged, so a state is known by its memory and its active blocks, and
//! both are known by what the history says of them first:
//!
//! | | was there | was not |
//! | --- | --- | --- |
//! | segments, pages | given back before they are obtained; or never mentioned, and there at the end | first obtained |
//! | blocks | freed before they are allocated; or never mentioned, and active at the end | first allocated |
//!
//! Not known are: what was asked for free blocks before they were freed, how long free blocks have
//! been free, what came first of what was there, and, before PyTorch 2.12, the pool of segments that are gone by the
//! end.

mod blocks;

mod memory;

use tonnage_engine::{Config, Start};
use tonnage_events::{DeviceId, SnapshotSegment, TraceEntry};
use tonnage_snapshot::{EntryPools, SnapshotFile};

pub(super) use self::blocks::lengthened;
pub use self::memory::{FixedBefore, fixed_before};
use super::ranges::{Reach, granted_before};
use super::settings::recorded_config;
use super::timeline::Timeline;

/// The largest rounded size of small pools, and the most that stays unsplit in large ones.
const SMALL_SIZE: u64 = 1 << 20;

/// Most bytes and the last address of a state that is believed; no device comes near.
const LARGEST: u64 = 1 << 56;
const LAST_ADDRESS: u64 = 1 << 62;

/// The state before the first entry of a device's history: its segments by ascending address. It is
/// empty if the history goes back to the beginning, and only then is the history whole.
///
/// The pool of segments that are gone by the end is in files of PyTorch 2.12 and later; in others it is the default
/// pool here. What was asked for free blocks is 0.
#[must_use]
pub fn rebuild_start(file: &SnapshotFile, ordinal: usize) -> Vec<SnapshotSegment> {
    let Some(entries) = file.traces.get(ordinal) else { return Vec::new() };
    let config = recorded_config(file);
    let segments = segments_of(file, ordinal);
    let timeline = Timeline::of(entries, granted_before(entries, &segments));
    let device = DeviceId(u32::try_from(ordinal).unwrap_or(u32::MAX));
    let told = file.entry_pools(device);
    let reach = Reach::of(&config, None);
    let (timeline, at_end, config) = (&timeline, &segments[..], &config);
    History { entries, from: 0, timeline, at_end, config, told, reach }.start().segments
}

/// The segments of one device at the end, by ascending address.
pub(super) fn segments_of(file: &SnapshotFile, ordinal: usize) -> Vec<SnapshotSegment> {
    let on_device = |segment: &&SnapshotSegment| segment.device.0 as usize == ordinal;
    let mut segments: Vec<_> = file.segments.iter().filter(on_device).cloned().collect();
    segments.sort_by_key(|segment| segment.address);
    segments
}

/// Drops what cannot be: segments inside others, or beyond any address space. Such a history is wrong,
/// and its replay shows where.
fn keep_apart(segments: &mut Vec<SnapshotSegment>) {
    let (mut behind, mut sum) = (0_u64, 0_u64);
    segments.retain(|segment| {
        let end = segment.address.0.checked_add(segment.total_size);
        let Some(end) = end.filter(|&end| end <= LAST_ADDRESS && segment.total_size > 0) else {
            return false;
        };
        let fits = segment.address.0 >= behind && sum + segment.total_size <= LARGEST;
        if fits {
            behind = end;
            sum += segment.total_size;
        }
        fits
    });
}

/// A history from the entry at `from` on, to be asked what was there before that.
pub(super) struct History<'a> {
    pub(super) entries: &'a [TraceEntry],
    pub(super) from: usize,
    pub(super) timeline: &'a Timeline,
    /// The segments that it ends with.
    pub(super) at_end: &'a [SnapshotSegment],
    pub(super) config: &'a Config,
    /// The pools of the entries.
    pub(super) told: EntryPools<'a>,
    /// How far expandable ranges reach.
    pub(super) reach: Reach,
}

impl<'a> History<'a> {
    /// The state before the first entry.
    pub(super) fn start(&self) -> Start {
        let mut memory = self.fixed_segments();
        let (runs, ranges) = self.runs();
        memory.extend(runs);
        memory.sort_by_key(|segment| segment.address);
        keep_apart(&mut memory);
        let waits = if memory.is_empty() { Vec::new() } else { self.fill(&mut memory) };
        Start { segments: memory, ranges, waits, order: Vec::new() }
    }

    fn entries(&self) -> impl Iterator<Item = (usize, &'a TraceEntry)> + use<'a> {
        self.entries.iter().enumerate().skip(self.from)
    }

    fn rounded(&self, bytes: u64) -> u64 {
        self.config.rounded_size(bytes).unwrap_or(u64::MAX)
    }
}
