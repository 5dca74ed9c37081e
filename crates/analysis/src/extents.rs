//! Memory obtained from the device, and when it was there.
//!
//! In:  a device's entries, its segments at the end, the state before the first entry.
//! Out: [`Extents`]: fixed segments, and parts of expandable ones that were mapped at once and unmapped at once. At every
//!      moment those that are there do not overlap, and their sum is what is reserved.
//!
//! A mapping of which only a part is unmapped becomes several extents from its beginning on, so that each extent is there
//! without interruption: a block that is active lies in the same one all the time. What the state of a moment calls a
//! segment is one or several extents that touch ([`Extents::at`]).
//!
//! This is the one place where entries become memory at a moment. It begins with the state that a replay begins with
//! ([`rebuild_start`]); blocks are [`Lifetimes`](crate::Lifetimes), laid into segments by
//! [`SnapshotSegment::tile`].

use std::collections::BTreeMap;

use tonnage_events::{
    Action, Address, PoolId, PoolKind, SnapshotSegment, StackId, StreamId, TraceEntry,
};
use tonnage_replay::recording::rebuild_start;
use tonnage_snapshot::EntryPools;

use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::Moment;

/// Segments of small pools have this size; those of large pools are larger.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Memory that came and went as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub address: u64,
    /// Where it ends, exclusive.
    pub to: u64,
    /// When it was obtained.
    pub begin: Moment,
    /// When it went back: from then on it is there no more.
    pub end: Moment,
    /// The stream its blocks belong to.
    pub stream: StreamId,
    /// Small or large.
    pub kind: PoolKind,
    /// The pool that owns it; none if the file does not tell.
    pub pool: Option<PoolId>,
    /// Whether it is part of a segment that can grow in place.
    pub expandable: bool,
    /// Who obtained it, if recorded.
    pub stack: Option<StackId>,
    /// The same for those that were obtained as one.
    origin: usize,
}

impl Extent {
    /// Whether it is there once what happens at `moment` has happened.
    #[must_use]
    pub fn is_there_after(&self, moment: Moment) -> bool {
        self.begin <= moment && moment < self.end
    }

    /// Takes from the segments at the end what entries do not say. The range of an expandable segment stays its own while
    /// pages come and go.
    fn learn(&mut self, device: &DeviceView<'_>) {
        if !self.expandable && self.end != Moment::After {
            return;
        }
        let place = device.segments.partition_point(|it| it.address.0 <= self.address);
        let Some(known) = place.checked_sub(1).map(|place| device.segments[place]) else { return };
        let inside = self.address - known.address.0 < known.total_size;
        if inside && known.expandable == self.expandable {
            (self.kind, self.pool) = (known.kind, Some(known.pool));
            self.stack = self.stack.or(known.stack);
        }
    }

    /// Whether the one right behind it is part of the same segment: obtained as one, or pages of one stream. What was there
    /// before the history is as the state before it says.
    fn goes_on_in(&self, next: &Self) -> bool {
        let pages = self.expandable && next.expandable && self.stream == next.stream;
        let before = self.begin == Moment::Before && next.begin == Moment::Before;
        self.to == next.address && (self.origin == next.origin || (pages && !before))
    }
}

/// All of a history, by when they begin, then by address.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    rows: Vec<Extent>,
}

impl Extents {
    /// Those of a device's history; without a history, its segments.
    #[must_use]
    pub fn of(device: &DeviceView<'_>, levels: &Levels) -> Self {
        let mut gathering = Gathering::default();
        if device.entries.is_empty() {
            device.segments.iter().for_each(|segment| gathering.there_before(segment));
        } else if levels.start.reserved > 0 {
            // A whole history begins with nothing, and then there is nothing to rebuild.
            let start = rebuild_start(device.file, device.device.0 as usize);
            start.iter().for_each(|segment| gathering.there_before(segment));
        }
        let pools = device.file.entry_pools(device.device);
        for (event, entry) in device.entries.iter().enumerate() {
            gathering.entry(event, entry, pools);
        }
        let mut rows = gathering.rows;
        for row in &mut rows {
            row.learn(device);
        }
        rows.sort_by_key(|row| (row.begin, row.address));
        Self { rows }
    }

