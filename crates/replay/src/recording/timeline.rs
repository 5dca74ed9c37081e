//! Which entries belong to the same block.
//!
//! A block's life in a history is `alloc`, `free_requested`, `free_completed`. A free that completes
//! in the very next entry was immediate; one that completes later waited for another stream, and
//! the entry where it completes tells when that was found out.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::{Action, Address, TraceEntry};

/// The lives of the blocks of a history.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// For each `free_requested`: where it completed, if it did.
    completion: FxHashMap<usize, usize>,
    /// For each `free_completed` that a free was waiting for: where that was requested.
    request: FxHashMap<usize, usize>,
    /// For each `alloc`: where it was freed, if it was.
    freed: FxHashMap<usize, usize>,
    /// The `alloc` of each block that is not freed by the end.
    live_at_end: FxHashMap<Address, usize>,
    /// `free_completed` entries that no free was waiting for, with the `alloc` that is live there.
    orphans: FxHashMap<usize, Option<usize>>,
    /// The last `free_requested` of an address at which nothing was live.
    needless_frees: FxHashMap<Address, usize>,
    /// `free_completed` entries inside a call, behind memory that it obtained or gave back.
    mid_call: FxHashSet<usize>,
    /// The entries that map pages.
    pub(crate) maps: Arc<[usize]>,
    /// Most bytes that the driver had given at any time.
    pub(crate) granted_peak: u64,
}

impl Timeline {
    /// The lives in a history before which the driver had given `granted` bytes.
    pub(crate) fn of(entries: &[TraceEntry], granted: u64) -> Self {
        let mut timeline = Self { granted_peak: granted, ..Self::default() };
        let mut live = FxHashMap::<Address, usize>::default();
        let mut open = FxHashMap::<Address, usize>::default();
        let mut granted = granted;
        let mut inside = false;
        for (index, entry) in entries.iter().enumerate() {
            match entry.action {
                Action::FreeCompleted if inside => drop(timeline.mid_call.insert(index)),
                Action::FreeCompleted => {}
                Action::SegmentAlloc
                | Action::SegmentFree
                | Action::SegmentMap
                | Action::SegmentUnmap => inside = true,
                _ => inside = false,
            }
            match entry.action {
                Action::Alloc => {
                    live.insert(entry.address, index);
                    open.remove(&entry.address);
                }
                Action::FreeRequested => {
                    match live.remove(&entry.address) {
                        Some(alloc) => drop(timeline.freed.insert(alloc, index)),
                        None => drop(timeline.needless_frees.insert(entry.address, index)),
                    }
                    open.insert(entry.address, index);
                }
                Action::FreeCompleted => match open.remove(&entry.address) {
                    Some(request) => {
                        timeline.completion.insert(request, index);
                        timeline.request.insert(index, request);
                    }
                    None => {
                        let block = live.get(&entry.address).copied();
                        timeline.orphans.insert(index, block);
                    }
                },
                Action::SegmentAlloc => {
                    granted = granted.saturating_add(entry.size);
                }
                Action::SegmentFree => {
                    granted = granted.saturating_sub(entry.size);
                }
                Action::SegmentMap => granted = granted.saturating_add(entry.size),
                Action::SegmentUnmap => granted = granted.saturating_sub(entry.size),
                Action::Snapshot | Action::Oom | Action::Annotate => {}
            }
            timeline.granted_peak = timeline.granted_peak.max(granted);
        }
        timeline.live_at_end = live;
        let maps = entries.iter().enumerate().filter(|(_, it)| it.action == Action::SegmentMap);
        timeline.maps = maps.map(|(index, _)| index).collect();
        timeline
    }

    /// Where the free that was requested at `index` completed.
    pub(crate) fn completion(&self, index: usize) -> Option<usize> {
        self.completion.get(&index).copied()
    }

    /// Whether a free completes at `index` while a call is being served that has already obtained or
    /// given back memory.
    pub(crate) fn completes_mid_call(&self, index: usize) -> bool {
        self.mid_call.contains(&index)
    }

    /// Where the block that was allocated at `index` was freed.
    pub(crate) fn freed(&self, index: usize) -> Option<usize> {
        self.freed.get(&index).copied()
    }

    /// The free that completes at `index`.
    pub(crate) fn request_of(&self, index: usize) -> Option<usize> {
        self.request.get(&index).copied()
    }

    /// Whether the block that was allocated at `index` is never freed.
    pub(crate) fn is_live_at_end(&self, index: usize, address: Address) -> bool {
        self.live_at_end.get(&address) == Some(&index)
    }

    /// Whether the entry completes the free of a live block that nobody ever frees.
    pub(crate) fn completes_without_free(&self, index: usize) -> bool {
        let block = self.orphans.get(&index).copied().flatten();
        block.is_some_and(|alloc| self.freed(alloc).is_none())
    }

    /// Whether the block that is freed at `index` is in use later all the same: freed once more, or
    /// among those `in_use` at the end.
    pub(crate) fn lives_on(&self, index: usize, address: Address, in_use: bool) -> bool {
        let freed_again = self.needless_frees.get(&address).is_some_and(|&last| last > index);
        freed_again || (in_use && !self.live_at_end.contains_key(&address))
    }
}
