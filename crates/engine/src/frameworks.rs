//! For allocators that a framework brings the interface of: PyTorch's own class, whose callers know neither Rust nor the
//! engine's types.
//!
//! What such a caller has and others lack: stacks of its own, which it keeps and the engine only names; callbacks that
//! must run without the engine's lock, so that a request is [begun](Engine::allocate_cached) and then
//! [gone on with](Engine::allocate_uncached); and states of private pools that it goes back to ([`PoolState`](crate::PoolState)).

use std::collections::BTreeMap;

use tonnage_device::Device;
use tonnage_events::{Address, Event, PoolId, PoolKind, StackId, StreamId};

use crate::block::BlockId;
use crate::engine::Engine;
use crate::error::AllocError;
use crate::history::Context;
use crate::ledger::{ChangeTracker, Tracker};
use crate::owner::Allocation;
use crate::pool::PoolSet;
use crate::segment::Role;
use crate::snapshot::Snapshot;

impl<D: Device> Engine<D> {
    /// The stack that calls have from now on, by the caller's own numbers, if the history is
    /// [one of such stacks](crate::StackDepth::Foreign).
    pub fn set_stack(&mut self, stack: Option<StackId>) {
        if let Some(history) = &mut self.ledger.history {
            history.set_foreign_stack(stack);
        }
    }

    /// Which changes the stack of the next call is wanted for: nothing, if no history is recorded.
    #[must_use]
    pub fn wanted_context(&self) -> Context {
        self.history().map_or(Context::Never, |history| history.context())
    }

    /// Tells `tracker` of each change that a history shows, with the pool it is about, whether a history is kept or not; or
    /// no one any more. It is called in the middle of a change: it must not come back to the engine.
    pub fn track(&mut self, tracker: Option<ChangeTracker>) {
        self.ledger.tracker = tracker.map(Tracker);
    }

    /// The stacks that blocks and entries of the history still name, each once, in order. Whoever keeps stacks for the
    /// engine may forget all others.
    #[must_use]
    pub fn stacks_in_use(&self) -> Vec<StackId> {
        let blocks = self.blocks.iter().flat_map(|(_, block)| [block.stack, block.segment_stack]);
        let entries = self.history().into_iter().flat_map(|it| it.entries().map(|it| it.stack));
        let mut stacks: Vec<_> = blocks.chain(entries).flatten().collect();
        stacks.sort_unstable();
        stacks.dedup();
        stacks
    }

    /// Whether a block in use is a stream's, or was used on it. A walk over all blocks.
    #[must_use]
    pub fn is_used_on(&self, stream: StreamId) -> bool {
        self.blocks.iter().any(|(_, block)| {
            block.allocated && (block.stream == stream || block.foreign().streams.contains(&stream))
        })
    }

    /// The state now: of one pool, or with the default pool of all; and the history, if it is wanted. The history notes it, so
    /// it shows in the next snapshot.
    pub fn snapshot_of(&mut self, pool: PoolId, with_history: bool) -> Snapshot {
        let mut snapshot = if with_history {
            self.snapshot_unrecorded()
        } else {
            Snapshot { segments: self.segments(), ..Snapshot::default() }
        };
        snapshot.segments.retain(|segment| pool.is_default() || segment.pool == pool);
        let active = snapshot.segments.iter().map(|segment| segment.active_size).sum();
        self.emit(&Event::Snapshot { active, pool }, None);
        snapshot
    }

