//! Pinned memory: the host's, which devices copy from and to without its moving.
//!
//! In:  a [`SnapshotFile`].
//! Out: a [`PinnedInspection`]: totals of its own, never part of a device's.
//!
//! The host's allocator cuts nothing and joins nothing: a segment is a block, and its entries have the size of
//! blocks. So the levels follow from the entries alone.

use std::collections::HashMap;

use serde::Serialize;
use tonnage_events::{Action, BlockState, SnapshotSegment};
use tonnage_snapshot::{Pinned, SnapshotFile};

use crate::call_site::CallSites;
use crate::total_bytes::TotalBytes;

/// Lines that are told. Chosen: more than a program has that pin memory.
const MOST_LINES: usize = 10;

/// What is in a file about pinned memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinnedInspection {
    /// Entries of its history.
    pub events: usize,
    /// Blocks when the snapshot was taken, cached ones too.
    pub segments: usize,
    /// Bytes that are pinned.
    pub reserved: u64,
    /// Of these, bytes of blocks handed out.
    pub allocated: u64,
    /// Bytes of blocks handed out, or freed but in use by a stream.
    pub active: u64,
    /// Bytes that are free and stay pinned.
    pub cached: u64,
    /// Most bytes pinned within the history; none without one.
    pub reserved_peak: Option<u64>,
    /// Most bytes handed out within the history.
    pub allocated_peak: Option<u64>,
    /// The entry after which they first were; 0 if the history begins with them.
    pub allocated_peak_event: Option<usize>,
    /// Who held what was handed out when the snapshot was taken, largest first.
    pub lines: Vec<PinnedLine>,
}

/// A line of the program that holds pinned memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinnedLine {
    /// `file:line function`; none if it was not recorded.
    pub line: Option<String>,
    /// Blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl PinnedInspection {
    /// Looks at a file's pinned memory; none where the file speaks of none, or nothing was ever pinned.
    #[must_use]
    pub fn of(file: &SnapshotFile) -> Option<Self> {
        let Pinned { segments, trace } = file.pinned.as_ref()?;
        if segments.is_empty() && trace.is_empty() {
            return None;
        }
        let sum = |of: fn(&SnapshotSegment) -> u64| segments.iter().map(of).total_bytes();
        let (reserved, allocated) = (sum(|it| it.total_size), sum(|it| it.allocated_size));
        let active = sum(|it| it.active_size);
        let [reserved_peak, allocated_peak] = peaks(file, [reserved, allocated]);
        Some(Self {
            events: trace.len(),
            segments: segments.len(),
            reserved,
            allocated,
            active,
            cached: reserved.saturating_sub(active),
            reserved_peak: reserved_peak.map(|(bytes, _)| bytes),
            allocated_peak: allocated_peak.map(|(bytes, _)| bytes),
            allocated_peak_event: allocated_peak.map(|(_, event)| event),
            lines: lines(file, segments),
        })
    }
}

/// The peaks of what is pinned and what is handed out, with the entry of each, given what they are at the end.
fn peaks(file: &SnapshotFile, end: [u64; 2]) -> [Option<(u64, usize)>; 2] {
    let trace = file.pinned.as_ref().map_or(&[][..], |pinned| &pinned.trace);
    let changes = trace.iter().map(|entry| {
        let size = i64::try_from(entry.size).unwrap_or(i64::MAX);
        match entry.action {
            Action::SegmentAlloc => [size, 0],
            Action::SegmentFree => [-size, 0],
            Action::Alloc => [0, size],
            Action::FreeRequested => [0, -size],
            _ => [0, 0],
        }
    });
    [0, 1].map(|which| {
        // What is there at the end, less what came on the way, was there at the beginning.
        let end = i64::try_from(end[which]).unwrap_or(i64::MAX);
        let gained = changes.clone().fold(0_i64, |sum, it| sum.saturating_add(it[which]));
        let mut level = end.saturating_sub(gained).max(0);
        let mut peak = (level, 0);
        for (event, change) in changes.clone().enumerate() {
            level = level.saturating_add(change[which]);
            if level > peak.0 {
                peak = (level, event);
            }
        }
        (!trace.is_empty()).then_some((u64::try_from(peak.0).unwrap_or(0), peak.1))
    })
}

