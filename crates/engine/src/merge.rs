//! Free blocks into their pools, out of them, and together with their neighbours.

use tonnage_device::Device;

use crate::block::{Block, BlockId};
use crate::engine::Engine;

impl<D: Device> Engine<D> {
    /// Puts an idle block into its pool.
    pub(crate) fn put(&mut self, id: BlockId) {
        let pool = self.blocks[id].pool;
        self.pools.half_mut(pool).put(id, &mut self.blocks);
    }

    /// Takes an idle block out of its pool.
    pub(crate) fn take(&mut self, id: BlockId) {
        let block: &Block = &self.blocks[id];
        self.pools.half_mut(block.pool).take(block);
    }

    /// The neighbour, if `id`, which stands for no page in use elsewhere, may absorb it: idle, mapped or unmapped
    /// like it, and of its stream or used by no stream any more.
    #[inline]
    pub(crate) fn mergeable(&self, id: BlockId, neighbour: Option<BlockId>) -> Option<BlockId> {
        let (block, other) = (&self.blocks[id], &self.blocks[neighbour?]);
        let alike = other.mapped == block.mapped && !other.blocked && other.is_idle();
        (alike && (other.stream == block.stream || self.is_anyones(other))).then_some(neighbour?)
    }

    /// Makes a neighbour part of `id` that it may absorb.
    #[inline]
    pub(crate) fn absorb(&mut self, id: BlockId, neighbour: BlockId) {
        let other = &self.blocks[neighbour];
        let until = if other.stream == self.blocks[id].stream { other.used_until } else { 0 };
        self.blocks.absorb(id, neighbour);
        let block = &mut self.blocks[id];
        block.used_until = block.used_until.max(until);
    }

    /// Lets `id`, which is in no set, absorb a neighbour, if it may.
    pub(crate) fn try_merge(&mut self, id: BlockId, neighbour: Option<BlockId>) {
        if let Some(neighbour) = self.mergeable(id, neighbour) {
            self.take(neighbour);
            self.absorb(id, neighbour);
        }
    }

    /// Lets `id`, which is in no set, absorb its neighbours on both sides, and theirs, as far as it may. Where pages
    /// move, what lies behind a neighbour may be of its stream again.
    pub(crate) fn merge_all(&mut self, id: BlockId) {
        while let block = &self.blocks[id]
            && let Some(neighbour) =
                self.mergeable(id, block.prev).or_else(|| self.mergeable(id, block.next))
        {
            self.take(neighbour);
            self.absorb(id, neighbour);
        }
    }
}
