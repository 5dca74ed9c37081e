//! The state of an allocator at a moment: its segments and their blocks.
//!
//! The blocks of a segment, in address order, tile it. An expandable segment appears once for each
//! contiguous run of mapped pages.

use crate::{Address, DeviceId, PoolId, PoolKind, StackId, StreamId};

/// A segment, or a mapped run of an expandable one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSegment {
    /// The device it lies on.
    pub device: DeviceId,
    /// Where it begins.
    pub address: Address,
    /// Bytes from there.
    pub total_size: u64,
    /// Bytes of blocks that are handed out.
    pub allocated_size: u64,
    /// Bytes of blocks that are handed out, or freed but in use by a stream.
    pub active_size: u64,
    /// Bytes that callers asked for, of the active blocks.
    pub requested_size: u64,
    /// The stream its blocks belong to.
    pub stream: StreamId,
    /// Small or large.
    pub kind: PoolKind,
    /// The pool that owns it.
    pub pool: PoolId,
    /// Whether it can grow in place.
    pub expandable: bool,
    /// Who asked for it, if recorded.
    pub stack: Option<StackId>,
    /// Its blocks by ascending address.
    pub blocks: Vec<SnapshotBlock>,
}

impl SnapshotSegment {
    /// Lays blocks, by ascending address, into the segment: what lies between them is free, and the sums follow. A block that
    /// begins inside another or does not end inside the segment is left out; only files that contradict themselves have such.
    pub fn tile(&mut self, blocks: impl IntoIterator<Item = SnapshotBlock>) {
        let end = self.address.0.saturating_add(self.total_size);
        let mut reached = self.address.0;
        self.blocks.clear();
        (self.allocated_size, self.active_size, self.requested_size) = (0, 0, 0);
        for block in blocks {
            let to = block.address.0.checked_add(block.size).filter(|&to| to <= end);
            let Some(to) = to.filter(|_| block.address.0 >= reached) else { continue };
            self.push_free(reached, block.address.0);
            reached = to;
            self.blocks.push(block);
            // Blocks do not overlap, so their bytes are at most the segment's; what was asked for may be anything.
            if block.state != BlockState::Inactive {
                self.active_size += block.size;
                self.requested_size = self.requested_size.saturating_add(block.requested_size);
            }
            if block.state == BlockState::ActiveAllocated {
                self.allocated_size += block.size;
            }
        }
        self.push_free(reached, end);
    }

    fn push_free(&mut self, from: u64, to: u64) {
        if from < to {
            self.blocks.push(SnapshotBlock {
                address: Address(from),
                size: to - from,
                requested_size: 0,
                state: BlockState::Inactive,
                stack: None,
            });
        }
    }
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// Where it begins.
    pub address: Address,
    /// Bytes from there.
    pub size: u64,
    /// What the caller asked for; for a free block, what an earlier caller did.
    pub requested_size: u64,
    /// Whether it is in use.
    pub state: BlockState,
    /// Who asked for it, if recorded.
    pub stack: Option<StackId>,
}

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Handed out.
    ActiveAllocated,
    /// Freed by its owner, not yet known to be unused by other streams.
    ActivePendingFree,
    /// Free in its pool.
    Inactive,
}

impl BlockState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::ActiveAllocated, Self::ActivePendingFree, Self::Inactive];

    /// PyTorch's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }

    /// The state of this name; also the one that PyTorch's documentation uses.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "active_awaiting_free" {
            return Some(Self::ActivePendingFree);
        }
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl std::fmt::Display for BlockState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
