//! Requests that failed: what was asked, what was there, why nothing fitted, what would have helped.
//!
//! In:  a device, its states, its `oom` entries.
//! Out: an [`OomReport`] for each of the first and for the last.

use serde::Serialize;
use tonnage_engine::Config;
use tonnage_events::{Action, BlockState, Bytes, SnapshotSegment};

use super::lines::Lines;
use super::state::States;
use crate::device_view::DeviceView;
use crate::lifetimes::Moment;

/// How many failures are explained; a program that tries again and again has thousands.
const EXPLAINED: usize = 4;

/// A request that failed.
#[derive(Clone, Debug, Serialize)]
pub struct OomReport {
    /// Its entry.
    pub event: usize,
    /// The rounded request; entries keep nothing else.
    pub bytes: u64,
    /// Its stream.
    pub stream: u64,
    /// Who asked.
    pub line: Option<String>,
    /// Whether it is the last thing that happened.
    pub fatal: bool,
    /// Bytes that the device had free.
    pub device_free: u64,
    /// Bytes that were reserved.
    pub reserved: u64,
    /// Live requested bytes.
    pub requested: u64,
    /// Bytes that were free in pools.
    pub cached: u64,
    /// Bytes freed, with an event outstanding.
    pub pending: u64,
    /// The largest free block of the request's own stream.
    pub largest_free: u64,
    /// Bytes of the device that others held; none if its total is not known.
    pub outside: Option<u64>,
    /// Whether a limit stopped it, and not the device.
    pub by_limit: bool,
    /// Why nothing fitted.
    pub why: String,
    /// What would have.
    pub would_have: Vec<String>,
}

/// The failures that are explained, and how many there are in all.
pub(super) fn ooms(
    device: &DeviceView<'_>,
    states: &States<'_>,
    total: Option<u64>,
    lines: &mut Lines<'_>,
) -> (usize, Vec<OomReport>) {
    let events: Vec<usize> = (0..device.entries.len())
        .filter(|&event| device.entries[event].action == Action::Oom)
        .collect();
    let mut explained: Vec<_> = events.iter().copied().take(EXPLAINED).collect();
    explained.extend(events.last().copied().filter(|_| events.len() > EXPLAINED));
    let config = device.sizing();
    let found = explained.into_iter().map(|event| {
        let segments = states.at(Moment::Event(event));
        explain(device, &segments, event, total, &config, lines)
    });
    (events.len(), found.collect())
}

fn explain(
    device: &DeviceView<'_>,
    segments: &[SnapshotSegment],
    event: usize,
    total: Option<u64>,
    config: &Config,
    lines: &mut Lines<'_>,
) -> OomReport {
    let entry = &device.entries[event];
    let free = entry.address.0;
    let blocks = || segments.iter().flat_map(|it| it.blocks.iter().map(move |block| (it, block)));
    let sum = |state: BlockState| -> u64 {
        blocks().filter(|(_, block)| block.state == state).map(|(_, block)| block.size).sum()
    };
    let (cached, pending) = (sum(BlockState::Inactive), sum(BlockState::ActivePendingFree));
    let reserved: u64 = segments.iter().map(|it| it.total_size).sum();
    let live = || blocks().filter(|(_, block)| block.state == BlockState::ActiveAllocated);
    let requested = live().map(|(_, block)| block.requested_size).sum();
    let own = blocks().filter(|(segment, block)| {
        block.state == BlockState::Inactive
            && segment.stream == entry.stream
            && segment.pool.is_default()
    });
    let largest_free = own.map(|(_, block)| block.size).max().unwrap_or(0);
    let others: u64 = blocks()
        .filter(|(segment, block)| {
            block.state == BlockState::Inactive && segment.stream != entry.stream
        })
        .map(|(_, block)| block.size)
        .sum();
    let by_limit = free >= entry.size;
    let outside = total.map(|total| total.saturating_sub(free).saturating_sub(reserved));
    let why = if largest_free >= entry.size {
        "a free block was large enough, but of another pool, or kept for larger requests".to_owned()
    } else if cached >= entry.size {
        format!(
            "{} were free, but the largest piece on this stream had {}",
            Bytes(cached),
            Bytes(largest_free)
        )
    } else if by_limit {
        format!(
            "{} were free in pools, and a limit kept the device's {} out of reach",
            Bytes(cached),
            Bytes(free)
        )
    } else {
        format!("{} were free in pools and {} on the device", Bytes(cached), Bytes(free))
    };
    let mut would_have = Vec::new();
    if pending >= entry.size {
        would_have.push(format!("waiting for other streams: {} were pending", Bytes(pending)));
    }
    if others >= entry.size {
        would_have.push(format!("the same stream: {} were cached for others", Bytes(others)));
    }
    if !config.expandable_segments() && cached >= entry.size {
        would_have.push(
            "expandable_segments:True, if what is free in pieces can be given back page by page"
                .to_owned(),
        );
    }
    // The smallest that alone is enough: the least that had to go earlier.
    let enough = live().filter(|(_, block)| block.size >= entry.size);
    if let Some((_, block)) = enough.min_by_key(|(_, block)| (block.size, block.address)) {
        let line = lines.of(block.stack).map_or(String::new(), |line| format!(" from {line}"));
        would_have.push(format!("freeing the {}{line} earlier", Bytes(block.requested_size)));
    } else {
        let largest = live().max_by_key(|(_, block)| block.size);
        let largest = largest.map_or(0, |(_, block)| block.requested_size);
        would_have.push(format!(
            "freeing several blocks earlier: the largest live one has {}",
            Bytes(largest)
        ));
    }
    would_have.push(
        "empty_cache would not: a failing request gives back all that is cached whole by itself"
            .to_owned(),
    );
    let later = device.entries[event + 1..].iter();
    OomReport {
        event,
        bytes: entry.size,
        stream: entry.stream.0,
        line: lines.of(entry.stack),
        fatal: !later.clone().any(|it| it.action == Action::Alloc),
        device_free: free,
        reserved,
        requested,
        cached,
        pending,
        largest_free,
        outside,
        by_limit,
        why,
        would_have,
    }
}
