//! Entries that are not there though others say that they were.
//!
//! In: a history with the state before and after it. Out: the blocks whose lives have a gap, with the entries
//! between which the missing one lay. A replay finds a gap only where its effect shows: a block that was
//! never handed out stays free until a request would take it. So where a replay parts, this says what to
//! look for before.

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::{Action, Address, BlockState, SnapshotSegment, TraceEntry};

use super::witness::PAGE_UNIT;
use crate::outcome::Difference;

/// What the lives of the blocks lack.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// The first free that nothing completes, though its block is not pending at the end.
    completion: Option<(usize, Address)>,
    /// The first block that is freed, or in use at the end, though nothing allocates it.
    alloc: Option<Gap>,
    /// The first fixed segment that is gone, though nothing gives it back, and the entry that obtained it.
    segment: Option<(usize, Address)>,
    /// Whether some free completes that nobody asked for: an entry that is wrong then, rather than missing.
    has_orphans: bool,
    /// Whether some free waited for another stream.
    has_waits: bool,
}

/// Where an `alloc` is missing.
#[derive(Clone, Copy, Debug)]
struct Gap {
    address: Address,
    /// The last entry at which the block was free for sure.
    after: Option<usize>,
    /// The entry that frees it; none if it is in use at the end.
    by: Option<usize>,
}

/// What is known of a block on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Allocated,
    /// Since a free at this entry, or since before the first one.
    Pending(Option<usize>),
    /// Since its free completed at this entry.
    Free(usize),
}

impl Missing {
    /// Follows every block from the segments at the start to those at the end.
    pub(super) fn of(
        entries: &[TraceEntry],
        start: &[SnapshotSegment],
        at_end: &[SnapshotSegment],
    ) -> Self {
        let mut missing = Self::default();
        let mut lives: FxHashMap<Address, Life> = FxHashMap::default();
        for block in start.iter().flat_map(|segment| &segment.blocks) {
            let life = match block.state {
                BlockState::ActiveAllocated => Life::Allocated,
                BlockState::ActivePendingFree => Life::Pending(None),
                BlockState::Inactive => continue,
            };
            lives.insert(block.address, life);
        }
        for (index, entry) in entries.iter().enumerate() {
            missing.follow(&mut lives, index, entry);
        }
        missing.compare_end(&lives, at_end);
        missing.segment = lost_segment(entries, at_end);
        missing
    }

    fn follow(&mut self, lives: &mut FxHashMap<Address, Life>, index: usize, entry: &TraceEntry) {
        let address = entry.address;
        let life = match entry.action {
            Action::Alloc => Life::Allocated,
            Action::FreeRequested => Life::Pending(Some(index)),
            Action::FreeCompleted => Life::Free(index),
            _ => return,
        };
        let before = lives.insert(address, life);
        match (before, life) {
            (Some(Life::Pending(Some(free))), Life::Allocated) => {
                self.lacks_completion(free, address)
            }
            (None | Some(Life::Free(_)), Life::Pending(_)) => {
                let after = match before {
                    Some(Life::Free(at)) => Some(at),
                    _ => None,
                };
                self.alloc.get_or_insert(Gap { address, after, by: Some(index) });
            }
            (Some(Life::Pending(Some(free))), Life::Free(_)) => self.has_waits |= free + 1 < index,
            (None | Some(Life::Allocated | Life::Free(_)), Life::Free(_)) => {
                self.has_orphans = true
            }
            _ => {}
        }
    }

    fn compare_end(&mut self, lives: &FxHashMap<Address, Life>, at_end: &[SnapshotSegment]) {
        let mut in_use = FxHashSet::default();
        for block in at_end.iter().flat_map(|segment| &segment.blocks) {
            if block.state == BlockState::Inactive {
                continue;
            }
            in_use.insert(block.address);
            let after = match lives.get(&block.address) {
                None => None,
                Some(&Life::Free(at)) => Some(at),
                Some(_) => continue,
            };
            self.alloc.get_or_insert(Gap { address: block.address, after, by: None });
        }
        for (&address, life) in lives {
            if let &Life::Pending(Some(free)) = life
                && !in_use.contains(&address)
            {
                self.lacks_completion(free, address);
            }
        }
    }

    fn lacks_completion(&mut self, free: usize, address: Address) {
        if self.completion.is_none_or(|(first, _)| free < first) {
            self.completion = Some((free, address));
        }
    }

