//! Free blocks in the order of the search: by stream, then size, then address.
//!
//! Best fit is the first block at or after (stream, size); among equals the lowest address wins.

use std::collections::BTreeMap;

use tonnage_events::{Address, StreamId};

use crate::block::{Block, BlockId};

type BySize = BTreeMap<(u64, Address), BlockId>;

/// An ordered set of free blocks.
///
/// One map for each stream: a block never serves another stream, so nearly every search stays in
/// one of them. There are few streams, hence a sorted list of maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks {
    streams: Vec<(StreamId, BySize)>,
}

impl FreeBlocks {
    pub(crate) fn insert(&mut self, id: BlockId, block: &Block) {
        let at = match self.find(block.stream) {
            Ok(at) => at,
            Err(at) => {
                self.streams.insert(at, (block.stream, BySize::new()));
                at
            }
        };
        self.streams[at].1.insert((block.size, block.address), id);
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, block: &Block) -> bool {
        let Ok(at) = self.find(block.stream) else { return false };
        self.streams[at].1.remove(&(block.size, block.address)).is_some()
    }

    /// Blocks of `stream` with at least `size` bytes, in order.
    pub(crate) fn at_least(
        &self,
        stream: StreamId,
        size: u64,
    ) -> impl Iterator<Item = BlockId> + '_ {
        self.of(stream)
            .into_iter()
            .flat_map(move |blocks| blocks.range((size, Address(0))..))
            .map(|(_, &id)| id)
    }

    /// Blocks of `stream` with fewer than `size` bytes, the largest first.
    pub(crate) fn below(&self, stream: StreamId, size: u64) -> impl Iterator<Item = BlockId> + '_ {
        self.of(stream)
            .into_iter()
            .flat_map(move |blocks| blocks.range(..(size, Address(0))).rev())
            .map(|(_, &id)| id)
    }

    /// All blocks, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.streams.iter().flat_map(|(_, blocks)| blocks.values().copied())
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.iter().map(|(_, blocks)| blocks.len()).sum()
    }

    fn of(&self, stream: StreamId) -> Option<&BySize> {
        self.find(stream).ok().map(|at| &self.streams[at].1)
    }

    fn find(&self, stream: StreamId) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&stream, |&(of, _)| of)
    }
}
