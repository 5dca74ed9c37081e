//! What a history does not say, as the player read it.
//!
//! In: the player's conclusions on its way. Out: all that is needed, beside the entries themselves, to
//! ask another allocator for the same.

use tonnage_events::{PoolId, SnapshotSegment};

/// A recording as it was read: with the entries, the whole program.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The segments where the history begins, by ascending address; none if it goes back to the
    /// beginning.
    pub start: Vec<SnapshotSegment>,
    /// Calls of `empty_cache` that released memory, by the entry before which each came: of one pool,
    /// or of the default pool and all that have no uses left.
    pub emptied: Vec<(usize, PoolId)>,
    /// Requests to private pools, by the entry that each begins with.
    pub pools: Vec<(usize, PoolId)>,
    /// Private pools that lost their last use, by the entry before which they did.
    pub released: Vec<(usize, PoolId)>,
    /// Calls inside a capture, where no other reading fits, by the entry that each begins with: requests, and those of
    /// `emptied`.
    pub captured: Vec<usize>,
}
