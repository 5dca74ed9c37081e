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

    /// The neighbour, if `id` may absorb it: idle, and mapped or unmapped like it.
    #[inline]
    pub(crate) fn mergeable(&self, id: BlockId, neighbour: Option<BlockId>) -> Option<BlockId> {
        let other = &self.blocks[neighbour?];
        (other.is_idle() && other.mapped == self.blocks[id].mapped).then_some(neighbour?)
    }

    /// Lets `id`, which is in no set, absorb a neighbour, if it may.
    pub(crate) fn try_merge(&mut self, id: BlockId, neighbour: Option<BlockId>) {
        if let Some(neighbour) = self.mergeable(id, neighbour) {
            self.take(neighbour);
            self.blocks.absorb(id, neighbour);
        }
    }
}
