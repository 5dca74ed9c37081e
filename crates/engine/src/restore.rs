//! A state to begin with, instead of nothing.
//!
//! In: the segments and blocks of a moment, as a snapshot shows them. Out: an allocator that goes on
//! from there. The device is asked for every segment and range and decides where each lies; blocks
//! keep their places inside. What a snapshot does not tell begins afresh: free blocks are as old as
//! each other, peaks are what is there now, sums and counts are zero, and each mapped run of a private pool was
//! one growth. Which of equal blocks serves first is by address, unless the state says otherwise ([`Start::order`]).

use std::collections::BTreeMap;

use thiserror::Error;
use tonnage_device::{Device, DeviceError};
use tonnage_events::{
    Address, BlockEvent, BlockState, Event, SegmentEvent, SnapshotBlock, SnapshotSegment,
    SplitChange, StreamId,
};

use crate::block::{Block, BlockId};
use crate::config::Tie;
use crate::engine::Engine;
use crate::pending::Waiting;
use crate::pool::{PoolError, PoolRef, PoolSet};
use crate::segment::Role;
use crate::stats::MOST_RESERVED;

/// The state of an allocator at a moment, to go on from.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Segments by ascending address; expandable ones once for each mapped run.
    pub segments: Vec<SnapshotSegment>,
    /// Where expandable ranges begin, by ascending address: all of them, or none if each begins with
    /// a mapped run.
    pub ranges: Vec<Address>,
    /// The streams that pending blocks wait for, by ascending address of the block.
    pub waits: Vec<(Address, StreamId)>,
    /// What serves first among equal blocks, where the release does not go by address ([`Tie`]): segments and ranges
    /// by where they begin, or blocks, the oldest first. Those that are not named come behind, by address.
    pub order: Vec<Address>,
}

/// A state that cannot be gone on from. The allocator is not usable afterwards.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The allocator has a past already.
    #[error("the allocator holds memory already: restore a state into a new one")]
    NotEmpty,
    /// Blocks do not follow one another through the segment.
    #[error("the blocks of the segment at {0} leave a gap, overlap, or are free side by side")]
    Uneven(Address),
    /// Segments overlap or are not in order.
    #[error("the segment at {0} lies inside or before the one before it")]
    Disordered(Address),
    /// The figures have no numbers for so much.
    #[error("the segments or requests of the state add up to more than 2⁶² bytes")]
    TooLarge,
    /// Pages do not lie where pages can lie.
    #[error("the expandable segment at {0} does not consist of whole pages of {1} bytes")]
    Unpaged(Address, u64),
    /// Nobody says what a pending block waits for.
    #[error("the block at {0} is freed but in use by a stream, and no stream is given")]
    WaitsForNothing(Address),
    /// The pools do not take it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The device does not give the memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A piece of a segment or range, on its way to become a block.
struct Piece<'a> {
    offset: u64,
    size: u64,
    /// None for what has no pages.
    block: Option<&'a SnapshotBlock>,
}

impl<D: Device> Engine<D> {
    /// Goes on from a state. Every private pool has one use then.
    ///
    /// # Errors
    ///
    /// If the allocator is not new, if the state contradicts itself, or if the device does not give
    /// the memory.
    pub fn restore(&mut self, start: &Start) -> Result<(), RestoreError> {
        if self.blocks.iter().next().is_some() || self.reserved() > 0 {
            return Err(RestoreError::NotEmpty);
        }
        let reserved = start.segments.iter().map(|it| it.total_size);
        let blocks = start.segments.iter().flat_map(|segment| &segment.blocks);
        let requested = blocks.filter(|block| !is_free(block)).map(|it| it.requested_size);
        if adds_up(reserved).max(adds_up(requested)) > MOST_RESERVED {
            return Err(RestoreError::TooLarge);
        }
        let mut segments = start.segments.as_slice();
        let mut behind = Address(0);
        let mut made = Vec::new();
        while let Some(first) = segments.first() {
            let count = if first.expandable { self.runs_of_range(start, segments) } else { 1 };
            let (runs, rest) = segments.split_at(count);
            for run in runs {
                let end = run.address.0.checked_add(run.total_size);
                let Some(end) = end.filter(|_| behind <= run.address) else {
                    return Err(RestoreError::Disordered(run.address));
                };
                behind = Address(end);
            }
            if first.expandable {
                self.restore_range(start, runs, &mut made)?;
            } else {
                self.restore_segment(start, first, &mut made)?;
            }
            segments = rest;
        }
        self.order_restored(start, &made);
        let stats = &mut self.ledger.stats;
        stats.reset_peak();
        stats.reset_accumulated();
        self.live = None;
        // Whatever was made here is looked at.
        self.since_walk = self.blocks.len();
        self.debug_walk("restore");
        Ok(())
    }

