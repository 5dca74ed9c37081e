//! Stage 4: blocks, cut from segments and put together again.
//!
//! A segment is a chain of blocks, linked both ways. The blocks of a chain, in order, tile its
//! segment without gap or overlap, and share one pool and one stream. This file keeps the links
//! right, and the order of equal blocks; which set a block is in is its pool's business.

use std::num::NonZeroU32;

use tonnage_events::{Address, BlockState, StackId, StreamId};

use crate::config::Tie;
use crate::pool::PoolRef;
use crate::segment::RangeId;

/// Names a block for as long as it exists; the place of one that is gone is taken again. Handles that
/// leave the allocator carry the block's serial number too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(NonZeroU32);

impl BlockId {
    #[inline]
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A piece of a segment.
///
/// A block is in exactly one place:
///
/// | allocated | pending | mapped | it is in |
/// | --- | --- | --- | --- |
/// | yes | – | yes | its owner's hands |
/// | no | yes | yes | the queue of events, or the deferred list |
/// | no | no | yes | its pool's free blocks |
/// | no | no | no | its pool's unmapped blocks (expandable segments, and places of pages that are in use elsewhere) |
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: Address,
    pub(crate) size: u64,
    /// What the last caller asked for: 0 until first handed out, stale once free.
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolRef,
    pub(crate) allocated: bool,
    /// False for a place that a block was in.
    exists: bool,
    /// How often what is in its place was handed out, to tell owners apart.
    pub(crate) serial: u32,
    /// False only for the part of an expandable segment that has no pages, or none to use here.
    pub(crate) mapped: bool,
    /// Whether it stands for one page that is mapped here and in use elsewhere. It is not mapped then, by all other
    /// accounts, and never merged.
    pub(crate) blocked: bool,
    pub(crate) prev: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
    /// The expandable segment it is cut from, if it is one.
    pub(crate) range: Option<RangeId>,
    /// Which of several free blocks of one stream and size serves first: the one of the lowest rank.
    /// See Note \[Ranks\].
    pub(crate) rank: u64,
    /// Searches its pool had seen when the block went in: its age is counted from there.
    pub(crate) searches_at_put: u64,
    /// The last mark when it was freed: its stream is done with it once a later one is reached. Of free blocks alone.
    /// See Note \[Order between streams\].
    pub(crate) used_until: u64,
    /// What keeps it from being reused after its owner gives it back. Rare, hence out of line.
    foreign: Option<Box<ForeignUse>>,
    /// Who allocated it, if that is recorded.
    pub(crate) stack: Option<StackId>,
    /// Who caused its segment to be obtained, kept on the first block.
    pub(crate) segment_stack: Option<StackId>,
    /// Which one of all segments it is cut from, counted up in the order in which they were obtained.
    pub(crate) segment_number: u32,
}

/// Uses of a block on streams other than its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignUse {
    /// Streams that were recorded and have no event yet.
    pub(crate) streams: Vec<StreamId>,
    /// Of these, the ones recorded during a capture.
    pub(crate) while_capturing: Vec<StreamId>,
    /// Events recorded and not yet known to be complete.
    pub(crate) events: u32,
}

/// What most blocks have.
static NO_FOREIGN_USE: ForeignUse =
    ForeignUse { streams: Vec::new(), while_capturing: Vec::new(), events: 0 };

impl Block {
    /// A free, mapped block that nobody has used yet.
    #[inline]
    pub(crate) fn new(address: Address, size: u64, stream: StreamId, pool: PoolRef) -> Self {
        Self {
            address,
            size,
            requested: 0,
            stream,
            pool,
            allocated: false,
            exists: true,
            serial: 0,
            mapped: true,
            blocked: false,
            prev: None,
            next: None,
            range: None,
            rank: address.0,
            searches_at_put: 0,
            used_until: 0,
            foreign: None,
            stack: None,
            segment_stack: None,
            segment_number: 0,
        }
    }

    /// The first address behind it.
    pub(crate) fn end(&self) -> Address {
        self.address.offset(self.size)
    }

    /// Whether its segment has other blocks.
    pub(crate) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// Uses on other streams.
    #[inline]
    pub(crate) fn foreign(&self) -> &ForeignUse {
        self.foreign.as_deref().unwrap_or(&NO_FOREIGN_USE)
    }

    /// Uses on other streams, to be changed.
    pub(crate) fn foreign_mut(&mut self) -> &mut ForeignUse {
        self.foreign.get_or_insert_default()
    }

    /// Forgets uses on other streams: there are none any more.
    #[inline]
    pub(crate) fn forget_foreign(&mut self) {
        self.foreign = None;
    }

    /// Whether another stream may still use it.
    #[inline]
    pub(crate) fn is_used_elsewhere(&self) -> bool {
        let foreign = self.foreign();
        !foreign.streams.is_empty() || foreign.events > 0
    }

