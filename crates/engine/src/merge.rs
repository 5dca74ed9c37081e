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

    /// The neighbour, if `id`, which stands for no page in use elsewhere, may absorb it: idle, and mapped or unmapped
    /// like it.
    #[inline]
    pub(crate) fn mergeable(&self, id: BlockId, neighbour: Option<BlockId>) -> Option<BlockId> {
        let other = &self.blocks[neighbour?];
        let alike = other.mapped == self.blocks[id].mapped && !other.blocked;
        (alike && other.is_idle()).then_some(neighbour?)
    }

    /// Makes a free neighbour part of `id`, and whoever takes it comes after those who have used either.
    #[inline]
    pub(crate) fn absorb(&mut self, id: BlockId, neighbour: BlockId) {
        let other = &self.blocks[neighbour];
        if other.stream != self.blocks[id].stream || !other.is_unfenced() {
            self.join_fences(id, neighbour);
        }
        self.blocks.absorb(id, neighbour);
    }

    /// Lets `id`, which is in no set, absorb a neighbour, if it may.
    pub(crate) fn try_merge(&mut self, id: BlockId, neighbour: Option<BlockId>) {
        if let Some(neighbour) = self.mergeable(id, neighbour) {
            self.take(neighbour);
            self.absorb(id, neighbour);
        }
    }
}
