//! Memory obtained from the device, and when it was there.
//!
//! In:  a device's entries, its segments at the end.
//! Out: [`Extents`]: fixed segments, and parts of expandable ones that were mapped at once and unmapped at
//!      once. At every moment those that are there do not overlap, and their sum is what is reserved.
//!
//! A mapping of which only a part is unmapped becomes several extents from its beginning on, so that each
//! extent is there without interruption: a block that is active lies in the same one all the time.

use std::collections::BTreeMap;

use tonnage_analysis::{DeviceView, Levels};
use tonnage_events::{Action, PoolId, PoolKind, SnapshotSegment, StreamId, TraceEntry};
use tonnage_replay::recording::rebuild_start;

use super::moment_after;

/// Segments of small pools have this size; those of large pools are larger.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Memory that came and went as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) address: u64,
    /// Where it ends, exclusive.
    pub(super) to: u64,
    /// The first moment at which it is there, and the first at which it no longer is.
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) stream: StreamId,
    pub(super) kind: PoolKind,
    pub(super) pool: PoolId,
    expandable: bool,
}

/// All of a history, by the moment where they begin, then by address.
pub(super) struct Extents {
    pub(super) rows: Vec<Extent>,
}

impl Extents {
    pub(super) fn of(device: &DeviceView<'_>, levels: &Levels) -> Self {
        let never = moment_after(device);
        let mut gathering = Gathering { never, ..Gathering::default() };
        if device.entries.is_empty() {
            device.segments.iter().for_each(|segment| gathering.there_before(segment));
        } else if levels.start.reserved > 0 {
            let start = rebuild_start(device.file, device.device.0 as usize);
            start.iter().for_each(|segment| gathering.there_before(segment));
        }
        for (now, entry) in (1..).zip(device.entries) {
            gathering.entry(now, entry);
        }
        let mut rows = gathering.rows;
        for row in &mut rows {
            row.learn(device, never);
        }
        rows.sort_by_key(|row| (row.begin, row.address));
        Self { rows }
    }

    /// For each of these addresses, in the order of their moments, the row of the extent that it lies in
    /// then, plus one; 0 if none does.
    pub(super) fn holding(&self, places: impl Iterator<Item = (u32, u64)>) -> Vec<u32> {
        let mut changes: Vec<(u32, bool, u32)> = Vec::with_capacity(2 * self.rows.len());
        for (number, row) in (0..).zip(&self.rows) {
            changes.push((row.begin, true, number));
            changes.push((row.end, false, number));
        }
        // What ends makes room for what begins.
        changes.sort_unstable();
        let mut changes = changes.into_iter().peekable();
        let mut there = BTreeMap::<u64, u32>::new();
        let held = places.map(|(moment, address)| {
            while let Some((_, begins, number)) = changes.next_if(|it| it.0 <= moment) {
                let start = self.rows[number as usize].address;
                if begins {
                    there.insert(start, number);
                } else if there.get(&start) == Some(&number) {
                    there.remove(&start);
                }
            }
            let below = there.range(..=address).next_back().map(|(_, &number)| number);
            below.filter(|&it| address < self.rows[it as usize].to).map_or(0, |number| number + 1)
        });
        held.collect()
    }
}

impl Extent {
    /// Takes from the segments at the end what entries do not say. The range of an expandable segment stays
    /// its own while pages come and go.
    fn learn(&mut self, device: &DeviceView<'_>, never: u32) {
        if !self.expandable && self.end != never {
            return;
        }
        let place = device.segments.partition_point(|it| it.address.0 <= self.address);
        let Some(known) = place.checked_sub(1).map(|place| device.segments[place]) else { return };
        let inside = self.address - known.address.0 < known.total_size;
        if inside && known.expandable == self.expandable {
            (self.kind, self.pool) = (known.kind, known.pool);
        }
    }
}

/// The pass over the entries.
#[derive(Default)]
struct Gathering {
    rows: Vec<Extent>,
    /// The rows that are there, by where each begins.
    there: BTreeMap<u64, usize>,
    never: u32,
}

impl Gathering {
    fn there_before(&mut self, segment: &SnapshotSegment) {
        let address = segment.address.0;
        self.add(Extent {
            address,
            to: address.saturating_add(segment.total_size),
            begin: 0,
            end: self.never,
            stream: segment.stream,
            kind: segment.kind,
            pool: segment.pool,
            expandable: segment.expandable,
        });
    }