    /// Whether nobody holds it and no stream may still use it.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        !self.allocated && !self.is_used_elsewhere()
    }

    pub(crate) fn state(&self) -> BlockState {
        if self.allocated {
            BlockState::ActiveAllocated
        } else if self.is_used_elsewhere() {
            BlockState::ActivePendingFree
        } else {
            BlockState::Inactive
        }
    }
}

/// How blocks get their ranks.
///
/// # Note \[Ranks\]
///
/// Free blocks are searched by size and then by rank, which is one number whatever the release, so that the
/// search compares one key and asks nothing:
///
/// | tie | the rank of a block | a part cut off its front has | what absorbs a block before it has |
/// | --- | --- | --- | --- |
/// | address | its address | its rank | that block's rank |
/// | block | a number of its own, counted up | the next number | its own |
/// | segment | its place if all segments lay one behind the other, the oldest first | its rank | that block's rank |
///
/// In the first and the last row the rank of a block is that of its segment, plus what lies before it. The last
/// row's ranks end with 64 bits; then those of the segments that are left move together
/// ([`Engine::close_ranks`](crate::Engine)). There is room for these: segments and ranges have 2⁶² bytes each at
/// most.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    tie: Tie,
    /// The next number, or the end of the last segment.
    next: u64,
}

/// Every block of a device.
///
/// Places are never moved and never given back, so that splitting and merging, which happen all the
/// time, neither allocate nor copy.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    places: Vec<Block>,
    vacant: Vec<BlockId>,
    ranks: Ranks,
    /// Segments so far.
    segments: u32,
}

#[cfg(test)]
impl Default for Blocks {
    fn default() -> Self {
        Self::ordered_by(Tie::Address)
    }
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        let block = &self.places[id.index()];
        debug_assert!(block.exists, "{id:?} names a block");
        block
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        let block = &mut self.places[id.index()];
        debug_assert!(block.exists, "{id:?} names a block");
        block
    }
}

impl Blocks {
    /// None yet, to be ordered like this.
    pub(crate) fn ordered_by(tie: Tie) -> Self {
        Self { places: Vec::new(), vacant: Vec::new(), ranks: Ranks { tie, next: 0 }, segments: 0 }
    }

    /// Whether ranks are left for another segment of `size` bytes.
    pub(crate) fn has_ranks_for(&self, size: u64) -> bool {
        let Ranks { tie, next } = self.ranks;
        tie != Tie::Segment || next.checked_add(size).is_some()
    }

    /// Gives a new segment's first block its rank. The segment has `size` bytes, the block perhaps fewer.
    pub(crate) fn rank_segment(&mut self, block: &mut Block, size: u64) {
        let Ranks { tie, next } = &mut self.ranks;
        let step = match tie {
            Tie::Address => return,
            Tie::Block => 1,
            Tie::Segment => size,
        };
        block.rank = *next;
        *next += step;
    }

    /// Numbers a new segment's first block.
    pub(crate) fn number_segment(&mut self, block: &mut Block) {
        block.segment_number = self.segments;
        self.segments = self.segments.wrapping_add(1);
    }

    /// The rank of a block that is made behind another of its segment.
    pub(crate) fn rank_behind(&mut self, before: BlockId) -> u64 {
        let Block { rank, size, .. } = self[before];
        if self.ranks.tie != Tie::Block {
            return rank + size;
        }
        self.ranks.next += 1;
        self.ranks.next - 1
    }

    /// Whether two neighbours have the ranks that Note \[Ranks\] gives them.
    pub(crate) fn ranks_fit(&self, block: &Block, next: &Block) -> bool {
        match self.ranks.tie {
            Tie::Block => block.rank < self.ranks.next && block.rank != next.rank,
            Tie::Address => block.rank == block.address.0 && next.rank == next.address.0,
            Tie::Segment => {
                next.rank == block.rank + block.size && next.rank + next.size <= self.ranks.next
            }
        }
    }

    /// Lets the next segment begin at this rank, as if many had come and gone.
    #[cfg(test)]
    pub(crate) fn use_up_ranks(&mut self, next: u64) {
        self.ranks.next = next;
    }

    /// Whether a block that absorbs the one behind it, and is cut there again, is what it was: not where
    /// the part in front gets a number of its own.
    #[inline]
    pub(crate) fn cutting_undoes_merging(&self) -> bool {
        self.ranks.tie != Tie::Block
    }

    /// Lets the ranks of all segments follow each other without gaps, in their order. Blocks that are in a
    /// set are no longer where it looks for them.
    pub(crate) fn close_ranks(&mut self) {
        let mut heads: Vec<_> = self
            .iter()
            .filter(|(_, block)| block.prev.is_none())
            .map(|(id, block)| (block.rank, id))
            .collect();
        heads.sort_unstable();
        let heads: Vec<_> = heads.into_iter().map(|(_, head)| head).collect();
        self.rank_in_order(&heads);
    }

