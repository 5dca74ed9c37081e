//! The segments and pages that were there where a history begins.
//!
//! In: the entries, and the segments at the end. Out: segments without blocks.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::{
    Action, Address, DeviceId, PoolId, PoolKind, SnapshotSegment, StreamId, TraceEntry,
};

use super::{History, SMALL_SIZE};
use crate::recording::ranges::{Intervals, Reach, ranges_of, reserved_ranges_of};

/// The only size of fixed segments in small pools; those of large pools are larger.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Pages that were mapped at the start.
#[derive(Clone, Copy)]
struct Mapped {
    end: u64,
    stream: StreamId,
    /// The kind of the run at the end that they are part of.
    kind: Option<PoolKind>,
    /// Its pool, or that of the entry that gives them back.
    pool: Option<PoolId>,
}

/// The life of an expandable range that was there at the start: what is reserved at its addresses later is another, of
/// another kind perhaps, and may begin elsewhere.
#[derive(Clone, Copy)]
struct Life {
    /// Where it begins: the lowest page that it ever had.
    base: u64,
    /// The entry with which its last page goes back; 0 if there was no such range at the start.
    gone: usize,
}

/// A fixed segment that was there before a history, by what tells so.
#[derive(Clone, Copy, Debug)]
pub enum FixedBefore<'a> {
    /// The entry that gives it back, though none obtained it, and its number.
    GivenBack(usize, &'a TraceEntry),
    /// It is there at the end, and no entry names it.
    Untouched(&'a SnapshotSegment),
}

impl FixedBefore<'_> {
    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> Address {
        match self {
            Self::GivenBack(_, entry) => entry.address,
            Self::Untouched(segment) => segment.address,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::GivenBack(_, entry) => entry.size,
            Self::Untouched(segment) => segment.total_size,
        }
    }
}

/// The fixed segments that were there before these entries, of a history that ends with `at_end`.
pub fn fixed_before<'a>(
    entries: &'a [TraceEntry],
    at_end: impl Iterator<Item = &'a SnapshotSegment>,
) -> Vec<FixedBefore<'a>> {
    let mut mentioned = FxHashSet::default();
    let mut found = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let released = match entry.action {
            Action::SegmentAlloc => false,
            Action::SegmentFree => true,
            _ => continue,
        };
        if mentioned.insert(entry.address) && released {
            found.push(FixedBefore::GivenBack(index, entry));
        }
    }
    let untouched = at_end.filter(|it| !it.expandable && !mentioned.contains(&it.address));
    found.extend(untouched.map(FixedBefore::Untouched));
    found
}

