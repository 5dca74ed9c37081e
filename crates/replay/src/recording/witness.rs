//! Entries that contradict others.
//!
//! Sizes and streams of requests and the driver's addresses are taken from the recording, so a wrong
//! one would show only later, at an entry that is right. But each is told more than once: by the
//! free, by the block or segment at the end, by its neighbour. An entry that stands alone against
//! two others is the one to blame. So is one whose time lies outside that of its neighbours.

use rustc_hash::FxHashMap;
use tonnage_events::{Action, Address, BlockState, SnapshotBlock, SnapshotSegment, TraceEntry};

use super::timeline::Timeline;
use crate::outcome::Difference;

/// The first entry that is contradicted by others.
pub(super) fn first_contradicted(
    entries: &[TraceEntry],
    timeline: &Timeline,
    segments: &[SnapshotSegment],
) -> Option<Difference> {
    let witness = Witness { entries, timeline, at_end: blocks_at_end(segments) };
    (0..entries.len()).find_map(|index| {
        let got = match entries[index].action {
            Action::Alloc => witness.contradicts_alloc(index),
            Action::SegmentAlloc => witness.contradicts_segment(index),
            _ => None,
        };
        let got = got.or_else(|| witness.contradicts_time(index))?;
        Some(Difference { event: index, expected: entries[index].to_string(), got })
    })
}

/// Live and pending blocks at the end, each with whether its segment's sum confirms it.
fn blocks_at_end(segments: &[SnapshotSegment]) -> FxHashMap<Address, (SnapshotBlock, bool)> {
    let mut blocks = FxHashMap::default();
    for segment in segments {
        let active = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        let sum = active.clone().fold(0_u64, |sum, it| sum.saturating_add(it.requested_size));
        let confirmed = sum == segment.requested_size;
        blocks.extend(active.map(|block| (block.address, (*block, confirmed))));
    }
    blocks
}

struct Witness<'a> {
    entries: &'a [TraceEntry],
    timeline: &'a Timeline,
    at_end: FxHashMap<Address, (SnapshotBlock, bool)>,
}

impl Witness<'_> {
    /// What two other entries say of an allocation, against it.
    fn contradicts_alloc(&self, index: usize) -> Option<String> {
        let alloc = &self.entries[index];
        let Some(freed) = self.timeline.freed(index) else {
            let (block, confirmed) = self.at_end.get(&alloc.address)?;
            let alone = *confirmed && block.requested_size != alloc.size;
            return alone.then(|| {
                format!("{} bytes, by the block at {} at the end", block.requested_size, block.address)
            });
        };
        let free = &self.entries[freed];
        if let Some(completed) = self.timeline.completion(freed) {
            let completed_entry = &self.entries[completed];
            let agree = (free.size, free.stream) == (completed_entry.size, completed_entry.stream);
            let alone = agree && (free.size, free.stream) != (alloc.size, alloc.stream);
            return alone.then(|| {
                let (size, stream) = (free.size, free.stream);
                format!("{size} bytes on stream {stream}, by the entries {freed} and {completed}")
            });
        }
        let (block, _) = self.at_end.get(&alloc.address)?;
        let alone = block.requested_size == free.size && free.size != alloc.size;
        alone.then(|| format!("{} bytes, by entry {freed} and the block at the end", free.size))
    }

    /// A new fixed segment serves the request that caused it from its first byte on.
    fn contradicts_segment(&self, index: usize) -> Option<String> {
        let segment = &self.entries[index];
        let alloc = self.entries.get(index + 1).filter(|next| next.action == Action::Alloc)?;
        if alloc.address == segment.address {
            return None;
        }
        let confirmed = match self.timeline.freed(index + 1) {
            Some(_) => true,
            None => self.at_end.contains_key(&alloc.address),
        };
        confirmed.then(|| {
            format!("a segment at {}, by entry {} and what freed it", alloc.address, index + 1)
        })
    }

    /// An entry that is later than the next one, or earlier than the last.
    fn contradicts_time(&self, index: usize) -> Option<String> {
        let time = |index: usize| self.entries.get(index).map(|entry| entry.time_us);
        let now = time(index)?;
        let before = index.checked_sub(1).and_then(time).unwrap_or(0);
        let next = time(index + 1).unwrap_or(u64::MAX);
        // Without the entry its neighbours must be in order; otherwise another one is out of place.
        if before > next || (before <= now && now <= next) {
            return None;
        }
        Some(format!("time {now} µs, between entries of {before} µs and {next} µs"))
    }
}
