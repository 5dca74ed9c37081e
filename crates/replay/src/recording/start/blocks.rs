//! The blocks that were there where a history begins.
//!
//! In: the segments at the start, empty. Out: the same, cut into blocks.
//!
//! # Note \[Sizes at the start\]
//!
//! An entry has the request, not the block. In small pools and expandable segments every remainder is
//! split off, so that the two differ by rounding alone. In fixed segments of large pools up to 1 MiB
//! stays unsplit, and that is told in this order:
//!
//! 1. The block is there at the end, untouched: the file has its size.
//! 2. While it lives, something is allocated behind it: a block is cut from the front of free
//!    memory, so it begins where this one ends.
//! 3. Up to 1 MiB lies between it and the next active block or the end of its segment: all of that is
//!    its own, because remainders and blocks of a large pool, hence its free blocks, are larger.
//! 4. It reaches `max_split_size`: it is all of its segment.
//! 5. Otherwise it is taken to end with its rounded request. Nothing is ever cut from what lies behind
//!    it while it lives, or it would have shown (2); so only a search that would take that free block
//!    for its size can tell, and then the block is made longer until it does not.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use tonnage_engine::{Config, Start};
use tonnage_events::{
    Action, Address, BlockState, PoolKind, SnapshotBlock, SnapshotSegment, StreamId,
};

use super::{History, LARGEST, SMALL_SIZE};
use crate::recording::script::Script;

/// An active block at the start.
#[derive(Clone, Copy)]
struct Active {
    requested: u64,
    /// Bytes, as far as they are known: at least the rounded request.
    size: u64,
    /// Whether that is the size and no less.
    sure: bool,
    /// Where the free of a pending block completes: an entry, or never.
    pending: Option<Option<usize>>,
}

