//! The allocator's state at any moment of a history.
//!
//! In:  a device, its lifetimes, and the private pools of requests as far as a replay knows them.
//! Out: the segments of a moment and their blocks, each with the stack that asked for it.
//!
//! Taken from the entries themselves ([`Extents`], [`Lifetimes`]): no replay is needed, and where one is not exact the
//! state still is.

use tonnage_events::{
    Action, Address, BlockState, PoolId, SnapshotBlock, SnapshotSegment, TraceEntry,
};

use crate::device_view::DeviceView;
use crate::extents::Extents;
use crate::levels::Levels;
use crate::lifetimes::{Lifetimes, Moment};

/// Where requests to private pools begin, by entry, and the pool of each.
pub(super) type PoolsOfRequests<'a> = &'a [(usize, PoolId)];

/// The states of a history.
pub(super) struct States<'a> {
    device: &'a DeviceView<'a>,
    lifetimes: &'a Lifetimes,
    pools: PoolsOfRequests<'a>,
    extents: Extents,
}

impl<'a> States<'a> {
    pub(super) fn new(
        device: &'a DeviceView<'a>,
        lifetimes: &'a Lifetimes,
        levels: &Levels,
        pools: PoolsOfRequests<'a>,
    ) -> Self {
        Self { device, lifetimes, pools, extents: Extents::of(device, levels) }
    }

    /// The segments after what happens at `moment`, by ascending address. Their blocks tile them.
    pub(super) fn at(&self, moment: Moment) -> Vec<SnapshotSegment> {
        let device = self.device;
        if device.entries.is_empty() {
            return device.segments.iter().map(|&segment| segment.clone()).collect();
        }
        let mut segments = self.extents.at(moment, device, |event| self.pool_of(event));
        let mut blocks = self.blocks_at(moment).into_iter().peekable();
        for segment in &mut segments {
            // Blocks outside all segments are in files that contradict themselves.
            while blocks.next_if(|block| block.address < segment.address).is_some() {}
            let end = segment.address.0.saturating_add(segment.total_size);
            let inside = std::iter::from_fn(|| blocks.next_if(|block| block.address.0 < end));
            segment.tile(inside);
        }
        segments
    }

    /// The blocks that are in use then, by ascending address.
    fn blocks_at(&self, moment: Moment) -> Vec<SnapshotBlock> {
        let active = |it: &crate::Lifetime| it.allocated <= moment && moment < it.free_completed;
        let blocks = self.lifetimes.iter().filter(active).map(|it| SnapshotBlock {
            address: it.address,
            size: it.size,
            requested_size: it.requested.min(it.size),
            state: if moment < it.free_requested {
                BlockState::ActiveAllocated
            } else {
                BlockState::ActivePendingFree
            },
            stack: it.stack,
        });
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_by_key(|block| block.address);
        blocks
    }

    /// The entry that handed out the block that is live at an address; none if it is older than the history.
    pub(super) fn asked_for_at(&self, address: Address, moment: Moment) -> Option<usize> {
        let mut live = self.lifetimes.iter().filter(|it| it.address == address);
        live.find(|it| it.is_live_after(moment))?.allocated.event()
    }

    /// The pool that the request went to during which this entry obtained memory.
    fn pool_of(&self, event: usize) -> PoolId {
        let place = self.pools.partition_point(|&(begin, _)| begin <= event);
        let Some(&(begin, pool)) = place.checked_sub(1).and_then(|place| self.pools.get(place))
        else {
            return PoolId::DEFAULT;
        };
        let of_the_call = |it: &TraceEntry| !matches!(it.action, Action::Alloc | Action::Oom);
        match self.device.entries.get(begin..event) {
            Some(between) if between.iter().all(of_the_call) => pool,
            _ => PoolId::DEFAULT,
        }
    }
}