    /// Serves a request from what is cached, as [`allocate`](Self::allocate) does before it looks any further; `None` if
    /// there is nothing for it.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub fn allocate_cached(
        &mut self,
        bytes: u64,
        stream: StreamId,
    ) -> Result<Option<Allocation>, AllocError> {
        self.check_size(bytes)?;
        let stack = self.foreign_stack(Context::State);
        let result = self.try_cached(bytes, stream, stack);
        self.debug_walk("allocate_cached");
        result
    }

    /// Goes on with a request that [nothing cached](Self::allocate_cached) served. `freed` says whether memory was freed
    /// in between, by callbacks: then what is cached is looked at again.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub fn allocate_uncached(
        &mut self,
        bytes: u64,
        stream: StreamId,
        freed: bool,
    ) -> Result<Allocation, AllocError> {
        self.check_size(bytes)?;
        let stack = self.foreign_stack(Context::State);
        let result = self.allocate_after_callbacks(bytes, stream, freed, stack);
        self.debug_walk("allocate_uncached");
        result
    }

    fn foreign_stack(&mut self, wanted_from: Context) -> Option<StackId> {
        self.ledger.history.as_mut()?.foreign_stack(wanted_from)
    }

    /// Whether events must be left alone now, since a graph is captured.
    #[must_use]
    pub fn leaves_events_alone(&self) -> bool {
        self.capturing()
    }

    /// Whether a graph is captured, by whichever thread: then nothing is waited for that might be part of it.
    #[must_use]
    pub fn is_capturing_anywhere(&self) -> bool {
        self.any_capture()
    }

    /// Bytes of the block in use that begins at `address`; `None` if there is none.
    pub fn size_at(&mut self, address: Address) -> Option<u64> {
        let id = self.live_at(address)?;
        Some(self.blocks[id].size)
    }

    /// The stream of the block in use that begins at `address`; `None` if there is none.
    pub fn stream_at(&mut self, address: Address) -> Option<StreamId> {
        let id = self.live_at(address)?;
        Some(self.blocks[id].stream)
    }

    /// Takes back a block that was freed during a capture while other streams used it. The caller knows that the capture orders
    /// those uses before whatever comes next on the block's own stream. Says whether there was such a block; one that a stream used
    /// before the capture, and not in it, is none.
    pub fn finish_captured(&mut self, address: Address) -> bool {
        self.settle();
        if !self.capturing() {
            return false;
        }
        let is_it = |id: &BlockId| self.blocks[*id].address == address;
        let Some(at) = self.pending.deferred.iter().position(is_it) else { return false };
        let id = self.pending.deferred[at];
        let foreign = self.blocks[id].foreign();
        let is_captured = |stream| foreign.while_capturing.contains(stream);
        if foreign.events > 0 || !foreign.streams.iter().all(is_captured) {
            // It waits for what is not part of the capture.
            return false;
        }
        self.pending.deferred.remove(at);
        let stack = self.blocks[id].stack;
        self.complete_free(id, stack);
        true
    }

    /// Where the segment begins that the block in use at `address` is part of, and its bytes. `None` if no block in use
    /// begins there.
    pub fn segment_of(&mut self, address: Address) -> Option<SegmentPlace> {
        let mut first = self.live_at(address)?;
        // Pieces of one segment that were freed last are still pieces of it.
        let pages = self.blocks[first].range.is_some();
        while let Some(before) = self.blocks[first].prev {
            first = before;
        }
        let begin = self.blocks[first].address;
        let mut last = first;
        while let Some(behind) = self.blocks[last].next {
            last = behind;
        }
        let size = self.blocks[last].end().0 - begin.0;
        Some(SegmentPlace { address: begin, size, pages })
    }

    /// The number of each segment, by ascending address. Those that were obtained later have higher ones; the pieces of an
    /// expandable segment have the same.
    #[must_use]
    pub fn segment_numbers(&self) -> Vec<(Address, u32)> {
        let heads = self.segment_heads().map(|(_, head)| (head.address, head.segment_number));
        let mut numbers: Vec<_> = heads.collect();
        numbers.sort_unstable();
        numbers
    }

    /// The expandable segments, in the order in which they were made: the stream of each, its half of the pool, and the bytes of its
    /// pages. Ranges of pages that move are not theirs.
    #[must_use]
    pub fn expandable_segments(&self) -> Vec<(StreamId, PoolKind, u64)> {
        let mut segments = BTreeMap::new();
        for (_, block) in self.blocks.iter() {
            let Some(range) = block.range.map(|it| &self.ranges[it]) else { continue };
            if range.role == Role::Expandable {
                let (.., bytes) =
                    segments.entry(range.number).or_insert((block.stream, block.pool.kind, 0));
                *bytes += if block.mapped { block.size } else { 0 };
            }
        }
        segments.into_values().collect()
    }

    /// The largest block that is free.
    #[must_use]
    pub fn largest_free(&mut self) -> u64 {
        self.settle();
        let free = self.blocks.iter().map(|(_, block)| block);
        let free = free.filter(|it| it.mapped && !it.allocated && !it.is_used_elsewhere());
        free.map(|it| it.size).max().unwrap_or(0)
    }

    /// Addresses of the blocks of a private pool that are in their owners' hands, in order.
    #[must_use]
    pub fn live_in_pool(&self, pool: PoolId) -> Vec<Address> {
        let Some(set) = self.pools.set_of(pool) else { return Vec::new() };
        let mut live: Vec<_> = self.live_blocks(set).map(|id| self.blocks[id].address).collect();
        live.sort_unstable();
        live
    }

    pub(crate) fn live_blocks(&self, set: PoolSet) -> impl Iterator<Item = BlockId> {
        self.blocks.iter().filter(move |(_, it)| it.allocated && it.pool.set == set).map(|it| it.0)
    }
}

/// The segment around a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    /// Where it begins.
    pub address: Address,
    /// Its bytes.
    pub size: u64,
    /// Whether it consists of pages that come and go.
    pub pages: bool,
}
