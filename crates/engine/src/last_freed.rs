//! The block that was freed last, before it is merged.
//!
//! Programs often free a block and then ask for one of the same size, and then PyTorch merges the
//! block with the free one behind it, only to cut it off again. Here the last free is entered in the
//! figures and the history at once, but merged only when something else happens; if the next request
//! would get the very same block, it gets it, and neither merging nor cutting takes place.
//!
//! *No answer differs from what it would be if the block had been merged.* Whoever looks at blocks
//! and sets either settles first or counts that block and its rest as one. Whoever changes what a
//! request gets settles too: what is known of that block then no longer holds.

use tonnage_device::Device;
use tonnage_events::{SplitChange, StackId, StreamId};

use crate::block::BlockId;
use crate::engine::Engine;
use crate::owner::Allocation;
use crate::pool::PoolRef;
use crate::request::Request;
use crate::segment::Role;

/// A block that is free by all accounts but in no set; or that was one until it was handed out again,
/// with nothing else since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastFreed {
    pub(crate) id: BlockId,
    /// The free block behind it, which is to become part of it.
    pub(crate) rest: Option<BlockId>,
    /// Its size and that of its rest.
    size: u64,
    /// Its rank, with which it is searched for, merged or not.
    rank: u64,
    /// Its stream and pool: what a request is compared with first.
    stream: StreamId,
    pool: PoolRef,
    /// Bytes of the block alone.
    own_size: u64,
    /// Whether the segment has blocks besides the two.
    pub(crate) is_split: bool,
    /// What freeing it does to the free remainders of split segments; handing it out undoes that.
    split: SplitChange,
    /// Whether it is known that a request of its size gets it.
    serves_its_size: bool,
    /// Whether it is in its owner's hands again. The rest is kept for when it comes back.
    is_out: bool,
}

impl<D: Device> Engine<D> {
    /// The block that was freed last, if it is not merged yet.
    pub(crate) fn unmerged(&self) -> Option<&LastFreed> {
        self.last_freed.as_ref().filter(|freed| !freed.is_out)
    }

    /// Whether this block was the last to be freed before it was handed out again, and nothing else happened since.
    #[inline]
    pub(crate) fn was_freed_last(&self, id: BlockId) -> bool {
        self.last_freed.as_ref().is_some_and(|freed| freed.id == id)
    }

    /// Leaves a block unmerged that its owner has given back and nothing else uses, if that is worth it. Says what
    /// that does to the free remainders of split segments.
    #[inline]
    pub(crate) fn leave_unmerged(&mut self, id: BlockId) -> Option<SplitChange> {
        let split = match &mut self.last_freed {
            Some(freed) => {
                debug_assert!(freed.id == id && freed.is_out, "there is one place");
                freed.is_out = false;
                freed.split
            }
            None => {
                let freed = self.as_last_freed(id)?;
                self.last_freed = Some(freed);
                freed.split
            }
        };
        let block = &mut self.blocks[id];
        block.stack = None;
        block.used_until = self.store.marks.last();
        block.forget_foreign();
        Some(split)
    }

    fn as_last_freed(&self, id: BlockId) -> Option<LastFreed> {
        let block = &self.blocks[id];
        // Pages of a range can go by themselves, but those of a home go only when asked for; and under garbage
        // collection a block's age counts.
        if block.range.is_some_and(|range| self.ranges[range].role != Role::Home)
            || self.collects_garbage()
            || self.mergeable(id, block.prev).is_some()
        {
            return None;
        }
        let rest = self.mergeable(id, block.next);
        if rest.is_some() && !self.blocks.cutting_undoes_merging() {
            return None;
        }
        // One of another stream is in that stream's set.
        if rest.is_some_and(|rest| self.blocks[rest].stream != block.stream) {
            return None;
        }
        let mut split = SplitChange::default();
        let (mut size, mut behind) = (block.size, block.next);
        if let Some(rest) = rest.map(|rest| &self.blocks[rest]) {
            split = SplitChange { count: -1, bytes: -rest.size.cast_signed() };
            size += rest.size;
            behind = rest.next;
        }
        let is_split = block.prev.is_some() || behind.is_some();
        if is_split {
            split.count += 1;
            split.bytes += size.cast_signed();
        }
        if block.range.is_some() {
            // Only fixed segments have remainders that count.
            split = SplitChange::default();
        }
        Some(LastFreed {
            id,
            rest,
            size,
            rank: block.rank,
            stream: block.stream,
            pool: block.pool,
            own_size: block.size,
            is_split,
            split,
            serves_its_size: false,
            is_out: false,
        })
    }

    /// Merges the block that was freed last, if that is still to be done, and puts it where it belongs.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if let Some(freed) = self.last_freed.take()
            && !freed.is_out
        {
            self.merge_last_freed(freed);
        }
    }

    fn merge_last_freed(&mut self, freed: LastFreed) {
        let LastFreed { id, rest, pool, .. } = freed;
        let pool = self.pools.half_mut(pool);
        let Some(rest) = rest else {
            pool.put(id, &mut self.blocks);
            return;
        };
        let old = (self.blocks[rest].size, self.blocks[rest].rank);
        self.blocks.absorb(id, rest);
        pool.replace(old, id, &mut self.blocks);
    }

    /// Hands the block that was freed last out again, if the request would get it once it were merged.
    #[inline]
    pub(crate) fn hand_out_last_freed(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Option<Allocation> {
        let freed = self.last_freed.as_ref()?;
        let same = freed.own_size == request.size
            && freed.stream == request.stream
            && freed.pool == request.pool
            && !freed.is_out;
        if !same || !(freed.serves_its_size || self.would_serve(freed, request)) {
            return None;
        }
        let freed = self.last_freed.as_mut()?;
        freed.serves_its_size = true;
        freed.is_out = true;
        let (id, rest) = (freed.id, freed.rest);
        let SplitChange { count, bytes } = freed.split;
        if let Some(rest) = rest {
            // The rest of a block that is cut keeps its stale size.
            let stale = self.blocks[id].requested;
            self.blocks[rest].requested = stale;
        }
        let split = SplitChange { count: -count, bytes: -bytes };
        Some(self.give_to_owner(id, request, split, stack))
    }

    /// Whether the block that was freed last, merged, is what the search would find, and would be cut where it ends
    /// now.
    #[inline]
    fn would_serve(&self, freed: &LastFreed, request: &Request) -> bool {
        let kind = freed.pool.kind;
        let cut = self.policy.splits(&self.config, freed.size, kind, request)
            && !self.pools.never_splits(request.pool.set);
        cut == freed.rest.is_some()
            && self.policy.accepts(&self.config, freed.size, request)
            && self.pools.half(freed.pool).free().has_none_before(
                request.stream,
                request.size,
                (freed.size, freed.rank),
                freed.rest,
            )
    }
}
