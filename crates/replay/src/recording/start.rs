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
//! # Note \[Sizes at the start\]
//!
//! An entry has the request, not the block. In small pools and expandable segments every remainder is
//! split off, so that the two differ by rounding alone. In fixed segments of large pools up to 1 MiB
//! stays unsplit, and that is told in this order:
//!
//! 1. The block is there at the end, untouched: the file has its size.
//! 2. While it lives, something is allocated behind it: a block is cut from the front of free
//!    memory, so it begins where this one ends.
//! 3. Up to 1 MiB lies between it and the next active block or the end of its segment: all of that is
//!    its own, because remainders and blocks of a large pool, hence its free blocks, are larger.
//! 4. It reaches `max_split_size`: it is all of its segment.
//! 5. Otherwise it is taken to end with its rounded request. Nothing is ever cut from what lies behind
//!    it while it lives, or it would have shown (2); so only a search that would take that free block
//!    for its size can tell, and then the block is made longer until it does not.
//!
//! Not known are: what was asked for free blocks before they were freed, how long free blocks have
//! been free, and the pool of segments that are gone by the end.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_engine::{Config, Start};
use tonnage_events::{
    Action, Address, BlockState, DeviceId, PoolId, PoolKind, SnapshotBlock, SnapshotSegment,
    StreamId, TraceEntry,
};
use tonnage_snapshot::SnapshotFile;

use super::script::Script;
use super::settings::{config_of, release_of};
use super::timeline::Timeline;

/// The only size of fixed segments in small pools; those of large pools are larger.
const SMALL_SEGMENT: u64 = 2 << 20;

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
    let default = Default::default();
    let settings = file.settings.as_ref().unwrap_or(&default);
    let release = release_of(file, &mut Vec::new());
    let (config, _) = config_of(settings, release, &mut Vec::new());
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

/// Bytes that the driver had given before the first entry.
pub(super) fn granted_before(entries: &[TraceEntry], at_end: &[SnapshotSegment]) -> u64 {
    let mut granted = Granted::of(at_end);
    entries.iter().for_each(|entry| granted.pass(entry));
    u64::try_from((granted.at_end - granted.change).max(0)).unwrap_or(u64::MAX)
}