impl History<'_> {
    /// Cuts the memory into blocks, and says what the pending ones wait for.
    pub(super) fn fill(&self, memory: &mut [SnapshotSegment]) -> Vec<(Address, StreamId)> {
        let mut active = self.active_blocks(memory);
        self.learn_ends(memory, &mut active);
        let mut waits = Vec::new();
        for segment in memory {
            let end = segment.address.0 + segment.total_size;
            let inside: Vec<_> =
                active.range(segment.address.0..end).map(|(&at, &it)| (at, it)).collect();
            let block = |(index, &(at, block)): (usize, &(u64, Active))| {
                let next = inside.get(index + 1).map_or(end, |&(next, _)| next);
                let state = match block.pending {
                    None => BlockState::ActiveAllocated,
                    Some(completion) => {
                        waits.push((Address(at), Script::stream_of(completion, self.timeline)));
                        BlockState::ActivePendingFree
                    }
                };
                SnapshotBlock {
                    address: Address(at),
                    size: self.size_of(segment, &block, next - at),
                    requested_size: block.requested,
                    state,
                    stack: None,
                }
            };
            let blocks: Vec<_> = inside.iter().enumerate().map(block).collect();
            segment.tile(blocks);
        }
        waits
    }

    /// See Note \[Sizes at the start\].
    fn size_of(&self, segment: &SnapshotSegment, block: &Active, room: u64) -> u64 {
        if block.sure || block.size >= room || !self.leaves_unsplit(segment) {
            return block.size.min(room);
        }
        let all = room - block.size <= SMALL_SIZE || block.size >= self.config.max_split_size();
        if all { room } else { block.size }
    }

    /// Whether blocks of the segment may be larger than their rounded requests.
    fn leaves_unsplit(&self, segment: &SnapshotSegment) -> bool {
        !segment.expandable && segment.kind == PoolKind::Large && !self.config.expandable_segments()
    }

    /// The active blocks at the start, by address.
    fn active_blocks(&self, memory: &[SnapshotSegment]) -> BTreeMap<u64, Active> {
        let mut mentioned = FxHashMap::default();
        let mut active = BTreeMap::new();
        for (index, entry) in self.entries() {
            let pending = match entry.action {
                Action::Alloc => {
                    mentioned.insert(entry.address, true);
                    continue;
                }
                Action::FreeRequested => None,
                Action::FreeCompleted => Some(Some(index)),
                _ => continue,
            };
            if mentioned.contains_key(&entry.address) || !covers(memory, entry.address) {
                continue;
            }
            mentioned.insert(entry.address, false);
            let (requested, size) = (entry.size, self.rounded(entry.size));
            if requested > 0 && size <= LARGEST {
                active.insert(entry.address.0, Active { requested, size, sure: false, pending });
            }
        }
        let blocks = self.at_end.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state != BlockState::Inactive) {
            let (requested, size, sure) = (block.requested_size, block.size, true);
            match mentioned.get(&block.address) {
                None if covers(memory, block.address) && size > 0 => {
                    let pending = block.state == BlockState::ActivePendingFree;
                    let pending = pending.then_some(None);
                    active.insert(block.address.0, Active { requested, size, sure, pending });
                }
                // Freed and still pending at the end.
                Some(false) => {
                    if let Some(block) = active.get_mut(&block.address.0)
                        && block.requested == requested
                    {
                        (block.size, block.sure) = (size, sure);
                    }
                }
                _ => {}
            }
        }
        active
    }

    /// Learns where blocks end from what is allocated behind them while they live.
    fn learn_ends(&self, memory: &[SnapshotSegment], active: &mut BTreeMap<u64, Active>) {
        let unsure = |(&at, block): (&u64, &Active)| {
            !block.sure && segment_at(memory, Address(at)).is_some_and(|it| self.leaves_unsplit(it))
        };
        if !active.iter().any(unsure) {
            return;
        }
        // Those of the start, and whether something behind them may tell their end; and later ones.
        let mut live: BTreeMap<u64, bool> =
            active.iter().map(|(at, block)| (*at, unsure((at, block)))).collect();
        for (_, entry) in self.entries() {
            match entry.action {
                Action::Alloc => {
                    let at = entry.address.0;
                    if let Some((&before, unsure)) = live.range_mut(..at).next_back()
                        && *unsure
                        && let Some(block) = active.get_mut(&before)
                        && segment_at(memory, Address(before))
                            .is_some_and(|it| at - it.address.0 < it.total_size)
                    {
                        let slack = (at - before).checked_sub(block.size);
                        if slack.is_some_and(|slack| slack <= SMALL_SIZE) {
                            (block.size, block.sure) = (at - before, true);
                        }
                        *unsure = false;
                    }
                    live.insert(at, false);
                }
                Action::FreeCompleted => drop(live.remove(&entry.address.0)),
                _ => {}
            }
        }
    }
}

/// The same state with one block longer by `more` bytes, at the expense of the free block behind it at
/// `end`: another that the history allows. None if it does not.
pub(in crate::recording) fn lengthened(
    start: &Start,
    config: &Config,
    end: Address,
    more: u64,
) -> Option<Start> {
    let mut start = start.clone();
    let below = start.segments.partition_point(|segment| segment.address < end);
    let segment = &mut start.segments[below.checked_sub(1)?];
    let index = segment.blocks.partition_point(|block| block.address < end).checked_sub(1)?;
    let [block, free] = segment.blocks.get_mut(index..index + 2)? else { return None };
    let unsplit =
        block.size.checked_add(more)?.checked_sub(config.rounded_size(block.requested_size)?)?;
    let may_be = !segment.expandable
        && segment.kind == PoolKind::Large
        && block.state != BlockState::Inactive
        && free.state == BlockState::Inactive
        && free.address == end
        && more < free.size
        && unsplit <= SMALL_SIZE;
    if !may_be {
        return None;
    }
    block.size += more;
    free.address = Address(free.address.0 + more);
    free.size -= more;
    segment.active_size += more;
    if block.state == BlockState::ActiveAllocated {
        segment.allocated_size += more;
    }
    Some(start)
}

/// The segment that holds an address, of segments by ascending address.
fn segment_at(memory: &[SnapshotSegment], address: Address) -> Option<&SnapshotSegment> {
    let below = memory.partition_point(|segment| segment.address <= address);
    let segment = &memory[below.checked_sub(1)?];
    (address.0 - segment.address.0 < segment.total_size).then_some(segment)
}

fn covers(memory: &[SnapshotSegment], address: Address) -> bool {
    segment_at(memory, address).is_some()
}
