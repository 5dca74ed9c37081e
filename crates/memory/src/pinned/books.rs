//! The pinned memory of a device that is in nobody's hands, and the figures.

use std::collections::BTreeMap;
use std::mem::{self, ManuallyDrop};

use crate::pinned::pending::Pending;
use crate::pinned::span::{Class, Span};
use crate::pinned::stats::PinnedStats;
use crate::sync::{Mutex, lock};
use crate::waiting::Events;

/// The pinned memory of a device that is in nobody's hands. It belongs to what the device's handles
/// share, not to the allocator's: so it goes with the device, and a block can do without the
/// allocator.
#[derive(Default)]
pub(crate) struct PinnedPool {
    pub(super) books: Mutex<Books>,
}

impl PinnedPool {
    /// The end, before the device's own: ordinary memory goes once nothing uses it. The driver's
    /// goes with the device, which waits for its work.
    pub(crate) fn close(&mut self, events: &mut Events<'_>) {
        let pending = mem::take(&mut lock(&self.books).pending);
        for mut waiting in pending {
            if !waiting.span.is_the_drivers() && waiting.wait(events) {
                drop(ManuallyDrop::into_inner(waiting.span));
            }
        }
    }
}

/// *Pending spans' sizes = `stats.pending`, except while some are asked; free ones' = cached.*
#[derive(Default)]
pub(super) struct Books {
    /// By size, the last one put at the end.
    free: BTreeMap<usize, Vec<Span>>,
    pub(super) pending: Vec<Pending>,
    pub(super) stats: PinnedStats,
}

impl Books {
    pub(super) fn take(&mut self, class: Class) -> Option<Span> {
        let span = self.free.get_mut(&class.size())?.pop()?;
        self.stats.hits += 1;
        self.hand_out(class);
        Some(span)
    }

    /// Counts a span that was obtained, and is handed out at once. If the sum is more than can be counted, nothing
    /// changes, and it says so. The other figures are parts of this sum.
    #[must_use]
    pub(super) fn add(&mut self, class: Class) -> bool {
        let size = class.size() as u64;
        if self.stats.reserved.current.checked_add(size).is_none() {
            return false;
        }
        self.stats.reserved.rise(size);
        self.hand_out(class);
        true
    }

    fn hand_out(&mut self, class: Class) {
        self.stats.allocations += 1;
        self.stats.in_use.rise(class.size() as u64);
    }

    pub(super) fn put(&mut self, span: Span) {
        self.free.entry(span.capacity()).or_default().push(span);
    }

    pub(super) fn take_cached(&mut self) -> Vec<Span> {
        mem::take(&mut self.free).into_values().flatten().collect()
    }

    /// Takes a dropped block's memory.
    pub(super) fn free(&mut self, waiting: Pending) {
        self.stats.in_use.fall(waiting.span.size());
        self.stats.pending += waiting.span.size();
        self.sort(waiting);
    }

    /// Caches what waits for nothing any more, and keeps the rest pending.
    pub(super) fn sort(&mut self, waiting: Pending) {
        if waiting.marks.is_empty() {
            self.stats.pending -= waiting.span.size();
            self.put(ManuallyDrop::into_inner(waiting.span));
        } else {
            self.pending.push(waiting);
        }
    }
}
