//! Memory over the whole history, small enough to draw.
//!
//! In:  the levels after every entry, the iterations, the entries.
//! Out: a [`Timeline`]: at most [`COLUMNS`] columns, each with the least and the most of its entries, so
//!      that no peak is lost however long the history is.

use tonnage_events::Action;

use super::iterations::Iterations;
use crate::device_view::DeviceView;
use crate::levels::{Level, Levels};

/// The most columns: about one for each dot of a wide page.
const COLUMNS: usize = 960;

/// Memory over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Entries, all columns together.
    pub events: usize,
    /// From the first entry to the last, in microseconds; none if not known.
    pub lasted_us: Option<u64>,
    /// The columns, in order; none without a history.
    pub columns: Vec<Column>,
    /// First entries of iterations, at most one for each column.
    pub iterations: Vec<usize>,
    /// Failed requests, at most one for each column.
    pub failed: Vec<usize>,
}

/// Consecutive entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The first of them.
    pub event: usize,
    /// Allocated bytes after each of them.
    pub allocated: Span,
    /// Reserved bytes after each of them.
    pub reserved: Span,
}

/// The least and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Span {
    fn of(levels: &[Level], value: impl Fn(&Level) -> u64) -> Self {
        let nothing = Self { least: u64::MAX, most: 0 };
        levels.iter().map(value).fold(nothing, |span, bytes| Self {
            least: span.least.min(bytes),
            most: span.most.max(bytes),
        })
    }
}

impl Timeline {
    pub(super) fn of(
        device: &DeviceView<'_>,
        levels: &Levels,
        iterations: Option<&Iterations>,
    ) -> Self {
        let entries = device.entries;
        let wide = entries.len().div_ceil(COLUMNS).max(1);
        let columns = levels.after().chunks(wide).enumerate().map(|(place, levels)| Column {
            event: place * wide,
            allocated: Span::of(levels, |it| it.allocated),
            reserved: Span::of(levels, |it| it.reserved),
        });
        let one_each = |mut events: Vec<usize>| {
            events.dedup_by_key(|event| *event / wide);
            events
        };
        let starts = iterations.map_or(&[][..], |it| &it.ranges);
        let failed = entries.iter().enumerate().filter(|(_, it)| it.action == Action::Oom);
        let lasted = || {
            let (first, last) = (entries.first()?.time_us, entries.last()?.time_us);
            (first > 0).then(|| last.checked_sub(first))?
        };
        Self {
            events: entries.len(),
            lasted_us: lasted(),
            columns: columns.collect(),
            iterations: one_each(starts.iter().map(|it| it.start).collect()),
            failed: one_each(failed.map(|(event, _)| event).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Address, StreamId, TraceEntry};
    use tonnage_snapshot::SnapshotFile;

    use super::*;
    use crate::devices;
    use crate::lifetimes::Lifetimes;

    /// Allocations of these sizes, each freed at once, and a failed request.
    fn timeline(sizes: impl Iterator<Item = u64>) -> Timeline {
        let entry = |action, size| TraceEntry {
            action,
            address: Address(0x1000),
            size,
            stream: StreamId::DEFAULT,
            time_us: 7,
            stack: None,
        };
        let mut entries = vec![entry(Action::Oom, 512)];
        for size in sizes {
            entries.push(entry(Action::Alloc, size));
            entries.push(entry(Action::FreeRequested, size));
            entries.push(entry(Action::FreeCompleted, size));
        }
        let file = SnapshotFile { traces: vec![entries], ..SnapshotFile::default() };
        let device = &devices(&file)[0];
        let levels = Levels::of(device, &Lifetimes::of(device));
        Timeline::of(device, &levels, None)
    }

    #[test]
    fn a_short_history_has_a_column_for_each_entry() {
        let timeline = timeline([512, 1024].into_iter());
        let most: Vec<_> = timeline.columns.iter().map(|it| it.allocated.most).collect();
        assert_eq!(most, [0, 512, 0, 0, 1024, 0, 0]);
        assert_eq!(timeline.failed, [0]);
        assert_eq!(timeline.lasted_us, Some(0));
    }

    #[test]
    fn a_peak_of_one_entry_is_seen_in_a_long_history() {
        let long = timeline((0..100_000).map(|it| if it == 77_777 { 1 << 20 } else { 512 }));
        assert!(long.columns.len() <= COLUMNS);
        let most = long.columns.iter().map(|it| it.allocated.most).max();
        assert_eq!(most, Some(1 << 20));
        assert!(long.columns.iter().all(|it| it.allocated.least == 0));
    }
}