    /// The difference where a `free_completed` is missing, if that is at or before the one that was found:
    /// right behind the free, where nearly all complete.
    pub(super) fn completion_before(
        &self,
        found: &Difference,
        entries: &[TraceEntry],
    ) -> Option<Difference> {
        let (free, address) = self.completion.filter(|_| !self.has_orphans)?;
        let event = free + 1;
        let expected = entries.get(event).map_or_else(|| "the end".to_owned(), ToString::to_string);
        let waited = if self.has_waits { ", here or later" } else { "" };
        let got = format!(
            "free_completed {address}{waited}: entry {free} frees it, and nothing completes that"
        );
        (event <= found.event).then_some(Difference { event, expected, got })
    }

    /// What is missing before the difference that was found, in words.
    pub(super) fn describe(&self, found: &Difference) -> Option<String> {
        if let Some((obtained, address)) = self.segment {
            return Some(format!(
                "nothing gives back the segment at {address} that entry {obtained} obtains, and it is gone"
            ));
        }
        let Gap { address, after, by } = self.alloc?;
        let after = after.filter(|&after| after < found.event);
        let since = after.map_or_else(String::new, |after| format!(" after entry {after}"));
        Some(match by {
            Some(by) => format!("entry {by} frees {address}, which nothing allocates{since}"),
            None => format!("{address} is in use at the end, and nothing allocates it{since}"),
        })
    }
}

/// The first fixed segment that is obtained twice without being given back in between, or is not there at
/// the end.
fn lost_segment(entries: &[TraceEntry], at_end: &[SnapshotSegment]) -> Option<(usize, Address)> {
    let mut held = FxHashMap::default();
    let mut lost = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        match entry.action {
            Action::SegmentAlloc => {
                lost.extend(
                    held.insert(entry.address, index).map(|before| (before, entry.address)),
                );
            }
            Action::SegmentFree => drop(held.remove(&entry.address)),
            _ => {}
        }
    }
    for segment in at_end {
        held.remove(&segment.address);
    }
    lost.extend(held.into_iter().map(|(address, index)| (index, address)));
    lost.into_iter().min()
}

/// Where memory is obtained and what follows is not the request that it was for, the entry behind it is the
/// one that cannot be; unless it is the address that is wrong, and nothing else names it.
pub(super) fn behind_obtained(
    suspect: &Difference,
    entries: &[TraceEntry],
    at_end: &[SnapshotSegment],
) -> Option<Difference> {
    let obtained = entries.get(suspect.event)?;
    let event = suspect.event + 1;
    let next = entries.get(event);
    let inside = |address: Address| {
        address.0.checked_sub(obtained.address.0).is_some_and(|offset| offset < obtained.size)
    };
    let holds = |alloc: &TraceEntry| match obtained.action {
        Action::SegmentAlloc => alloc.address == obtained.address,
        _ => {
            let offset = obtained.address.0.checked_sub(alloc.address.0);
            inside(alloc.address) || offset.is_some_and(|offset| offset < alloc.size)
        }
    };
    if next.is_some_and(|next| next.action == Action::Alloc && holds(next)) {
        return None;
    }
    let mut later = entries[event..].iter();
    let named = match obtained.action {
        Action::SegmentAlloc => {
            later.any(|it| it.action == Action::SegmentFree && it.address == obtained.address)
                || at_end.iter().any(|segment| segment.address == obtained.address)
        }
        Action::SegmentMap if obtained.address.0.is_multiple_of(PAGE_UNIT) => {
            let unmaps_or_frees = [Action::SegmentUnmap, Action::FreeRequested];
            later.any(|it| unmaps_or_frees.contains(&it.action) && inside(it.address))
                || at_end.iter().any(|run| run.expandable && overlap(run, obtained))
        }
        _ => false,
    };
    named.then(|| Difference {
        event,
        expected: next.map_or_else(|| "the end".to_owned(), ToString::to_string),
        got: format!("an alloc, for which entry {} obtained memory", suspect.event),
    })
}

fn overlap(segment: &SnapshotSegment, pages: &TraceEntry) -> bool {
    let end = |address: Address, size: u64| address.0.saturating_add(size);
    segment.address.0 < end(pages.address, pages.size)
        && pages.address.0 < end(segment.address, segment.total_size)
}
