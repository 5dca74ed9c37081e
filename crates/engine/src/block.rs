//! Stage 4: blocks, cut from segments and put together again.
//!
//! A segment is a chain of blocks, linked both ways. The blocks of a chain, in order, tile its
//! segment without gap or overlap, and share one pool and one stream. This file keeps the links
//! right; which set a block is in is its pool's business.

use slotmap::{SlotMap, new_key_type};
use tonnage_device::EventId;
use tonnage_events::{Address, BlockState, StackId, StreamId};

use crate::pool::PoolRef;
use crate::segment::RangeId;

new_key_type! {
    /// Names a block. A key that outlives its block finds nothing, even if the place was taken
    /// again.
    pub(crate) struct BlockId;
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
/// | no | no | no | its pool's unmapped blocks (expandable segments only) |
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: Address,
    pub(crate) size: u64,
    /// What the last caller asked for: 0 until first handed out, stale once free.
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolRef,
    pub(crate) allocated: bool,
    /// How often it was handed out, to tell its owners apart.
    pub(crate) serial: u32,
    /// False only for the part of an expandable segment that has no pages.
    pub(crate) mapped: bool,
    pub(crate) prev: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
    /// The expandable segment it is cut from, if it is one.
    pub(crate) range: Option<RangeId>,
    /// Searches its pool had seen when the block went in: its age is counted from there.
    pub(crate) searches_at_put: u64,
    /// What keeps it from being reused after its owner gives it back. Rare, hence out of line.
    foreign: Option<Box<ForeignUse>>,
    /// Who allocated it, if that is recorded.
    pub(crate) stack: Option<StackId>,
    /// Who caused its segment to be obtained, kept on the first block.
    pub(crate) segment_stack: Option<StackId>,
}

/// Uses of a block on streams other than its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignUse {
    /// Streams that were recorded and have no event yet.
    pub(crate) streams: Vec<StreamId>,
    /// Of these, the ones recorded while requests were diverted to a pool.
    pub(crate) while_diverted: Vec<StreamId>,
    /// Events recorded and not yet known to be complete.
    pub(crate) events: u32,
}

/// What most blocks have.
static NO_FOREIGN_USE: ForeignUse =
    ForeignUse { streams: Vec::new(), while_diverted: Vec::new(), events: 0 };

impl Block {
    /// A free, mapped block that nobody has used yet.
    pub(crate) fn new(address: Address, size: u64, stream: StreamId, pool: PoolRef) -> Self {
        Self {
            address,
            size,
            requested: 0,
            stream,
            pool,
            allocated: false,
            serial: 0,
            mapped: true,
            prev: None,
            next: None,
            range: None,
            searches_at_put: 0,
            foreign: None,
            stack: None,
            segment_stack: None,
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

/// Every block of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    all: SlotMap<BlockId, Block>,
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.all[id]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.all[id]
    }
}

impl Blocks {
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        self.all.insert(block)
    }

    pub(crate) fn remove(&mut self, id: BlockId) {
        self.all.remove(id);
    }

    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.all.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.all.iter()
    }

    /// Forgets who asked for the blocks and their segments.
    pub(crate) fn forget_stacks(&mut self) {
        for block in self.all.values_mut() {
            block.stack = None;
            block.segment_stack = None;
        }
    }

    /// Cuts the first `size` bytes off `id`, as a new block before it. The old block keeps its
    /// identity and becomes the rest: PyTorch's choice, which decides whose stale requested size
    /// survives. It must not be in a set of its pool, since its address changes.
    pub(crate) fn split_front(&mut self, id: BlockId, size: u64) -> BlockId {
        let rest = &mut self.all[id];
        debug_assert!(0 < size && size < rest.size, "both parts have bytes");
        let mut front = Block::new(rest.address, size, rest.stream, rest.pool);
        front.mapped = rest.mapped;
        front.range = rest.range;
        front.prev = rest.prev;
        front.next = Some(id);
        front.segment_stack = rest.segment_stack.take();
        rest.address = rest.address.offset(size);
        rest.size -= size;
        let before = front.prev;
        let front = self.all.insert(front);
        self.all[id].prev = Some(front);
        if let Some(before) = before {
            self.all[before].next = Some(front);
        }
        front
    }

    /// Cuts off all but the first `size` bytes of `id`, as a new block behind it.
    pub(crate) fn split_back(&mut self, id: BlockId, size: u64) -> BlockId {
        let front = &mut self.all[id];
        debug_assert!(0 < size && size < front.size, "both parts have bytes");
        let mut back =
            Block::new(front.address.offset(size), front.size - size, front.stream, front.pool);
        back.mapped = front.mapped;
        back.range = front.range;
        back.prev = Some(id);
        back.next = front.next;
        front.size = size;
        let behind = back.next;
        let back = self.all.insert(back);
        self.all[id].next = Some(back);
        if let Some(behind) = behind {
            self.all[behind].prev = Some(back);
        }
        back
    }

    /// Makes `neighbour`, which must lie directly before or behind `id`, part of it. Neither may
    /// be in a set of its pool.
    pub(crate) fn absorb(&mut self, id: BlockId, neighbour: BlockId) {
        let gone = self.all.remove(neighbour).expect("a neighbour exists");
        let block = &mut self.all[id];
        block.size += gone.size;
        if block.prev == Some(neighbour) {
            block.address = gone.address;
            block.prev = gone.prev;
            block.segment_stack = gone.segment_stack;
            if let Some(before) = gone.prev {
                self.all[before].next = Some(id);
            }
        } else {
            debug_assert_eq!(block.next, Some(neighbour), "only neighbours merge");
            block.next = gone.next;
            if let Some(behind) = gone.next {
                self.all[behind].prev = Some(id);
            }
        }
    }
}

/// A block that waits for an event of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) event: EventId,
    pub(crate) block: BlockId,
}
