//! One half of a pool: its free blocks, and the unmapped parts of its expandable segments.

use std::collections::BTreeMap;

use tonnage_events::{Address, StreamId};

use crate::block::{Block, BlockId, Blocks};
use crate::pool::FreeBlocks;

/// Blocks that nobody holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPool {
    free: FreeBlocks,
    /// By stream, then address.
    unmapped: BTreeMap<(StreamId, Address), BlockId>,
    /// Searches so far, counted only while garbage collection is on: the clock by which free
    /// blocks age.
    searches: u64,
}

impl BlockPool {
    /// Puts an idle block where it belongs: mapped ones are free from now on and begin to age.
    pub(crate) fn put(&mut self, id: BlockId, blocks: &mut Blocks) {
        let block = &mut blocks[id];
        debug_assert!(block.is_idle(), "only idle blocks go into a pool");
        if block.mapped {
            block.searches_at_put = self.searches;
            self.free.insert(id, block);
        } else {
            self.unmapped.insert((block.stream, block.address), id);
        }
    }

    /// Puts a free block in the place of another of the same stream that lay at `old`, given by size
    /// and rank.
    #[inline]
    pub(crate) fn replace(&mut self, old: (u64, u64), id: BlockId, blocks: &mut Blocks) {
        let block = &mut blocks[id];
        debug_assert!(block.is_idle() && block.mapped, "only free blocks take another's place");
        block.searches_at_put = self.searches;
        self.free.replace(old, id, block);
    }

    /// Takes a block out, whichever set it is in.
    pub(crate) fn take(&mut self, block: &Block) {
        let found = if block.mapped {
            self.free.remove(block)
        } else {
            self.unmapped.remove(&(block.stream, block.address)).is_some()
        };
        debug_assert!(found, "an idle block is in its pool");
    }

    /// Takes no more memory than for the blocks that are there.
    pub(crate) fn trim(&mut self) {
        self.free.trim();
    }

    pub(crate) fn free(&self) -> &FreeBlocks {
        &self.free
    }

    /// Unmapped blocks of `stream`, by ascending address.
    pub(crate) fn unmapped_of(&self, stream: StreamId) -> impl Iterator<Item = BlockId> + '_ {
        self.unmapped.range((stream, Address(0))..=(stream, Address(u64::MAX))).map(|(_, &id)| id)
    }

    pub(crate) fn unmapped(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.unmapped.values().copied()
    }

    pub(crate) fn count_search(&mut self) {
        self.searches += 1;
    }

    /// Searches that have passed a free block by.
    pub(crate) fn age(&self, block: &Block) -> u64 {
        self.searches - block.searches_at_put
    }
}
