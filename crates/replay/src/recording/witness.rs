//! Entries that contradict others.
//!
//! Sizes and streams of requests and the driver's addresses are taken from the recording, so a wrong
//! one would show only at another entry, which is right. But each is told more than once: by the free,
//! by the block or segment at the end, by its neighbour. An entry that stands alone against two
//! others is the one to blame. So is one whose time lies outside that of its neighbours.

use rustc_hash::FxHashMap;
use tonnage_events::{Action, Address, BlockState, SnapshotSegment, StreamId, TraceEntry};

use super::timeline::Timeline;
use crate::outcome::Difference;

/// Pages lie at multiples of this.
pub(super) const PAGE_UNIT: u64 = 2 << 20;

/// The first entry that is contradicted by others, and the first that is contradicted by more than
/// the time of its neighbours.
pub(super) fn first_contradicted(
    entries: &[TraceEntry],
    timeline: &Timeline,
    segments: &[SnapshotSegment],
) -> (Option<Difference>, Option<Difference>) {
    let witness = Witness { entries, timeline, at_end: blocks_at_end(segments) };
    let say = |index: usize, got| {
        let expected = entries[index].to_string();
        Difference { event: index, expected, got }
    };
    let by_time =
        (0..entries.len()).find_map(|index| Some(say(index, witness.contradicts_time(index)?)));
    let by_more =
        (0..entries.len()).find_map(|index| Some(say(index, witness.contradicts(index)?)));
    let first = by_time.into_iter().chain(by_more.clone()).min_by_key(|it| it.event);
    (first, by_more)
}

/// A block that is in use at the end.
struct BlockAtEnd {
    requested: u64,
    stream: StreamId,
    /// Whether the sum of its segment confirms the size.
    confirmed: bool,
}

fn blocks_at_end(segments: &[SnapshotSegment]) -> FxHashMap<Address, BlockAtEnd> {
    let mut blocks = FxHashMap::default();
    for segment in segments {
        let active = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        let sum = active.clone().fold(0_u64, |sum, it| sum.saturating_add(it.requested_size));
        let confirmed = sum == segment.requested_size;
        let stream = segment.stream;
        blocks.extend(active.map(|block| {
            let requested = block.requested_size;
            (block.address, BlockAtEnd { requested, stream, confirmed })
        }));
    }
    blocks
}

struct Witness<'a> {
    entries: &'a [TraceEntry],
    timeline: &'a Timeline,
    at_end: FxHashMap<Address, BlockAtEnd>,
}

impl Witness<'_> {
    fn contradicts(&self, index: usize) -> Option<String> {
        match self.entries[index].action {
            Action::Alloc => self.contradicts_alloc(index),
            Action::FreeRequested => self.contradicts_free(index),
            // Where the next entry is out of place, it says nothing about this one.
            Action::SegmentAlloc | Action::SegmentMap
                if self.contradicts_time(index + 1).is_none() =>
            {
                self.contradicts_segment(index)
            }
            _ => None,
        }
    }

    /// What two other entries say of an allocation, against it.
    fn contradicts_alloc(&self, index: usize) -> Option<String> {
        let alloc = &self.entries[index];
        let Some(freed) = self.timeline.freed(index) else {
            if !self.timeline.is_live_at_end(index, alloc.address) {
                return None;
            }
            let &BlockAtEnd { requested, stream, confirmed } = self.at_end.get(&alloc.address)?;
            let obtained = index.checked_sub(1).map(|before| &self.entries[before]);
            let confirms_stream = obtained.is_some_and(|it| {
                matches!(it.action, Action::SegmentAlloc | Action::SegmentMap)
                    && it.stream == stream
            });
            let alone = (confirms_stream && stream != alloc.stream)
                || (confirmed && requested != alloc.size);
            return alone
                .then(|| format!("{requested} bytes on stream {stream}, by the block at the end"));
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
        let block = self.at_end.get(&alloc.address)?;
        let alone = block.requested == free.size && free.size != alloc.size;
        alone.then(|| format!("{} bytes, by entry {freed} and the block at the end", free.size))
    }

    /// A free of a block that lives on, followed by the completion of another that nobody freed.
    fn contradicts_free(&self, index: usize) -> Option<String> {
        let address = self.entries[index].address;
        let in_use = self.at_end.contains_key(&address);
        let mistaken = self.timeline.completion(index).is_none()
            && self.timeline.completes_without_free(index + 1)
            && self.timeline.lives_on(index, address, in_use);
        mistaken.then(|| {
            let freed = self.entries[index + 1].address;
            format!("a free of {freed}, by the entry after it")
        })
    }

    /// A segment that was obtained for a request holds it: a fixed one from its first byte on, new
    /// pages of an expandable one some of it.
    fn contradicts_segment(&self, index: usize) -> Option<String> {
        let segment = &self.entries[index];
        let alloc = self.entries.get(index + 1).filter(|next| next.action == Action::Alloc)?;
        let end = |entry: &TraceEntry| entry.address.0.saturating_add(entry.size);
        let holds = match segment.action {
            Action::SegmentAlloc => alloc.address == segment.address,
            _ => {
                segment.address.0.is_multiple_of(PAGE_UNIT)
                    && alloc.address.0 < end(segment)
                    && segment.address.0 < end(alloc)
            }
        };
        let confirmed =
            self.timeline.freed(index + 1).is_some() || self.at_end.contains_key(&alloc.address);
        (!holds && confirmed).then(|| {
            format!("a segment with {}, by the entry after it and what freed that", alloc.address)
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
