//! The allocator's state at any moment of a history.
//!
//! In:  a device, its lifetimes, and the private pools of requests as far as a replay knows
//!      them.
//! Out: the segments of a moment and their blocks, each with the stack that asked for it.
//!
//! Taken from the entries themselves: no replay is needed, and where one is not exact the state still
//! is.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use tonnage_events::{
    Action, Address, BlockState, PoolId, PoolKind, SnapshotBlock, SnapshotSegment, StreamId,
};
use tonnage_replay::recording::rebuild_start;

use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::{Lifetimes, Moment};
use crate::total_bytes::TotalBytes;

/// Segments of small pools have this size; those of large pools are larger.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Where requests to private pools begin, by entry, and the pool of each.
pub(super) type PoolsOfRequests<'a> = &'a [(usize, PoolId)];

/// The states of a history.
pub(super) struct States<'a> {
    device: &'a DeviceView<'a>,
    lifetimes: &'a Lifetimes,
    pools: PoolsOfRequests<'a>,
    /// The memory where the history begins.
    start: Memory,
    /// The last entry that obtained a segment at each address.
    obtained_last: FxHashMap<Address, usize>,
}

impl<'a> States<'a> {
    pub(super) fn new(
        device: &'a DeviceView<'a>,
        lifetimes: &'a Lifetimes,
        levels: &Levels,
        pools: PoolsOfRequests<'a>,
    ) -> Self {
        // A whole history begins with nothing, and then there is nothing to rebuild.
        let whole = levels.start.reserved == 0;
        let start = if whole { Memory::default() } else { Memory::at_start(device) };
        let obtained = device.entries.iter().enumerate();
        let obtained_last = obtained
            .filter(|(_, entry)| entry.action == Action::SegmentAlloc)
            .map(|(event, entry)| (entry.address, event))
            .collect();
        Self { device, lifetimes, pools, start, obtained_last }
    }

    /// The segments after what happens at `moment`, by ascending address. Their blocks tile them.
    pub(super) fn at(&self, moment: Moment) -> Vec<SnapshotSegment> {
        let device = self.device;
        if device.entries.is_empty() {
            return device.segments.iter().map(|&segment| segment.clone()).collect();
        }
        let entries = match moment {
            Moment::Before => 0,
            Moment::Event(event) => device.entries.len().min(event + 1),
            Moment::After => device.entries.len(),
        };
        let mut memory = self.start.clone();
        for (event, entry) in device.entries[..entries].iter().enumerate() {
            let end = entry.address.0.saturating_add(entry.size);
            let made = |fixed: bool| {
                let (stream, stack) = (entry.stream, entry.stack);
                Run { end, stream, stack, event, fixed }
            };
            match entry.action {
                Action::SegmentAlloc => drop(memory.runs.insert(entry.address.0, made(true))),
                Action::SegmentMap => memory.map(entry.address.0, made(false)),
                Action::SegmentFree | Action::SegmentUnmap => memory.cut(entry.address.0, end),
                _ => {}
            }
        }
        let mut segments = memory.segments(device, self.pools, &self.obtained_last);
        fill(&mut segments, self.lifetimes, moment);
        segments
    }
}

/// Memory from the device, as one piece.
#[derive(Clone, Copy)]
struct Run {
    end: u64,
    stream: StreamId,
    stack: Option<tonnage_events::StackId>,
    /// The entry that obtained it.
    event: usize,
    fixed: bool,
}

/// Memory from the device, by where each piece begins.
#[derive(Clone, Default)]
struct Memory {
    runs: BTreeMap<u64, Run>,
}

/// Stands for entries before the history.
const BEFORE: usize = usize::MAX;

impl Memory {
    fn at_start(device: &DeviceView<'_>) -> Self {
        let start = rebuild_start(device.file, device.device.0 as usize);
        let runs = start.iter().map(|it| {
            let end = it.address.0.saturating_add(it.total_size);
            let (stream, stack, fixed) = (it.stream, it.stack, !it.expandable);
            (it.address.0, Run { end, stream, stack, event: BEFORE, fixed })
        });
        Self { runs: runs.collect() }
    }

    /// Pages that touch others of their stream become one with them.
    fn map(&mut self, start: u64, made: Run) {
        let (mut start, mut made) = (start, made);
        let joins = |it: &Run| !it.fixed && it.stream == made.stream;
        if let Some((&below, run)) = self.runs.range(..start).next_back()
            && run.end == start
            && joins(run)
        {
            (start, made.event, made.stack) = (below, run.event, run.stack.or(made.stack));
        }
        if let Some(above) = self.runs.get(&made.end).copied().filter(joins) {
            self.runs.remove(&made.end);
            made.end = above.end;
        }
        self.runs.insert(start, made);
    }