/// The expandable ranges of a history from the entry at `from` on, as far as they were ever mapped: where
/// each begins and ends. Pages of one range lie together: farther apart than all memory there ever was,
/// they belong to two.
pub(super) fn ranges_of(
    entries: &[TraceEntry],
    from: usize,
    at_end: &[SnapshotSegment],
) -> Vec<(u64, u64)> {
    let mut mentioned = Intervals::default();
    let mut granted = Granted::of(at_end);
    for entry in entries.iter().skip(from) {
        granted.pass(entry);
        if matches!(entry.action, Action::SegmentMap | Action::SegmentUnmap) {
            mentioned.add(entry.address.0, entry.size);
        }
    }
    for run in at_end.iter().filter(|run| run.expandable) {
        mentioned.add(run.address.0, run.total_size);
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (&start, &end) in &mentioned.all {
        match ranges.last_mut() {
            Some((_, reached)) if start - *reached <= granted.peak() => *reached = end,
            _ => ranges.push((start, end)),
        }
    }
    ranges
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

/// An active block at the start.
#[derive(Clone, Copy)]
struct Active {
    requested: u64,
    /// Bytes, as far as they are known: at least the rounded request.
    size: u64,
    /// Whether that is the size and no less.
    sure: bool,
    /// Where the free of a pending block completes: an entry, or never.
    pending: Option<Option<usize>>,
}

/// Pages that were mapped at the start.
#[derive(Clone, Copy)]
struct Mapped {
    end: u64,
    stream: StreamId,
    /// Of the run at the end that they are part of.
    known: Option<(PoolKind, PoolId)>,
}

impl<'a> History<'a> {
    fn entries(&self) -> impl Iterator<Item = (usize, &'a TraceEntry)> + use<'a> {
        self.entries.iter().enumerate().skip(self.from)
    }

    fn empty_segment(&self, address: u64, size: u64, stream: StreamId) -> SnapshotSegment {
        SnapshotSegment {
            device: self.at_end.first().map_or(DeviceId(0), |segment| segment.device),
            address: Address(address),
            total_size: size,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream,
            kind: if size <= SMALL_SEGMENT { PoolKind::Small } else { PoolKind::Large },
            pool: PoolId::DEFAULT,
            expandable: false,
            stack: None,
            blocks: Vec::new(),
        }
    }

    fn fixed_segments(&self) -> Vec<SnapshotSegment> {
        let mut mentioned = FxHashSet::default();
        let mut found = Vec::new();
        for (_, entry) in self.entries() {
            let released = match entry.action {
                Action::SegmentAlloc => false,
                Action::SegmentFree => true,
                _ => continue,
            };
            if mentioned.insert(entry.address) && released {
                found.push(self.empty_segment(entry.address.0, entry.size, entry.stream));
            }
        }
        let untouched =
            self.at_end.iter().filter(|it| !it.expandable && !mentioned.contains(&it.address));
        found.extend(untouched.map(|it| SnapshotSegment {
            pool: it.pool,
            kind: it.kind,
            ..self.empty_segment(it.address.0, it.total_size, it.stream)
        }));
        found
    }

    /// The mapped runs of expandable segments, and where their ranges begin.
    fn runs(&self) -> (Vec<SnapshotSegment>, Vec<Address>) {
        let mut mentioned = Intervals::default();
        let mut mapped = BTreeMap::<u64, Mapped>::new();
        for (_, entry) in self.entries() {
            let was_there = match entry.action {
                Action::SegmentMap => false,
                Action::SegmentUnmap => true,
                _ => continue,
            };
            for (start, end) in mentioned.add(entry.address.0, entry.size) {
                if was_there {
                    mapped.insert(start, Mapped { end, stream: entry.stream, known: None });
                }
            }
        }
        let at_end = || self.at_end.iter().filter(|it| it.expandable);
        for run in at_end() {
            let known = Some((run.kind, run.pool));
            for (start, end) in mentioned.add(run.address.0, run.total_size) {
                mapped.insert(start, Mapped { end, stream: run.stream, known });
            }
        }
        let ranges = ranges_of(self.entries, self.from, self.at_end);
        let range_of = |at: u64| ranges.partition_point(|&(base, _)| base <= at).saturating_sub(1);
        let mut known = FxHashMap::default();
        for run in at_end() {
            known.insert((range_of(run.address.0), run.stream), (run.kind, run.pool));
        }
        let kinds = self.kinds_of(&ranges);
        let mut runs: Vec<SnapshotSegment> = Vec::new();
        for (&start, page) in &mapped {
            let range = range_of(start);
            let known = page.known.or_else(|| known.get(&(range, page.stream)).copied());
            let (kind, pool) = known.unwrap_or((kinds[range], PoolId::DEFAULT));
            if let Some(last) = runs.last_mut()
                && last.address.0 + last.total_size == start
                && (last.stream, last.kind, last.pool) == (page.stream, kind, pool)
                && start > ranges[range].0
            {
                last.total_size += page.end - start;
                continue;
            }
            let run = self.empty_segment(start, page.end - start, page.stream);
            runs.push(SnapshotSegment { kind, pool, expandable: true, ..run });
        }
        let holds_run = |&&(base, end): &&(u64, u64)| {
            let first = runs.partition_point(|run| run.address.0 < base);
            runs.get(first).is_some_and(|run| run.address.0 < end)
        };
        let bases = ranges.iter().filter(holds_run).map(|&(base, _)| Address(base)).collect();
        (runs, bases)
    }

    /// Small or large, by what was allocated in each range, or else by its pages.
    fn kinds_of(&self, ranges: &[(u64, u64)]) -> Vec<PoolKind> {
        let page = self.config.large_segment_size();
        let mut kinds = vec![(PoolKind::Large, false); ranges.len()];
        for (_, entry) in self.entries() {
            let at = entry.address.0;
            let range = ranges.partition_point(|&(base, _)| base <= at).checked_sub(1);
            let Some(range) = range.filter(|&range| at < ranges[range].1) else { continue };
            let (kind, sure) = &mut kinds[range];
            match entry.action {
                Action::Alloc | Action::FreeRequested | Action::FreeCompleted if !*sure => {
                    let small = self.rounded(entry.size) <= SMALL_SIZE;
                    *kind = if small { PoolKind::Small } else { PoolKind::Large };
                    *sure = true;
                }
                Action::SegmentMap | Action::SegmentUnmap
                    if !*sure && !entry.size.is_multiple_of(page) =>
                {
                    *kind = PoolKind::Small;
                }
                _ => {}
            }
        }
        kinds.into_iter().map(|(kind, _)| kind).collect()
    }

    fn rounded(&self, bytes: u64) -> u64 {
        self.config.rounded_size(bytes).unwrap_or(u64::MAX)
    }

    /// Cuts the memory into blocks, and says what the pending ones wait for.
    fn fill(&self, memory: &mut [SnapshotSegment]) -> Vec<(Address, StreamId)> {
        let mut active = self.active_blocks(memory);
        self.learn_ends(memory, &mut active);
        let mut waits = Vec::new();
        for segment in memory {
            let end = segment.address.0 + segment.total_size;
            let inside: Vec<_> =
                active.range(segment.address.0..end).map(|(&at, &it)| (at, it)).collect();
            let mut reached = segment.address.0;
            for (index, &(at, block)) in inside.iter().enumerate() {
                if at < reached {
                    // Overlaps the one before: a wrong history.
                    continue;
                }
                push_free(segment, reached, at);
                let next = inside.get(index + 1).map_or(end, |&(next, _)| next);
                let size = self.size_of(segment, &block, next - at);
                let state = match block.pending {
                    None => BlockState::ActiveAllocated,
                    Some(completion) => {
                        waits.push((Address(at), Script::stream_of(completion, self.timeline)));
                        BlockState::ActivePendingFree
                    }
                };
                segment.active_size += size;
                segment.requested_size += block.requested;
                if block.pending.is_none() {
                    segment.allocated_size += size;
                }
                segment.blocks.push(SnapshotBlock {
                    address: Address(at),
                    size,
                    requested_size: block.requested,
                    state,
                    stack: None,
                });
                reached = at + size;
            }
            push_free(segment, reached, end);
        }
        waits
    }

    /// See Note \[Sizes at the start\].
    fn size_of(&self, segment: &SnapshotSegment, block: &Active, room: u64) -> u64 {
        if block.sure || block.size >= room || !self.leaves_unsplit(segment) {
            return block.size.min(room);
        }
        let all = room - block.size <= SMALL_SIZE || block.size >= self.config.max_split_size();
        if all { room } else { block.size }
    }

    /// Whether blocks of the segment may be larger than their rounded requests.
    fn leaves_unsplit(&self, segment: &SnapshotSegment) -> bool {
        !segment.expandable && segment.kind == PoolKind::Large && !self.config.expandable_segments()
    }

    /// The active blocks at the start, by address.
    fn active_blocks(&self, memory: &[SnapshotSegment]) -> BTreeMap<u64, Active> {
        let mut mentioned = FxHashMap::default();
        let mut active = BTreeMap::new();
        for (index, entry) in self.entries() {
            let pending = match entry.action {
                Action::Alloc => {
                    mentioned.insert(entry.address, true);
                    continue;
                }
                Action::FreeRequested => None,
                Action::FreeCompleted => Some(Some(index)),
                _ => continue,
            };
            if mentioned.contains_key(&entry.address) || !covers(memory, entry.address) {
                continue;
            }
            mentioned.insert(entry.address, false);
            let (requested, size) = (entry.size, self.rounded(entry.size));
            if requested > 0 && size <= LARGEST {
                active.insert(entry.address.0, Active { requested, size, sure: false, pending });
            }
        }
        let blocks = self.at_end.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state != BlockState::Inactive) {
            let (requested, size, sure) = (block.requested_size, block.size, true);
            match mentioned.get(&block.address) {
                None if covers(memory, block.address) && size > 0 => {
                    let pending = block.state == BlockState::ActivePendingFree;
                    let pending = pending.then_some(None);
                    active.insert(block.address.0, Active { requested, size, sure, pending });
                }
                // Freed and still pending at the end.
                Some(false) => {
                    if let Some(block) = active.get_mut(&block.address.0)
                        && block.requested == requested
                    {
                        (block.size, block.sure) = (size, sure);
                    }
                }
                _ => {}
            }
        }
        active
    }

    /// Learns where blocks end from what is allocated behind them while they live.
    fn learn_ends(&self, memory: &[SnapshotSegment], active: &mut BTreeMap<u64, Active>) {
        let unsure = |(&at, block): (&u64, &Active)| {
            !block.sure && segment_at(memory, Address(at)).is_some_and(|it| self.leaves_unsplit(it))
        };
        if !active.iter().any(unsure) {
            return;
        }
        // Those of the start, and whether something behind them may tell their end; and later ones.
        let mut live: BTreeMap<u64, bool> =
            active.iter().map(|(at, block)| (*at, unsure((at, block)))).collect();
        for (_, entry) in self.entries() {
            match entry.action {
                Action::Alloc => {
                    let at = entry.address.0;
                    if let Some((&before, unsure)) = live.range_mut(..at).next_back()
                        && *unsure
                        && let Some(block) = active.get_mut(&before)
                        && segment_at(memory, Address(before))
                            .is_some_and(|it| at - it.address.0 < it.total_size)
                    {
                        let slack = (at - before).checked_sub(block.size);
                        if slack.is_some_and(|slack| slack <= SMALL_SIZE) {
                            (block.size, block.sure) = (at - before, true);
                        }
                        *unsure = false;
                    }
                    live.insert(at, false);
                }
                Action::FreeCompleted => drop(live.remove(&entry.address.0)),
                _ => {}
            }
        }
    }
}

/// The same state with one block longer by `more` bytes, at the expense of the free block behind it at
/// `end`: another that the history allows. None if it does not.
pub(super) fn lengthened(start: &Start, config: &Config, end: Address, more: u64) -> Option<Start> {
    let mut start = start.clone();
    let below = start.segments.partition_point(|segment| segment.address < end);
    let segment = &mut start.segments[below.checked_sub(1)?];
    let index = segment.blocks.partition_point(|block| block.address < end).checked_sub(1)?;
    let [block, free] = segment.blocks.get_mut(index..index + 2)? else { return None };
    let unsplit = (block.size + more).checked_sub(config.rounded_size(block.requested_size)?)?;
    let may_be = !segment.expandable
        && segment.kind == PoolKind::Large
        && block.state != BlockState::Inactive
        && free.state == BlockState::Inactive
        && free.address == end
        && more < free.size
        && unsplit <= SMALL_SIZE;
    if !may_be {
        return None;
    }
    block.size += more;
    free.address = Address(free.address.0 + more);
    free.size -= more;
    segment.active_size += more;
    if block.state == BlockState::ActiveAllocated {
        segment.allocated_size += more;
    }
    Some(start)
}

/// The segment that holds an address, of segments by ascending address.
fn segment_at(memory: &[SnapshotSegment], address: Address) -> Option<&SnapshotSegment> {
    let below = memory.partition_point(|segment| segment.address <= address);
    let segment = &memory[below.checked_sub(1)?];
    (address.0 - segment.address.0 < segment.total_size).then_some(segment)
}

fn covers(memory: &[SnapshotSegment], address: Address) -> bool {
    segment_at(memory, address).is_some()
}

fn push_free(segment: &mut SnapshotSegment, from: u64, to: u64) {
    if from < to {
        segment.blocks.push(SnapshotBlock {
            address: Address(from),
            size: to - from,
            requested_size: 0,
            state: BlockState::Inactive,
            stack: None,
        });
    }
}

/// Most bytes that the driver had given at once, counted from the end, where it is known.
struct Granted {
    at_end: i128,
    change: i128,
    highest: i128,
}

impl Granted {
    fn of(at_end: &[SnapshotSegment]) -> Self {
        let at_end = at_end.iter().map(|it| i128::from(it.total_size)).sum();
        Self { at_end, change: 0, highest: 0 }
    }

    fn pass(&mut self, entry: &TraceEntry) {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => self.change += i128::from(entry.size),
            Action::SegmentFree | Action::SegmentUnmap => self.change -= i128::from(entry.size),
            _ => {}
        }
        self.highest = self.highest.max(self.change);
    }

    fn peak(&self) -> u64 {
        let peak = self.at_end - self.change + self.highest;
        u64::try_from(peak.max(0)).unwrap_or(u64::MAX)
    }
}

/// Addresses that were mentioned, as intervals by their start; none touch.
#[derive(Default)]
struct Intervals {
    all: BTreeMap<u64, u64>,
}

impl Intervals {
    /// Adds an interval, and returns the parts of it that are new.
    fn add(&mut self, start: u64, size: u64) -> Vec<(u64, u64)> {
        let Some(end) = start.checked_add(size).filter(|_| size > 0) else { return Vec::new() };
        let mut new = Vec::new();
        let (mut from, mut to) = (start, end);
        let mut reached = start;
        let before = self.all.range(..start).next_back().map(|(&at, &end)| (at, end));
        let mut touched: Vec<_> = before.filter(|&(_, end)| end >= start).into_iter().collect();
        touched.extend(self.all.range(start..=end).map(|(&at, &end)| (at, end)));
        for (at, until) in touched {
            if reached < at {
                new.push((reached, at.min(end)));
            }
            reached = reached.max(until);
            from = from.min(at);
            to = to.max(until);
            self.all.remove(&at);
        }
        if reached < end {
            new.push((reached, end));
        }
        self.all.insert(from, to);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_return_what_is_new_and_grow_together() {
        let mut seen = Intervals::default();
        assert_eq!(seen.add(10, 10), [(10, 20)]);
        assert_eq!(seen.add(30, 10), [(30, 40)]);
        assert_eq!(seen.add(5, 40), [(5, 10), (20, 30), (40, 45)]);
        assert_eq!(seen.add(5, 40), []);
        assert_eq!(seen.add(45, 5), [(45, 50)]);
        assert_eq!(seen.add(u64::MAX, 5), []);
        assert_eq!(seen.all, BTreeMap::from([(5, 50)]));
    }
}