fn lines(file: &SnapshotFile, segments: &[SnapshotSegment]) -> Vec<PinnedLine> {
    let mut sites = CallSites::new(&file.stacks);
    let mut held = HashMap::<_, (usize, u64)>::new();
    let blocks = segments.iter().flat_map(|it| &it.blocks);
    for block in blocks.filter(|it| it.state == BlockState::ActiveAllocated) {
        let (blocks, bytes) = held.entry(sites.get(block.stack)).or_default();
        *blocks += 1;
        *bytes = bytes.saturating_add(block.size);
    }
    let lines = held.into_iter().map(|(line, (blocks, bytes))| PinnedLine {
        line: line.map(|line| line.to_string()),
        blocks,
        bytes,
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort_by(|a, b| (b.bytes, &a.line).cmp(&(a.bytes, &b.line)));
    lines.truncate(MOST_LINES);
    lines
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Address, StreamId, TraceEntry};

    use super::*;

    fn form(name: &str) -> SnapshotFile {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/snapshots");
        tonnage_snapshot::open(format!("{folder}/{name}.pickle").as_ref()).unwrap()
    }

    #[test]
    fn totals_and_peaks_are_those_of_the_host_alone() {
        let file = form("release_2_14.p4");
        let found = PinnedInspection::of(&file).unwrap();
        let four = 4 << 20;
        assert_eq!((found.events, found.segments), (9, 3));
        assert_eq!((found.reserved, found.allocated, found.active), (four + 1536, 512, 1536));
        assert_eq!(found.cached, four);
        assert_eq!(
            (found.reserved_peak, found.allocated_peak),
            (Some(four + 1536), Some(four + 512))
        );
        assert_eq!(found.allocated_peak_event, Some(3));
        let lines: Vec<_> = found.lines.iter().map(|it| (it.line.as_deref(), it.bytes)).collect();
        assert_eq!(lines, [(Some("/src/inner.py:3 inner"), 512)]);
        let device = &crate::Inspection::of(&file).devices;
        assert_eq!((device.len(), device[0].reserved), (1, 22 << 20));
    }

    #[test]
    fn files_that_do_not_speak_of_it_have_none() {
        assert_eq!(PinnedInspection::of(&form("release_2_13.p4")), None);
        let mut file = form("release_2_14.p4");
        file.pinned = Some(Pinned::default());
        assert_eq!(PinnedInspection::of(&file), None);
    }

    #[test]
    fn a_history_that_begins_later_begins_with_what_was_there() {
        let mut file = form("release_2_14.p4");
        file.pinned.as_mut().unwrap().trace.drain(..5);
        let found = PinnedInspection::of(&file).unwrap();
        assert_eq!(found.allocated_peak, Some(512 + 1024));
        assert_eq!(found.reserved_peak, Some((4 << 20) + 1536));
    }

    #[test]
    fn sizes_beyond_all_memory_are_harmless() {
        let mut file = form("release_2_14.p4");
        let pinned = file.pinned.as_mut().unwrap();
        let actions =
            [Action::Alloc, Action::SegmentAlloc, Action::FreeRequested, Action::SegmentFree];
        pinned.trace = actions
            .into_iter()
            .cycle()
            .take(40)
            .map(|action| TraceEntry {
                action,
                address: Address(u64::MAX),
                size: u64::MAX,
                stream: StreamId(0),
                time_us: 0,
                stack: None,
            })
            .collect();
        for segment in &mut pinned.segments {
            segment.total_size = u64::MAX;
        }
        let found = PinnedInspection::of(&file).unwrap();
        assert_eq!(found.reserved, u64::MAX);
        assert!(found.allocated_peak.is_some());
    }
}
