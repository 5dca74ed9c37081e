//! What a history and its end tell of memory as a whole: how much the driver had given, and where
//! expandable ranges lie.
//!
//! In: the entries of a history and the segments at its end. Out: sums and intervals of addresses; what
//! lies inside them is the business of others.

use std::collections::BTreeMap;

use tonnage_engine::Config;
use tonnage_engine::config::Reserve;
use tonnage_events::{Action, PoolId, PoolKind, SnapshotSegment, StreamId, TraceEntry};
use tonnage_snapshot::EntryPools;

/// How far the expandable ranges of a recording reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Farther than all memory that the device has: the default.
    WholeDevice,
    /// So many bytes, rounded up to whole pages, or less.
    Bytes(u64),
    /// Less than all memory, perhaps: a share of a device whose total nobody knows, or by classes of streams, which are
    /// not in the file.
    Unknown,
}

impl Reach {
    /// What settings say, for a device of `total` bytes, if that is known.
    pub(super) fn of(config: &Config, total: Option<u64>) -> Self {
        let by_class = !config.expandable_segments_reserve_by_class().is_empty();
        match (config.expandable_segments_reserve(), total) {
            _ if by_class => Self::Unknown,
            (None, _) => Self::WholeDevice,
            (Some(reserve @ Reserve::Gib(_)), _) => Self::Bytes(reserve.bytes(0)),
            (Some(reserve), Some(total)) => Self::Bytes(reserve.bytes(total)),
            (Some(_), None) => Self::Unknown,
        }
    }

    /// Bytes of a range that consists of such pages, at most.
    fn bytes(self, page: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.checked_next_multiple_of(page).unwrap_or(u64::MAX),
            Self::WholeDevice | Self::Unknown => u64::MAX,
        }
    }
}

/// What all pages of a range have in common.
type Owner = (StreamId, PoolId, PoolKind);

/// The expandable ranges of a history where settings make them smaller than the device, as [`ranges_of`] has them. These
/// may lie side by side: pages of one range are of one stream and pool, lie no farther apart than all memory there ever
/// was, and within what a range reaches.
pub(super) fn reserved_ranges_of(
    entries: &[TraceEntry],
    from: usize,
    at_end: &[SnapshotSegment],
    told: EntryPools<'_>,
    reach: Reach,
    config: &Config,
) -> Vec<(u64, u64)> {
    let page = config.large_segment_size();
    let mut granted = Granted::of(at_end);
    let mut mentioned: Vec<(u64, u64, Owner)> = Vec::new();
    let mut mention = |at: u64, size: u64, owner| {
        mentioned.extend(at.checked_add(size).filter(|&end| end > at).map(|end| (at, end, owner)));
    };
    for (index, entry) in entries.iter().enumerate().skip(from) {
        granted.pass(entry);
        if matches!(entry.action, Action::SegmentMap | Action::SegmentUnmap) {
            let large = entry.size.is_multiple_of(page);
            let kind = if large { PoolKind::Large } else { PoolKind::Small };
            let pool = told.get(index).unwrap_or_default();
            mention(entry.address.0, entry.size, (entry.stream, pool, kind));
        }
    }
    for run in at_end.iter().filter(|run| run.expandable) {
        mention(run.address.0, run.total_size, (run.stream, run.pool, run.kind));
    }
    mentioned.sort_unstable_by_key(|&(at, end, (stream, pool, _))| (at, end, stream, pool));
    let mut ranges: Vec<(u64, u64, Owner)> = Vec::new();
    for (at, end, owner) in mentioned {
        if let Some((base, reached, of)) = ranges.last_mut() {
            let page = if of.2 == PoolKind::Large { page } else { SMALL_PAGE };
            let near =
                at.saturating_sub(*reached) <= granted.peak() && at - *base < reach.bytes(page);
            // The same addresses may have been of several ranges, one after the other.
            if at < *reached || (owner == *of && near) {
                *reached = end.max(*reached);
                continue;
            }
        }
        ranges.push((at, end, owner));
    }
    ranges.into_iter().map(|(base, end, _)| (base, end)).collect()
}

/// What small pools map at once. Large pools map more.
pub(super) const SMALL_PAGE: u64 = 2 << 20;

/// Bytes that the driver had given before the first entry.
pub(super) fn granted_before(entries: &[TraceEntry], at_end: &[SnapshotSegment]) -> u64 {
    let mut granted = Granted::of(at_end);
    entries.iter().for_each(|entry| granted.pass(entry));
    u64::try_from((granted.at_end - granted.change).max(0)).unwrap_or(u64::MAX)
}

/// Most bytes that the driver had given at once.
pub(super) fn most_granted(entries: &[TraceEntry], at_end: &[SnapshotSegment]) -> u64 {
    let mut granted = Granted::of(at_end);
    entries.iter().for_each(|entry| granted.pass(entry));
    granted.peak()
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
pub(super) struct Intervals {
    all: BTreeMap<u64, u64>,
}

impl Intervals {
    /// Adds an interval, and returns the parts of it that are new.
    pub(super) fn add(&mut self, start: u64, size: u64) -> Vec<(u64, u64)> {
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

    fn mapped(address: u64, size: u64, stream: u64) -> TraceEntry {
        let (action, stream) = (Action::SegmentMap, StreamId(stream));
        let address = tonnage_events::Address(address);
        TraceEntry { action, address, size, stream, time_us: 0, stack: None }
    }

    #[test]
    fn ranges_that_settings_make_small_are_told_apart_where_they_touch() {
        const MIB: u64 = 1 << 20;
        let release = tonnage_engine::Release::V2_15;
        let config = |conf: &str| Config::parse(conf, release).unwrap();
        // Three ranges of 100 MiB in a row: the first is full and goes on in the second, the third is of another stream.
        let entries = [
            mapped(0, 60 * MIB, 0),
            mapped(60 * MIB, 40 * MIB, 0),
            mapped(100 * MIB, 20 * MIB, 0),
            mapped(200 * MIB, 20 * MIB, 64),
        ];
        let reserve = "expandable_segments:True,expandable_segments_reserve:0.0625";
        for (conf, total, reach, bases) in [
            ("", None, Reach::WholeDevice, vec![0, 200]),
            (reserve, None, Reach::Unknown, vec![0, 200]),
            (reserve, Some(1600 * MIB), Reach::Bytes(100 * MIB), vec![0, 100, 200]),
            ("expandable_segments_reserve:1G", None, Reach::Bytes(1 << 30), vec![0, 200]),
            ("expandable_segments_reserve_by_class:[a:1G]", Some(1), Reach::Unknown, vec![0, 200]),
        ] {
            let config = config(conf);
            assert_eq!(Reach::of(&config, total), reach, "{conf}");
            let told = EntryPools::default();
            let ranges = match reach {
                Reach::WholeDevice => ranges_of(&entries, 0, &[]),
                reach => reserved_ranges_of(&entries, 0, &[], told, reach, &config),
            };
            let got: Vec<_> = ranges.iter().map(|&(base, _)| base / MIB).collect();
            assert_eq!(got, bases, "{conf}");
        }
    }

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