    fn restore_segment(
        &mut self,
        start: &Start,
        segment: &SnapshotSegment,
        made: &mut Vec<(Address, BlockId)>,
    ) -> Result<(), RestoreError> {
        let pieces = pieces(segment, 0)?;
        let pool = self.restore_pool(segment)?;
        let base = self.device.acquire(segment.total_size)?;
        self.pools.add_reserved(pool.set, segment.total_size);
        self.pools.add_growth(pool.set);
        self.ledger.stats.apply(&Event::SegmentAlloc(SegmentEvent {
            address: base,
            size: segment.total_size,
            stream: segment.stream,
            pool: segment.pool,
            kind: segment.kind,
            oversize: self.is_oversize(segment.total_size),
        }));
        let head = Block::new(base, 0, segment.stream, pool);
        let first = made.len();
        self.restore_blocks(start, &head, &pieces, made)?;
        as_in_start(&mut made[first..], base, segment.address);
        Ok(())
    }

    /// How many of the segments, the first of which is expandable, are runs of one range: those of
    /// the same pool and stream, as far as it reaches and no other begins.
    fn runs_of_range(&self, start: &Start, segments: &[SnapshotSegment]) -> usize {
        let first = &segments[0];
        let base = range_base(start, first.address);
        let page = self.page_size(first.kind);
        let size = self.range_size(first.stream, page).unwrap_or(u64::MAX);
        let belongs = |run: &SnapshotSegment| {
            run.expandable
                && (run.stream, run.kind, run.pool) == (first.stream, first.kind, first.pool)
                && (start.ranges.is_empty() || range_base(start, run.address) == base)
                && run.address.0.saturating_sub(base.0) < size
        };
        segments.iter().take_while(|run| belongs(run)).count().max(1)
    }

    fn restore_range(
        &mut self,
        start: &Start,
        runs: &[SnapshotSegment],
        made: &mut Vec<(Address, BlockId)>,
    ) -> Result<(), RestoreError> {
        let first = &runs[0];
        let old_base = range_base(start, first.address);
        let page = self.page_size(first.kind);
        let size = self.range_size(first.stream, page);
        let no_room = DeviceError::OutOfMemory { requested: first.total_size };
        let size = size.ok_or(no_room)?;
        let mut tiles = Vec::new();
        let mut reached = 0;
        for run in runs {
            let offset = run.address.distance_from(old_base);
            let whole = offset.is_multiple_of(page) && run.total_size.is_multiple_of(page);
            if !whole || run.total_size > size.saturating_sub(offset) {
                return Err(RestoreError::Unpaged(run.address, page));
            }
            if reached < offset {
                tiles.push(Piece { offset: reached, size: offset - reached, block: None });
            }
            tiles.extend(pieces(run, offset)?);
            reached = offset + run.total_size;
        }
        if reached < size {
            tiles.push(Piece { offset: reached, size: size - reached, block: None });
        }
        let pool = self.restore_pool(first)?;
        let range = self.ranges.reserve(&mut self.device, size, page, Role::Expandable)?;
        let base = self.ranges[range].base;
        for run in runs {
            let address = base.offset(run.address.distance_from(old_base));
            let places = self.ranges[range].places_within(address, run.total_size);
            self.ranges.map(&mut self.device, range, places)?;
            self.pools.add_reserved(pool.set, run.total_size);
            self.pools.add_growth(pool.set);
            self.ledger.stats.apply(&Event::SegmentMap(SegmentEvent {
                address,
                size: run.total_size,
                stream: run.stream,
                pool: run.pool,
                kind: run.kind,
                oversize: false,
            }));
        }
        let mut head = Block::new(base, 0, first.stream, pool);
        head.range = Some(range);
        let first = made.len();
        self.restore_blocks(start, &head, &tiles, made)?;
        as_in_start(&mut made[first..], base, old_base);
        Ok(())
    }

