//! One state change of an allocator.
//!
//! Every change is exactly one [`Event`], emitted from one place; statistics and history learn of
//! it this way and no other. An event therefore carries whatever any of them needs.

use crate::{Address, PoolId, PoolKind, StreamId};

/// A state change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was handed out.
    Alloc(BlockEvent),
    /// A block was given back by its owner. Other streams may still use it.
    FreeRequested(BlockEvent),
    /// A block went back to its pool; sizes are those before it merged with its neighbours.
    FreeCompleted(BlockEvent),
    /// A segment was obtained from the device.
    SegmentAlloc(SegmentEvent),
    /// A segment was returned to the device.
    SegmentFree(SegmentEvent),
    /// Pages were mapped into an expandable segment.
    SegmentMap(SegmentEvent),
    /// Pages were unmapped from an expandable segment.
    SegmentUnmap(SegmentEvent),
    /// A request failed after everything was tried.
    Oom {
        /// Free bytes on the device, by its own count.
        device_free: u64,
        /// The rounded size of the request.
        size: u64,
        /// The stream of the request.
        stream: StreamId,
        /// The pool that was to serve it.
        pool: PoolId,
    },
    /// A request was turned down before the device was asked.
    Rejected,
    /// A snapshot was taken.
    Snapshot {
        /// Active bytes at that moment.
        active: u64,
        /// Of which pool; the default one for all.
        pool: PoolId,
    },
    /// Everything cached was given back and the device was asked once more.
    Retry,
    /// All outstanding events were waited for.
    Synchronize,
}

impl Event {
    /// The pool that it is about; the default pool for what is about none.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        match self {
            Self::Alloc(it) | Self::FreeRequested(it) | Self::FreeCompleted(it) => it.pool,
            Self::SegmentAlloc(it)
            | Self::SegmentFree(it)
            | Self::SegmentMap(it)
            | Self::SegmentUnmap(it) => it.pool,
            Self::Oom { pool, .. } | Self::Snapshot { pool, .. } => *pool,
            Self::Retry | Self::Synchronize | Self::Rejected => PoolId::DEFAULT,
        }
    }
}

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEvent {
    /// Where the block begins.
    pub address: Address,
    /// The block's size: at least the rounded request.
    pub size: u64,
    /// What the caller asked for.
    pub requested: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// The half of that pool.
    pub kind: PoolKind,
    /// Whether its size reaches `max_split_size`.
    pub oversize: bool,
    /// What this did to the free remainders of split segments.
    pub split: SplitChange,
}

/// Net change of the free blocks that cannot go back to the device because another part of their
/// segment is in use (PyTorch's `inactive_split`). Always zero for expandable segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitChange {
    /// Change in their number.
    pub count: i64,
    /// Change in their bytes.
    pub bytes: i64,
}

/// What happened to a segment, or to pages of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEvent {
    /// Where the segment or the pages begin.
    pub address: Address,
    /// Bytes obtained or returned.
    pub size: u64,
    /// The stream that grew or shrank.
    pub stream: StreamId,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// The half of that pool.
    pub kind: PoolKind,
    /// Whether its size reaches `max_split_size`. Never for pages.
    pub oversize: bool,
}