    fn cut(&mut self, start: u64, end: u64) {
        let Some((&from, &run)) = self.runs.range(..=start).next_back() else { return };
        if run.end <= start {
            return;
        }
        self.runs.remove(&from);
        if from < start {
            self.runs.insert(from, Run { end: start, ..run });
        }
        if end < run.end {
            self.runs.insert(end, run);
        }
    }

    fn segments(
        &self,
        device: &DeviceView<'_>,
        pools: PoolsOfRequests<'_>,
        obtained_last: &FxHashMap<Address, usize>,
    ) -> Vec<SnapshotSegment> {
        let made = self.runs.iter().map(|(&start, run)| {
            // A segment of the end that holds this one, unless that was obtained again later.
            let place = device.segments.partition_point(|it| it.address.0 <= start);
            let known = place.checked_sub(1).map(|place| device.segments[place]);
            let known = known.filter(|it| {
                let last = obtained_last.get(&Address(start)).copied().unwrap_or(BEFORE);
                start < it.address.0.saturating_add(it.total_size)
                    && (!run.fixed || last == run.event)
            });
            let size = run.end - start;
            let kind = if size <= SMALL_SEGMENT { PoolKind::Small } else { PoolKind::Large };
            SnapshotSegment {
                device: device.device,
                address: Address(start),
                total_size: size,
                allocated_size: 0,
                active_size: 0,
                requested_size: 0,
                stream: run.stream,
                kind: known.map_or(kind, |it| it.kind),
                pool: known.map_or_else(|| pool_of(run.event, device, pools), |it| it.pool),
                expandable: !run.fixed,
                stack: run.stack.or(known.and_then(|it| it.stack)),
                blocks: Vec::new(),
            }
        });
        made.collect()
    }
}

/// The pool that the request went to during which this entry obtained memory.
fn pool_of(event: usize, device: &DeviceView<'_>, pools: PoolsOfRequests<'_>) -> PoolId {
    let place = pools.partition_point(|&(begin, _)| begin <= event);
    let Some(&(begin, pool)) = place.checked_sub(1).and_then(|place| pools.get(place)) else {
        return PoolId::DEFAULT;
    };
    let of_the_call =
        |it: &tonnage_events::TraceEntry| !matches!(it.action, Action::Alloc | Action::Oom);
    match device.entries.get(begin..event) {
        Some(between) if between.iter().all(of_the_call) => pool,
        _ => PoolId::DEFAULT,
    }
}

/// Puts the blocks of the moment into their segments; what is between them is free.
fn fill(segments: &mut [SnapshotSegment], lifetimes: &Lifetimes, moment: Moment) {
    let mut blocks: Vec<SnapshotBlock> = lifetimes
        .iter()
        .filter(|it| it.allocated <= moment && moment < it.free_completed)
        .map(|it| SnapshotBlock {
            address: it.address,
            size: it.size,
            requested_size: it.requested.min(it.size),
            state: if moment < it.free_requested {
                BlockState::ActiveAllocated
            } else {
                BlockState::ActivePendingFree
            },
            stack: it.stack,
        })
        .collect();
    blocks.sort_by_key(|block| block.address);
    let mut blocks = blocks.into_iter().peekable();
    for segment in segments {
        let (mut at, end) = (segment.address.0, segment.address.0 + segment.total_size);
        let mut tiles = Vec::new();
        let free = |from: u64, to: u64| SnapshotBlock {
            address: Address(from),
            size: to - from,
            requested_size: 0,
            state: BlockState::Inactive,
            stack: None,
        };
        // Blocks outside all segments, or inside others, are in files that contradict themselves.
        while blocks.next_if(|block| block.address.0 < at).is_some() {}
        while let Some(block) = blocks.next_if(|block| block.address.0 < end) {
            let reaches = block.address.0.saturating_add(block.size);
            if block.address.0 < at || reaches > end {
                continue;
            }
            if block.address.0 > at {
                tiles.push(free(at, block.address.0));
            }
            at = reaches;
            tiles.push(block);
        }
        if at < end {
            tiles.push(free(at, end));
        }
        let sum = |of: fn(&SnapshotBlock) -> u64, live_only: bool| {
            let counts = |it: &&SnapshotBlock| {
                it.state == BlockState::ActiveAllocated
                    || (!live_only && it.state == BlockState::ActivePendingFree)
            };
            tiles.iter().filter(counts).map(of).total_bytes()
        };
        segment.allocated_size = sum(|it| it.size, true);
        segment.active_size = sum(|it| it.size, false);
        segment.requested_size = sum(|it| it.requested_size, false);
        segment.blocks = tiles;
    }
}
