//! The state of the moment: segments and their blocks, and the history up to it.

use tonnage_device::Device;
use tonnage_events::{
    Address, BlockState, Event, PoolId, SnapshotBlock, SnapshotSegment, Stacks, TraceEntry,
};

use crate::block::{Block, BlockId};
use crate::config::Config;
use crate::engine::Engine;
use crate::said::{SaidPurpose, SaidScope};

/// Everything about an allocator at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Segments by ascending address; expandable ones once for each mapped run.
    pub segments: Vec<SnapshotSegment>,
    /// The recorded history, oldest first; empty if history is off.
    pub entries: Vec<TraceEntry>,
    /// The pools of entries that are not about the default one, by the number of the entry, ascending.
    pub pools: Vec<(usize, PoolId)>,
    /// What the program said that blocks are for, in the order in which it did.
    pub purposes: Vec<SaidPurpose>,
    /// What the program said that it does, oldest first.
    pub scopes: Vec<SaidScope>,
    /// The stacks that segments, blocks and entries name.
    pub stacks: Stacks,
    /// The settings in force.
    pub config: Config,
}

impl<D: Device> Engine<D> {
    /// The state and the history now. The history notes it, so it shows in the next snapshot.
    pub fn snapshot(&mut self) -> Snapshot {
        let snapshot = self.snapshot_unrecorded();
        let active = self.stats().active_bytes.all.current.cast_unsigned();
        self.emit(&Event::Snapshot { active, pool: PoolId::DEFAULT }, None);
        snapshot
    }

    /// The same without a note in the history: for those who look on while a job is being recorded.
    #[must_use]
    pub fn snapshot_unrecorded(&self) -> Snapshot {
        let history = self.history();
        Snapshot {
            segments: self.segments(),
            entries: history.map_or_else(Vec::new, |history| history.entries().copied().collect()),
            pools: history.map_or_else(Vec::new, |history| history.pools().collect()),
            purposes: history.map_or_else(Vec::new, |history| history.purposes()),
            scopes: history.map_or_else(Vec::new, |history| history.scopes().collect()),
            stacks: history.map(|history| history.stacks().clone()).unwrap_or_default(),
            config: self.config.clone(),
        }
    }

    /// The segments and their blocks now, by ascending address.
    pub fn segments(&self) -> Vec<SnapshotSegment> {
        let mut segments: Vec<_> =
            self.segment_heads().map(|(id, head)| self.segment_from(id, head)).collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        segments
    }

    /// The first block of each segment, and of each mapped run of an expandable one.
    pub(crate) fn segment_heads(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.blocks.iter().filter(|(_, block)| block.mapped && !self.is_mapped(block.prev))
    }

    /// The rank of each block, also of those without pages, by ascending address: of free blocks of one pool, stream and
    /// size the one with the lowest rank serves first. What ranks are is for the release to say
    /// ([`Tie`](crate::config::Tie)).
    pub fn ranks(&self) -> Vec<(Address, u64)> {
        let mut ranks: Vec<_> =
            self.blocks.iter().map(|(_, block)| (block.address, block.rank)).collect();
        ranks.sort_unstable();
        ranks
    }

    fn is_mapped(&self, id: Option<BlockId>) -> bool {
        id.is_some_and(|id| self.blocks[id].mapped)
    }

    /// The mapped run that begins with this block.
    fn segment_from(&self, first: BlockId, head: &Block) -> SnapshotSegment {
        let mut segment = SnapshotSegment {
            device: self.device.id(),
            address: head.address,
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: head.stream,
            kind: head.pool.kind,
            pool: self.pools.id(head.pool.set),
            expandable: head.range.is_some(),
            stack: head.segment_stack,
            blocks: Vec::new(),
        };
        let mut at = Some(first);
        while let Some(block) = at.map(|id| &self.blocks[id])
            && block.mapped
        {
            let state = block.state();
            segment.total_size += block.size;
            if state == BlockState::ActiveAllocated {
                segment.allocated_size += block.size;
            }
            if state != BlockState::Inactive {
                segment.active_size += block.size;
                segment.requested_size += block.requested;
            }
            match segment.blocks.last_mut() {
                // Not merged yet.
                Some(last) if last.state == state && state == BlockState::Inactive => {
                    last.size += block.size;
                }
                _ => segment.blocks.push(SnapshotBlock {
                    address: block.address,
                    size: block.size,
                    requested_size: block.requested,
                    state,
                    stack: block.stack,
                }),
            }
            at = block.next;
        }
        segment
    }
}