    /// Gives all that was restored the ranks that the state says; `made` has the blocks by their address there. See
    /// Note \[Ranks\].
    fn order_restored(&mut self, start: &Start, made: &[(Address, BlockId)]) {
        let tie = self.config.release().tie();
        if tie == Tie::Address || start.order.is_empty() {
            return;
        }
        let named: BTreeMap<_, _> =
            start.order.iter().rev().zip((0..start.order.len()).rev()).collect();
        let is_ranked = |id: BlockId| tie == Tie::Block || self.blocks[id].prev.is_none();
        let mut ranked: Vec<_> = made.iter().filter(|&&(_, id)| is_ranked(id)).collect();
        ranked.sort_by_key(|(at, _)| (named.get(at).copied().unwrap_or(usize::MAX), *at));
        let first_to_last: Vec<_> = ranked.into_iter().map(|&(_, id)| id).collect();
        self.change_ranks(|blocks| blocks.rank_in_order(&first_to_last));
    }

    /// The pool of a segment, made if it is a private one that is not there yet.
    fn restore_pool(&mut self, segment: &SnapshotSegment) -> Result<PoolRef, RestoreError> {
        let set = match segment.pool.is_default() {
            true => PoolSet::Default,
            false => match self.pools.set_of(segment.pool) {
                Some(set) => set,
                None => {
                    self.pools.add_use(segment.pool)?;
                    self.pools.set_of(segment.pool).ok_or(PoolError::Unknown(segment.pool))?
                }
            },
        };
        Ok(PoolRef { set, kind: segment.kind })
    }

