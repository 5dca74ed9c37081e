//! What a history and its end tell of memory as a whole: how much the driver had given, and where
//! expandable ranges lie.
//!
//! In: the entries of a history and the segments at its end. Out: sums and intervals of addresses; what
//! lies inside them is the business of others.

use std::collections::BTreeMap;

use tonnage_events::{Action, SnapshotSegment, TraceEntry};

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