    /// All of them.
    #[must_use]
    pub fn rows(&self) -> &[Extent] {
        &self.rows
    }

    /// The segments after what happens at `moment`, by ascending address, without blocks. `pool_of` says the pool of what an
    /// entry obtained, where the file does not.
    pub(crate) fn at(
        &self,
        moment: Moment,
        device: &DeviceView<'_>,
        pool_of: impl Fn(usize) -> PoolId,
    ) -> Vec<SnapshotSegment> {
        let mut there: Vec<&Extent> =
            self.rows.iter().filter(|it| it.is_there_after(moment)).collect();
        there.sort_by_key(|it| it.address);
        let mut segments: Vec<SnapshotSegment> = Vec::new();
        for (place, it) in there.iter().enumerate() {
            let below = place.checked_sub(1).map(|below| there[below]);
            if let Some(last) = segments.last_mut()
                && below.is_some_and(|below| below.goes_on_in(it))
            {
                last.total_size += it.to - it.address;
                last.stack = last.stack.or(it.stack);
                continue;
            }
            let told = || it.begin.event().map_or(PoolId::DEFAULT, &pool_of);
            segments.push(SnapshotSegment {
                device: device.device,
                address: Address(it.address),
                total_size: it.to - it.address,
                allocated_size: 0,
                active_size: 0,
                requested_size: 0,
                stream: it.stream,
                kind: it.kind,
                pool: it.pool.unwrap_or_else(told),
                expandable: it.expandable,
                stack: it.stack,
                blocks: Vec::new(),
            });
        }
        segments
    }
}

/// The pass over the entries.
#[derive(Default)]
struct Gathering {
    rows: Vec<Extent>,
    /// The rows that are there, by where each begins.
    there: BTreeMap<u64, usize>,
}

impl Gathering {
    fn there_before(&mut self, segment: &SnapshotSegment) {
        let address = segment.address.0;
        self.add(Extent {
            address,
            to: address.saturating_add(segment.total_size),
            begin: Moment::Before,
            end: Moment::After,
            stream: segment.stream,
            kind: segment.kind,
            pool: Some(segment.pool),
            expandable: segment.expandable,
            stack: segment.stack,
            origin: self.rows.len(),
        });
    }