    /// Makes the blocks of a chain, in order, each like `head`, and counts those in use.
    fn restore_blocks(
        &mut self,
        start: &Start,
        head: &Block,
        pieces: &[Piece<'_>],
        made: &mut Vec<(Address, BlockId)>,
    ) -> Result<(), RestoreError> {
        let mut split = SplitChange::default();
        let is_split = pieces.len() > 1 && head.range.is_none();
        let free = |piece: &&Piece<'_>| piece.block.is_some_and(is_free);
        for piece in pieces.iter().filter(|_| is_split).filter(free) {
            split.count += 1;
            split.bytes += piece.size.cast_signed();
        }
        let chain = pieces.iter().map(|piece| piece.size).sum();
        let mut before: Option<BlockId> = None;
        for piece in pieces {
            let mut block = head.clone();
            block.address = head.address.offset(piece.offset);
            block.size = piece.size;
            block.mapped = piece.block.is_some();
            block.prev = before;
            let state = piece.block.map_or(BlockState::Inactive, |block| block.state);
            block.requested = piece.block.map_or(0, |block| block.requested_size);
            block.allocated = state == BlockState::ActiveAllocated;
            let id = match before {
                None => self.insert_segment(block, chain),
                Some(before) => {
                    block.rank = self.blocks.rank_behind(before);
                    block.segment_number = self.blocks[before].segment_number;
                    self.blocks.insert(block)
                }
            };
            if let Some(before) = before {
                self.blocks[before].next = Some(id);
            }
            before = Some(id);
            made.push((self.blocks[id].address, id));
            if state == BlockState::Inactive {
                self.put(id);
                continue;
            }
            let event = BlockEvent { split: std::mem::take(&mut split), ..self.block_event(id) };
            self.ledger.stats.apply(&Event::Alloc(event));
            if let Some(pending) = piece.block.filter(|_| state == BlockState::ActivePendingFree) {
                self.ledger.stats.apply(&Event::FreeRequested(self.block_event(id)));
                self.restore_waits(start, id, pending.address)?;
            }
        }
        Ok(())
    }

    fn restore_waits(
        &mut self,
        start: &Start,
        id: BlockId,
        address: Address,
    ) -> Result<(), RestoreError> {
        let from = start.waits.partition_point(|&(of, _)| of < address);
        let of_block = start.waits[from..].iter().take_while(|&&(of, _)| of == address);
        for &(_, stream) in of_block {
            let event = self.device.record_event(stream)?;
            let address = self.blocks[id].address;
            self.pending.push(stream, Waiting { event, block: id, address });
            self.blocks[id].foreign_mut().events += 1;
        }
        if self.blocks[id].foreign().events == 0 {
            return Err(RestoreError::WaitsForNothing(address));
        }
        Ok(())
    }
}

/// Where the range that holds this address begins.
fn range_base(start: &Start, address: Address) -> Address {
    let below = start.ranges.partition_point(|&base| base <= address);
    below.checked_sub(1).map_or(address, |index| start.ranges[index])
}

/// Blocks of a segment by the addresses that they had, when it began at `was` and not at `is`.
fn as_in_start(made: &mut [(Address, BlockId)], is: Address, was: Address) {
    for (address, _) in made {
        *address = was.offset(address.distance_from(is));
    }
}

fn adds_up(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

fn is_free(block: &SnapshotBlock) -> bool {
    block.state == BlockState::Inactive
}

/// The blocks of a segment that begins at `offset`, if they follow one another and fill it.
fn pieces(segment: &SnapshotSegment, offset: u64) -> Result<Vec<Piece<'_>>, RestoreError> {
    let uneven = || RestoreError::Uneven(segment.address);
    let mut reached = 0_u64;
    let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(segment.blocks.len());
    for block in &segment.blocks {
        let follows = segment.address.0.checked_add(reached) == Some(block.address.0);
        let before = pieces.last().and_then(|piece| piece.block);
        let unmerged = is_free(block) && before.is_some_and(is_free);
        if !follows || unmerged || block.size == 0 || block.size > segment.total_size - reached {
            return Err(uneven());
        }
        pieces.push(Piece { offset: offset + reached, size: block.size, block: Some(block) });
        reached += block.size;
    }
    if reached != segment.total_size || reached == 0 {
        return Err(uneven());
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use tonnage_device::Dry;
    use tonnage_events::PoolId;

    use super::*;
    use crate::config::Config;
    use crate::{Release, StreamFilter};

    const POOL: PoolId = PoolId(0, 3);

    fn engine(conf: &str) -> Engine<Dry> {
        Engine::new(Dry::new(8 << 30), Config::parse(conf, Release::default()).unwrap())
    }

    /// An allocator with a bit of everything: pools, streams, holes, pending blocks.
    fn busy(conf: &str) -> Engine<Dry> {
        let mut engine = engine(conf);
        let mut blocks = Vec::new();
        for index in 0..40_u64 {
            if index == 30 {
                engine.begin_allocate_to_pool(POOL, StreamFilter::Any).unwrap();
            }
            let bytes = [700, 3 << 20, 25 << 20, 90_000][(index % 4) as usize] + index;
            blocks.push(engine.allocate(bytes, StreamId(index % 3)).unwrap());
        }
        engine.end_allocate_to_pool(POOL).unwrap();
        for (index, block) in blocks.iter().enumerate() {
            if index % 3 == 1 {
                engine.free(block).unwrap();
            }
        }
        // Leaves holes in expandable ranges.
        engine.empty_cache().unwrap();
        for (index, block) in blocks.iter().enumerate() {
            if index % 3 != 1 && index % 7 == 2 {
                engine.record_stream(block.address, StreamId(9)).unwrap();
                engine.free(block).unwrap();
            }
        }
        engine
    }

    fn start_of(engine: &Engine<Dry>) -> Start {
        let segments = engine.segments();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let pending = blocks.filter(|block| block.state == BlockState::ActivePendingFree);
        let waits = pending.map(|block| (block.address, StreamId(9))).collect();
        Start { segments, waits, ..Start::default() }
    }

    #[test]
    fn equal_blocks_serve_in_the_order_that_the_state_says() {
        const SIZE: u64 = 30 << 20;
        for (release, order) in [
            (Release::V2_11, [0, 1, 2]),
            (Release::V2_12, [2, 0, 1]),
            (Release::V2_13, [2, 0, 1]),
            (Release::V2_15, [2, 0, 1]),
        ] {
            let engine = || Engine::new(Dry::new(8 << 30), Config::for_release(release));
            let mut before = engine();
            let blocks = [(); 3].map(|()| before.allocate(SIZE, StreamId(0)).unwrap());
            blocks.iter().for_each(|block| before.free(block).unwrap());
            let mut start = start_of(&before);
            // The second is not named and comes last; an address that nothing lies at is passed over.
            let at = |index: usize| start.segments[index].address;
            start.order = vec![Address(7), at(2), at(0), at(2)];
            let mut restored = engine();
            restored.restore(&start).unwrap();
            restored.check_invariants().unwrap();
            let places: Vec<_> = restored.segments().iter().map(|it| it.address).collect();
            let served = order.map(|_| restored.allocate(SIZE, StreamId(0)).unwrap().address);
            assert_eq!(served, order.map(|index| places[index]), "{release}");
        }
    }

    #[test]
    fn blocks_that_have_numbers_serve_in_the_order_that_the_state_says_once_they_are_free() {
        let engine = || Engine::new(Dry::new(8 << 30), Config::for_release(Release::V2_12));
        let mut before = engine();
        for _ in 0..4 {
            before.allocate(524_288, StreamId(0)).unwrap();
        }
        let mut start = start_of(&before);
        let names: Vec<_> = start.segments[0].blocks.iter().map(|block| block.address).collect();
        for (order, served) in [([0, 2], 0), ([2, 0], 2)] {
            start.order = order.map(|index| names[index]).to_vec();
            let mut restored = engine();
            restored.restore(&start).unwrap();
            let places: Vec<_> =
                restored.segments()[0].blocks.iter().map(|block| block.address).collect();
            restored.free_address(places[0]).unwrap();
            restored.free_address(places[2]).unwrap();
            let ranks: Vec<_> = restored.ranks().into_iter().map(|(at, _)| at).collect();
            assert_eq!(ranks, places);
            let again = restored.allocate(524_288, StreamId(0)).unwrap();
            assert_eq!(again.address, places[served], "{order:?}");
        }
    }

    #[test]
    fn a_restored_allocator_has_the_same_blocks_and_current_figures() {
        for conf in ["", "expandable_segments:True", "max_split_size_mb:21"] {
            let busy = busy(conf);
            let mut restored = engine(conf);
            let start = start_of(&busy);
            assert!(!start.waits.is_empty());
            restored.restore(&start).unwrap();
            restored.check_invariants().unwrap();
            // Addresses are the device's; sizes, states and pools are those of before.
            let shape = |engine: &Engine<Dry>| -> Vec<_> {
                let blocks = |it: &SnapshotSegment| -> Vec<_> {
                    it.blocks.iter().map(|it| (it.size, it.requested_size, it.state)).collect()
                };
                let segments = engine.segments();
                let mut shape: Vec<_> = segments
                    .iter()
                    .map(|it| (it.pool, it.kind, it.stream, blocks(it), it.active_size))
                    .map(|it| format!("{it:?}"))
                    .collect();
                shape.sort();
                shape
            };
            assert_eq!(shape(&restored), shape(&busy), "{conf}");
            let current = |engine: &Engine<Dry>| -> Vec<_> {
                let figures = engine.stats().memory_stats().into_iter();
                figures.filter(|(name, _)| name.ends_with("current")).collect()
            };
            assert_eq!(current(&restored), current(&busy), "{conf}");
            restored.device_mut().complete_events();
            restored.release_pool(POOL).unwrap();
            restored.allocate(1, StreamId(0)).unwrap();
        }
    }

    #[test]
    fn states_that_contradict_themselves_are_refused() {
        let busy = busy("");
        let whole = start_of(&busy);
        let refused = |change: fn(&mut Start)| {
            let mut start = whole.clone();
            change(&mut start);
            engine("").restore(&start).unwrap_err().to_string()
        };
        assert!(refused(|it| it.segments[0].blocks[0].size += 512).contains("gap"));
        assert!(refused(|it| it.segments[0].total_size = 0).contains("gap"));
        assert!(refused(|it| it.segments.swap(0, 1)).contains("before"));
        assert!(refused(|it| it.segments[1].address = Address(u64::MAX)).contains("before"));
        assert!(refused(|it| it.waits.clear()).contains("no stream"));
        let asked_for = |it: &mut Start| {
            let blocks = it.segments.iter_mut().flat_map(|segment| &mut segment.blocks);
            blocks.for_each(|block| block.requested_size = u64::MAX / 2);
        };
        assert!(refused(asked_for).contains("2⁶²"));
        let all_expandable = |it: &mut Start| {
            it.segments.iter_mut().for_each(|segment| segment.expandable = true);
        };
        assert!(refused(all_expandable).contains("pages"));
        let mut used = engine("");
        used.allocate(1, StreamId(0)).unwrap();
        assert!(used.restore(&whole).unwrap_err().to_string().contains("new one"));
    }
}