impl History<'_> {
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

    pub(super) fn fixed_segments(&self) -> Vec<SnapshotSegment> {
        let later = self.entries.get(self.from..).unwrap_or_default();
        let found = fixed_before(later, self.at_end.iter()).into_iter().map(|it| match it {
            FixedBefore::GivenBack(index, entry) => SnapshotSegment {
                pool: self.told.get(self.from + index).unwrap_or_default(),
                ..self.empty_segment(entry.address.0, entry.size, entry.stream)
            },
            FixedBefore::Untouched(it) => SnapshotSegment {
                pool: it.pool,
                kind: it.kind,
                ..self.empty_segment(it.address.0, it.total_size, it.stream)
            },
        });
        found.collect()
    }

    /// The mapped runs of expandable segments, and where their ranges begin.
    pub(super) fn runs(&self) -> (Vec<SnapshotSegment>, Vec<Address>) {
        let mut mentioned = Intervals::default();
        let mut mapped = BTreeMap::<u64, Mapped>::new();
        for (index, entry) in self.entries() {
            let was_there = match entry.action {
                Action::SegmentMap => false,
                Action::SegmentUnmap => true,
                _ => continue,
            };
            for (start, end) in mentioned.add(entry.address.0, entry.size) {
                if was_there {
                    let pool = self.told.get(index);
                    mapped.insert(start, Mapped { end, stream: entry.stream, kind: None, pool });
                }
            }
        }
        let at_end = || self.at_end.iter().filter(|it| it.expandable);
        for run in at_end() {
            let (kind, pool) = (Some(run.kind), Some(run.pool));
            for (start, end) in mentioned.add(run.address.0, run.total_size) {
                mapped.insert(start, Mapped { end, stream: run.stream, kind, pool });
            }
        }
        let ranges = self.ranges();
        let range_of = |at: u64| ranges.partition_point(|&(base, _)| base <= at).saturating_sub(1);
        let lives = self.lives(&ranges, &mapped);
        let mut known = FxHashMap::default();
        for run in at_end() {
            let range = range_of(run.address.0);
            // A run without bytes, which only a damaged file has, is in no range.
            if lives.get(range).is_some_and(|life| life.gone == usize::MAX) {
                known.insert((range, run.stream), (run.kind, run.pool));
            }
        }
        let kinds = self.kinds_of(&ranges, &lives);
        let mut runs: Vec<SnapshotSegment> = Vec::new();
        for (&start, page) in &mapped {
            let range = range_of(start);
            let known = known.get(&(range, page.stream)).copied();
            let (kind, pool) = known.unwrap_or((kinds[range], PoolId::DEFAULT));
            let (kind, pool) = (page.kind.unwrap_or(kind), page.pool.unwrap_or(pool));
            if let Some(last) = runs.last_mut()
                && last.address.0 + last.total_size == start
                && (last.stream, last.kind, last.pool) == (page.stream, kind, pool)
                && start > lives[range].base
            {
                last.total_size += page.end - start;
                continue;
            }
            let run = self.empty_segment(start, page.end - start, page.stream);
            runs.push(SnapshotSegment { kind, pool, expandable: true, ..run });
        }
        let there = lives.iter().filter(|life| life.gone > 0);
        let bases = there.map(|life| Address(life.base)).collect();
        (runs, bases)
    }

    /// The expandable ranges, as far as they were ever mapped: where each begins and ends.
    pub(in crate::recording) fn ranges(&self) -> Vec<(u64, u64)> {
        let &Self { entries, from, at_end, told, reach, config, .. } = self;
        match reach {
            Reach::WholeDevice => ranges_of(entries, from, at_end),
            reach => reserved_ranges_of(entries, from, at_end, told, reach, config),
        }
    }

    /// How long each range lives that has pages at the start. `mapped` are these pages.
    fn lives(&self, ranges: &[(u64, u64)], mapped: &BTreeMap<u64, Mapped>) -> Vec<Life> {
        let range_of = |at: u64| ranges.partition_point(|&(base, _)| base <= at).checked_sub(1);
        let mut lives: Vec<_> = ranges.iter().map(|&(_, base)| Life { base, gone: 0 }).collect();
        let mut held = vec![0_i128; ranges.len()];
        for (&start, page) in mapped {
            if let Some(range) = range_of(start) {
                held[range] += i128::from(page.end - start);
                lives[range] = Life { base: start.min(lives[range].base), gone: usize::MAX };
            }
        }
        for (index, entry) in self.entries() {
            let change = match entry.action {
                Action::SegmentMap => i128::from(entry.size),
                Action::SegmentUnmap => -i128::from(entry.size),
                _ => continue,
            };
            let Some(range) = range_of(entry.address.0) else { continue };
            let life = &mut lives[range];
            if life.gone < index {
                continue;
            }
            life.base = life.base.min(entry.address.0);
            held[range] += change;
            if held[range] <= 0 {
                life.gone = index.max(1);
            }
        }
        lives
    }

    /// Small or large, by what was allocated in each range before it was gone, or else by its pages.
    fn kinds_of(&self, ranges: &[(u64, u64)], lives: &[Life]) -> Vec<PoolKind> {
        let page = self.config.large_segment_size();
        let mut kinds = vec![(PoolKind::Large, false); ranges.len()];
        for (index, entry) in self.entries() {
            let at = entry.address.0;
            let range = ranges.partition_point(|&(base, _)| base <= at).checked_sub(1);
            let range = range.filter(|&range| at < ranges[range].1 && index <= lives[range].gone);
            let Some(range) = range else { continue };
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
}
