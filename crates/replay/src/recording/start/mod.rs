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
//! been free, and the pool of segments that are gone by the end.

mod blocks;

mod memory;

use tonnage_engine::{Config, Start};
use tonnage_events::{SnapshotSegment, TraceEntry};
use tonnage_snapshot::SnapshotFile;

pub(super) use self::blocks::lengthened;
pub use self::memory::{FixedBefore, fixed_before};
use super::ranges::granted_before;
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
/// The pool of segments that are gone by the end is not in the file; here it is the default pool.
/// What was asked for free blocks is 0.
#[must_use]
pub fn rebuild_start(file: &SnapshotFile, ordinal: usize) -> Vec<SnapshotSegment> {
    let Some(entries) = file.traces.get(ordinal) else { return Vec::new() };
    let config = recorded_config(file);
    let segments = segments_of(file, ordinal);
    let timeline = Timeline::of(entries, granted_before(entries, &segments));
    start_of(entries, 0, &timeline, &segments, &config).segments
}

/// The segments of one device at the end, by ascending address.
pub(super) fn segments_of(file: &SnapshotFile, ordinal: usize) -> Vec<SnapshotSegment> {
    let on_device = |segment: &&SnapshotSegment| segment.device.0 as usize == ordinal;
    let mut segments: Vec<_> = file.segments.iter().filter(on_device).cloned().collect();
    segments.sort_by_key(|segment| segment.address);
    segments
}

/// The state before the entry at `from`, of a history that ends with `segments`.
pub(super) fn start_of(
    entries: &[TraceEntry],
    from: usize,
    timeline: &Timeline,
    segments: &[SnapshotSegment],
    config: &Config,
) -> Start {
    let history = History { entries, from, timeline, at_end: segments, config };
    let mut memory = history.fixed_segments();
    let (runs, ranges) = history.runs();
    memory.extend(runs);
    memory.sort_by_key(|segment| segment.address);
    keep_apart(&mut memory);
    let waits = if memory.is_empty() { Vec::new() } else { history.fill(&mut memory) };
    Start { segments: memory, ranges, waits }
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

/// A history, to be asked what was there before it.
struct History<'a> {
    entries: &'a [TraceEntry],
    from: usize,
    timeline: &'a Timeline,
    at_end: &'a [SnapshotSegment],
    config: &'a Config,
}

impl<'a> History<'a> {
    fn entries(&self) -> impl Iterator<Item = (usize, &'a TraceEntry)> + use<'a> {
        self.entries.iter().enumerate().skip(self.from)
    }

    fn rounded(&self, bytes: u64) -> u64 {
        self.config.rounded_size(bytes).unwrap_or(u64::MAX)
    }
}
