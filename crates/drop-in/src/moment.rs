//! A moment of a device, flat, so that a C caller can walk it.

use std::ffi::c_void;

use tonnage_engine::Snapshot;
use tonnage_events::{Address, BlockState, PoolId, PoolKind, SnapshotSegment, StackId, TraceEntry};

use crate::types::{Block, Entry, Moment, NO_STACK, PoolName, Segment};

/// What a moment's pointers point into.
pub(crate) struct Owned {
    segments: Vec<Segment>,
    blocks: Vec<Block>,
    entries: Vec<Entry>,
}

pub(crate) fn name_of(pool: PoolId) -> PoolName {
    PoolName { first: pool.0, second: pool.1 }
}

fn number(stack: Option<StackId>) -> u32 {
    stack.map_or(NO_STACK, StackId::number)
}

pub(crate) fn entry_of(entry: &TraceEntry, pool: PoolId) -> Entry {
    Entry {
        address: entry.address.0,
        size: entry.size,
        stream: entry.stream.0,
        pool: name_of(pool),
        time_us: entry.time_us,
        stack: number(entry.stack),
        action: entry.action as u32,
    }
}

/// PyTorch knows who caused a segment as long as it is the block that was asked for, and no longer once it was cut.
fn is_one_block_in_use(segment: &SnapshotSegment) -> bool {
    matches!(&*segment.blocks, [block] if block.state != BlockState::Inactive)
}

/// `numbers` are those of the segments, by ascending address.
pub(crate) fn flat(snapshot: &Snapshot, numbers: &[(Address, u32)], with_history: bool) -> Owned {
    let number_of = |segment: &SnapshotSegment| {
        let found = numbers.binary_search_by_key(&segment.address, |it| it.0);
        found.map_or(0, |at| numbers[at].1)
    };
    let mut owned = Owned { segments: Vec::new(), blocks: Vec::new(), entries: Vec::new() };
    for segment in &snapshot.segments {
        owned.segments.push(Segment {
            address: segment.address.0,
            total: segment.total_size,
            requested: segment.requested_size,
            allocated: segment.allocated_size,
            active: segment.active_size,
            stream: segment.stream.0,
            pool: name_of(segment.pool),
            first_block: owned.blocks.len() as u64,
            blocks: segment.blocks.len() as u64,
            stack: number(segment.stack.filter(|_| is_one_block_in_use(segment))),
            number: number_of(segment),
            large: u8::from(segment.kind == PoolKind::Large),
            expandable: u8::from(segment.expandable),
        });
        owned.blocks.extend(segment.blocks.iter().map(|block| Block {
            size: block.size,
            requested: block.requested_size,
            stack: number(block.stack),
            allocated: u8::from(block.state == BlockState::ActiveAllocated),
            active: u8::from(block.state != BlockState::Inactive),
        }));
    }
    if with_history {
        let mut pools = snapshot.pools.iter().peekable();
        let entries = snapshot.entries.iter().enumerate().map(|(number, entry)| {
            let pool = pools.next_if(|it| it.0 == number).map_or(PoolId::DEFAULT, |it| it.1);
            entry_of(entry, pool)
        });
        owned.entries = entries.collect();
    }
    owned
}

impl Owned {
    /// Hands it to a C caller, until `forget_moment`.
    pub(crate) fn give(self) -> Moment {
        let owned = Box::new(self);
        Moment {
            segments: owned.segments.as_ptr(),
            segment_count: owned.segments.len() as u64,
            blocks: owned.blocks.as_ptr(),
            block_count: owned.blocks.len() as u64,
            entries: owned.entries.as_ptr(),
            entry_count: owned.entries.len() as u64,
            owner: Box::into_raw(owned).cast::<c_void>(),
        }
    }
}
