//! Which entries belong to the same block.
//!
//! A block's life in a history is `alloc`, `free_requested`, `free_completed`. A free that completes
//! in the very next entry was immediate; one that completes later waited for another stream, and
//! the entry where it completes tells when that was found out.

use rustc_hash::FxHashMap;
use tonnage_events::{Action, Address, TraceEntry};

/// The lives of the blocks of a history.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// For each `free_requested`: where it completed, if it did.
    completion: FxHashMap<usize, usize>,
    /// For each `alloc`: where it was freed, if it was.
    freed: FxHashMap<usize, usize>,
    /// Most bytes that the driver had given at any time.
    pub(crate) granted_peak: u64,
    /// Whether entries speak of memory that no earlier entry obtained.
    pub(crate) partial: bool,
}

impl Timeline {
    pub(crate) fn of(entries: &[TraceEntry]) -> Self {
        let mut timeline = Self::default();
        let mut live = FxHashMap::<Address, usize>::default();
        let mut open = FxHashMap::<Address, usize>::default();
        let mut segments = FxHashMap::<Address, u64>::default();
        let mut granted = 0_u64;
        for (index, entry) in entries.iter().enumerate() {
            match entry.action {
                Action::Alloc => {
                    live.insert(entry.address, index);
                    open.remove(&entry.address);
                }
                Action::FreeRequested => {
                    match live.remove(&entry.address) {
                        Some(alloc) => drop(timeline.freed.insert(alloc, index)),
                        None => timeline.partial = true,
                    }
                    open.insert(entry.address, index);
                }
                Action::FreeCompleted => {
                    if let Some(request) = open.remove(&entry.address) {
                        timeline.completion.insert(request, index);
                    }
                }
                Action::SegmentAlloc => {
                    segments.insert(entry.address, entry.size);
                    granted = granted.saturating_add(entry.size);
                }
                Action::SegmentFree => {
                    timeline.partial |= segments.remove(&entry.address).is_none();
                    granted = granted.saturating_sub(entry.size);
                }
                Action::SegmentMap => granted = granted.saturating_add(entry.size),
                Action::SegmentUnmap => granted = granted.saturating_sub(entry.size),
                Action::Snapshot | Action::Oom => {}
            }
            timeline.granted_peak = timeline.granted_peak.max(granted);
        }
        timeline
    }

    /// Where the free that was requested at `index` completed.
    pub(crate) fn completion(&self, index: usize) -> Option<usize> {
        self.completion.get(&index).copied()
    }

    /// Where the block that was allocated at `index` was freed.
    pub(crate) fn freed(&self, index: usize) -> Option<usize> {
        self.freed.get(&index).copied()
    }
}