    /// Gives new ranks to all blocks: by their segments, the first blocks of which are given in order; or, if blocks
    /// have numbers, by the order of all blocks. Blocks that are in a set are no longer where it looks for them.
    pub(crate) fn rank_in_order(&mut self, in_order: &[BlockId]) {
        let by_block = self.ranks.tie == Tie::Block;
        let mut next = 0;
        for &first in in_order {
            let mut at = Some(first);
            while let Some(id) = at {
                let block = &mut self[id];
                block.rank = next;
                (next, at) =
                    if by_block { (next + 1, None) } else { (next + block.size, block.next) };
            }
        }
        self.ranks.next = next;
    }

    /// Inlined, so that a block is made where it will be.
    #[inline(always)]
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        let Some(id) = self.vacant.pop() else { return self.push(block) };
        let place = &mut self.places[id.index()];
        *place = Block { serial: place.serial, ..block };
        id
    }

    #[cold]
    fn push(&mut self, block: Block) -> BlockId {
        self.places.push(block);
        let number = u32::try_from(self.places.len()).ok().and_then(NonZeroU32::new);
        BlockId(number.expect("four thousand million blocks do not fit in memory"))
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) {
        let gone = &mut self[id];
        gone.exists = false;
        gone.allocated = false;
        gone.foreign = None;
        self.vacant.push(id);
    }

    #[inline]
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.places.get(id.index()).filter(|block| block.exists)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        let ids = (1..=u32::MAX).filter_map(NonZeroU32::new).map(BlockId);
        ids.zip(&self.places).filter(|(_, block)| block.exists)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    /// Forgets who asked for the blocks and their segments.
    pub(crate) fn forget_stacks(&mut self) {
        for block in &mut self.places {
            block.stack = None;
            block.segment_stack = None;
        }
    }

    /// Cuts the first `size` bytes off `id`, as a new block before it. The old block keeps its
    /// identity and becomes the rest: PyTorch's choice, which decides whose stale requested size
    /// survives. It must not be in a set of its pool, since its address changes.
    #[inline]
    pub(crate) fn split_front(&mut self, id: BlockId, size: u64) -> BlockId {
        let (numbered, number) = (self.ranks.tie == Tie::Block, self.ranks.next);
        let rest = &mut self.places[id.index()];
        debug_assert!(0 < size && size < rest.size, "both parts have bytes");
        let mut front = Block::new(rest.address, size, rest.stream, rest.pool);
        front.mapped = rest.mapped;
        front.range = rest.range;
        front.used_until = rest.used_until;
        front.rank = rest.rank;
        front.prev = rest.prev;
        front.next = Some(id);
        front.segment_stack = rest.segment_stack.take();
        front.segment_number = rest.segment_number;
        rest.address = rest.address.offset(size);
        rest.size -= size;
        if numbered {
            self.ranks.next += 1;
            front.rank = number;
        } else {
            rest.rank += size;
        }
        let before = front.prev;
        let front = self.insert(front);
        self[id].prev = Some(front);
        if let Some(before) = before {
            self[before].next = Some(front);
        }
        front
    }

    /// Cuts off all but the first `size` bytes of `id`, as a new block behind it.
    pub(crate) fn split_back(&mut self, id: BlockId, size: u64) -> BlockId {
        let (numbered, number) = (self.ranks.tie == Tie::Block, self.ranks.next);
        let front = &mut self.places[id.index()];
        debug_assert!(0 < size && size < front.size, "both parts have bytes");
        let mut back =
            Block::new(front.address.offset(size), front.size - size, front.stream, front.pool);
        back.mapped = front.mapped;
        back.range = front.range;
        back.used_until = front.used_until;
        back.prev = Some(id);
        back.next = front.next;
        back.segment_number = front.segment_number;
        back.rank = if numbered { number } else { front.rank + size };
        front.size = size;
        self.ranks.next += u64::from(numbered);
        let behind = back.next;
        let back = self.insert(back);
        self[id].next = Some(back);
        if let Some(behind) = behind {
            self[behind].prev = Some(back);
        }
        back
    }

    /// Makes `neighbour`, which must lie directly before or behind `id`, part of it. Neither may
    /// be in a set of its pool.
    #[inline]
    pub(crate) fn absorb(&mut self, id: BlockId, neighbour: BlockId) {
        let numbered = self.ranks.tie == Tie::Block;
        let &Block { address, size, rank, prev, next, segment_stack, .. } = &self[neighbour];
        let block = &mut self[id];
        block.size += size;
        if block.prev == Some(neighbour) {
            if !numbered {
                block.rank = rank;
            }
            block.address = address;
            block.prev = prev;
            block.segment_stack = segment_stack;
            if let Some(before) = prev {
                self[before].next = Some(id);
            }
        } else {
            debug_assert_eq!(block.next, Some(neighbour), "only neighbours merge");
            block.next = next;
            if let Some(behind) = next {
                self[behind].prev = Some(id);
            }
        }
        self.remove(neighbour);
    }
}
