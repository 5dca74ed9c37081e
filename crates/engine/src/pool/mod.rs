//! Stage 3: who has a free block.
//!
//! A device has a default pool and any number of private ones. Each has two halves, small and
//! large, and each half keeps its free blocks in the order in which the search walks them.

mod block_pool;

mod free_blocks;

mod private;

pub(crate) use block_pool::BlockPool;
pub(crate) use free_blocks::FreeBlocks;
pub use private::{PoolError, PoolSource, SourceFailed, StreamFilter};
pub(crate) use private::{Pools, PrivateKey};
use tonnage_events::PoolKind;

/// Names a half of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolRef {
    pub(crate) set: PoolSet,
    pub(crate) kind: PoolKind,
}

/// Names a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolSet {
    Default,
    Private(PrivateKey),
}