    fn entry(&mut self, event: usize, entry: &TraceEntry, pools: EntryPools<'_>) {
        let (address, to) = (entry.address.0, entry.address.0.saturating_add(entry.size));
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                let small = entry.size <= SMALL_SEGMENT;
                self.add(Extent {
                    address,
                    to,
                    begin: Moment::Event(event),
                    end: Moment::After,
                    stream: entry.stream,
                    kind: if small { PoolKind::Small } else { PoolKind::Large },
                    pool: pools.get(event),
                    expandable: entry.action == Action::SegmentMap,
                    stack: entry.stack,
                    origin: self.rows.len(),
                });
            }
            Action::SegmentFree | Action::SegmentUnmap => self.end(event, address, to),
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
    fn end(&mut self, event: usize, from: u64, to: u64) {
        if from >= to {
            return;
        }
        self.cut(from);
        self.cut(to);
        while let Some((&address, &row)) = self.there.range(from..to).next() {
            self.rows[row].end = Moment::Event(event);
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
    use tonnage_snapshot::SnapshotFile;

    use super::*;
    use crate::{Lifetimes, devices};

    fn history(entries: &[(Action, u64, u64)]) -> SnapshotFile {
        let entry = |&(action, address, size): &(Action, u64, u64)| TraceEntry {
            action,
            address: Address(address),
            size,
            stream: StreamId::DEFAULT,
            time_us: 0,
            stack: None,
        };
        let traces = vec![entries.iter().map(entry).collect()];
        SnapshotFile { traces, ..SnapshotFile::default() }
    }

    fn extents(file: &SnapshotFile) -> Extents {
        let device = &devices(file)[0];
        Extents::of(device, &Levels::of(device, &Lifetimes::of(device)))
    }

    fn rows(file: &SnapshotFile) -> Vec<(u64, u64, Moment, Moment)> {
        extents(file).rows().iter().map(|it| (it.address, it.to, it.begin, it.end)).collect()
    }

    /// Where the segments of a moment begin and end.
    fn at(file: &SnapshotFile, moment: Moment) -> Vec<(u64, u64)> {
        let device = &devices(file)[0];
        let segments = extents(file).at(moment, device, |_| PoolId::DEFAULT);
        segments.iter().map(|it| (it.address.0, it.address.0 + it.total_size)).collect()
    }

    #[test]
    fn a_mapping_that_goes_in_parts_is_parts_from_its_beginning_and_one_segment_while_it_is_whole()
    {
        use Action::{SegmentMap, SegmentUnmap};
        use Moment::{After, Event};
        let file = history(&[
            (SegmentMap, 100, 60),
            (SegmentMap, 160, 20),
            (SegmentUnmap, 120, 20),
            (SegmentUnmap, 150, 30),
            (SegmentMap, 120, 20),
        ]);
        assert_eq!(
            rows(&file),
            [
                (100, 120, Event(0), After),
                (120, 140, Event(0), Event(2)),
                (140, 150, Event(0), After),
                (150, 160, Event(0), Event(3)),
                (160, 180, Event(1), Event(3)),
                (120, 140, Event(4), After),
            ]
        );
        assert_eq!(at(&file, Event(0)), [(100, 160)]);
        assert_eq!(at(&file, Event(1)), [(100, 180)]);
        assert_eq!(at(&file, Event(2)), [(100, 120), (140, 180)]);
        assert_eq!(at(&file, Event(3)), [(100, 120), (140, 150)]);
        assert_eq!(at(&file, Event(4)), [(100, 150)]);
    }

    #[test]
    fn the_pool_is_what_the_entry_says_and_else_not_known() {
        let mut file = history(&[
            (Action::SegmentAlloc, 100, 50),
            (Action::SegmentAlloc, 200, 50),
            (Action::SegmentFree, 100, 50),
        ]);
        let pools = |file: &SnapshotFile| -> Vec<_> {
            extents(file).rows().iter().map(|it| it.pool).collect()
        };
        assert_eq!(pools(&file), [None, None]);
        file.keys.pool_id = true;
        file.notes.push(tonnage_snapshot::EntryNote {
            device: tonnage_events::DeviceId(0),
            entry: 0,
            pool: PoolId(0, 7),
            user_metadata: "".into(),
            internal_metadata: None,
        });
        assert_eq!(pools(&file), [PoolId(0, 7), PoolId::DEFAULT].map(Some));
    }

    #[test]
    fn fixed_segments_that_touch_are_two() {
        use Action::{SegmentAlloc, SegmentFree};
        let file = history(&[
            (SegmentAlloc, 100, 50),
            (SegmentAlloc, 150, 50),
            (SegmentFree, 100, 50),
            (SegmentFree, 150, 50),
        ]);
        assert_eq!(at(&file, Moment::Event(1)), [(100, 150), (150, 200)]);
        assert_eq!(at(&file, Moment::Event(3)), []);
    }

    #[test]
    fn entries_that_contradict_themselves_are_taken_as_far_as_they_go() {
        use Action::{SegmentAlloc, SegmentFree};
        use Moment::{After, Before, Event};
        let file = history(&[
            (SegmentAlloc, 100, 50),
            (SegmentAlloc, 100, 20),
            (SegmentFree, 700, 10),
            (SegmentFree, u64::MAX, u64::MAX),
            (SegmentAlloc, 5, 0),
        ]);
        // What is given back was there before.
        assert_eq!(
            rows(&file),
            [
                (700, 710, Before, Event(2)),
                (100, 150, Event(0), Event(1)),
                (100, 120, Event(1), After)
            ]
        );
    }
}