    fn entry(&mut self, now: u32, entry: &TraceEntry) {
        let (address, to) = (entry.address.0, entry.address.0.saturating_add(entry.size));
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                let small = entry.size <= SMALL_SEGMENT;
                self.add(Extent {
                    address,
                    to,
                    begin: now,
                    end: self.never,
                    stream: entry.stream,
                    kind: if small { PoolKind::Small } else { PoolKind::Large },
                    pool: PoolId::DEFAULT,
                    expandable: entry.action == Action::SegmentMap,
                });
            }
            Action::SegmentFree | Action::SegmentUnmap => self.end(now, address, to),
            _ => {}
        }
    }

    fn add(&mut self, extent: Extent) {
        if extent.address >= extent.to {
            return;
        }
        let row = self.rows.len();
        self.rows.push(extent);
        if let Some(lost) = self.there.insert(extent.address, row) {
            // Its end is not among the entries, but it lies behind.
            self.rows[lost].end = extent.begin;
        }
    }

    /// What lies in this range goes.
    fn end(&mut self, now: u32, from: u64, to: u64) {
        if from >= to {
            return;
        }
        self.cut(from);
        self.cut(to);
        while let Some((&address, &row)) = self.there.range(from..to).next() {
            self.rows[row].end = now;
            self.there.remove(&address);
        }
    }

    /// Makes two of the extent that has this address inside.
    fn cut(&mut self, at: u64) {
        let Some((_, &row)) = self.there.range(..at).next_back() else { return };
        let whole = self.rows[row];
        if whole.to <= at {
            return;
        }
        self.rows[row].to = at;
        self.there.insert(at, self.rows.len());
        self.rows.push(Extent { address: at, ..whole });
    }
}

#[cfg(test)]
mod tests {
    use tonnage_analysis::{Lifetimes, devices};
    use tonnage_events::Address;
    use tonnage_snapshot::SnapshotFile;

    use super::*;

    fn extents(entries: &[(Action, u64, u64)]) -> Vec<(u64, u64, u32, u32)> {
        let entry = |&(action, address, size): &(Action, u64, u64)| TraceEntry {
            action,
            address: Address(address),
            size,
            stream: StreamId::DEFAULT,
            time_us: 0,
            stack: None,
        };
        let traces = vec![entries.iter().map(entry).collect()];
        let file = SnapshotFile { traces, ..SnapshotFile::default() };
        let device = &devices(&file)[0];
        let levels = Levels::of(device, &Lifetimes::of(device));
        let rows = Extents::of(device, &levels).rows;
        rows.iter().map(|it| (it.address, it.to, it.begin, it.end)).collect()
    }

    #[test]
    fn a_mapping_that_goes_in_parts_is_parts_from_its_beginning() {
        use Action::{SegmentMap, SegmentUnmap};
        let found = extents(&[
            (SegmentMap, 100, 60),
            (SegmentMap, 160, 20),
            (SegmentUnmap, 120, 20),
            (SegmentUnmap, 150, 30),
        ]);
        assert_eq!(
            found,
            [
                (100, 120, 1, 5),
                (120, 140, 1, 3),
                (140, 150, 1, 5),
                (150, 160, 1, 4),
                (160, 180, 2, 4)
            ]
        );
    }

    #[test]
    fn entries_that_contradict_themselves_are_taken_as_far_as_they_go() {
        use Action::{SegmentAlloc, SegmentFree};
        let found = extents(&[
            (SegmentAlloc, 100, 50),
            (SegmentAlloc, 100, 20),
            (SegmentFree, 700, 10),
            (SegmentFree, u64::MAX, u64::MAX),
            (SegmentAlloc, 5, 0),
        ]);
        // What is given back was there before.
        assert_eq!(found, [(700, 710, 0, 3), (100, 150, 1, 2), (100, 120, 2, 6)]);
    }

    #[test]
    fn an_address_is_found_in_what_is_there_at_its_moment() {
        let row = |address, to, begin, end| Extent {
            address,
            to,
            begin,
            end,
            stream: StreamId::DEFAULT,
            kind: PoolKind::Small,
            pool: PoolId::DEFAULT,
            expandable: false,
        };
        let extents =
            Extents { rows: vec![row(100, 200, 0, 2), row(100, 150, 2, 9), row(300, 400, 3, 4)] };
        let places = [(0, 99), (1, 199), (2, 199), (2, 149), (3, 300), (4, 300), (8, 100)];
        assert_eq!(extents.holding(places.into_iter()), [0, 1, 0, 2, 3, 0, 2]);
    }
}
