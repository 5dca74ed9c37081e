//! Requests that failed: what was asked, what was there, why nothing fitted, what would have helped.
//!
//! In:  a device, its states, its `oom` entries.
//! Out: an [`OomReport`] for each of the first and for the last.

use serde::Serialize;
use tonnage_events::{Action, BlockState, Bytes, grouped};

use super::lines::Lines;
use super::state::States;
use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::Moment;
use crate::total_bytes::TotalBytes;

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
    /// Whether they may be more: the total is known to be at least what was reserved and free at another moment.
    pub outside_at_least: bool,
    /// Whether a limit stopped it, and not the device.
    pub by_limit: bool,
    /// Why nothing fitted.
    pub why: String,
    /// What would have.
    pub would_have: Vec<String>,
    /// What is often tried, and would not have.
    pub would_not_have: Vec<String>,
}

/// The failures that are explained, and how many there are in all.
pub(super) fn ooms(
    device: &DeviceView<'_>,
    states: &States<'_>,
    levels: &Levels,
    total: Option<u64>,
    lines: &mut Lines<'_>,
) -> (usize, Vec<OomReport>) {
    let events: Vec<usize> = (0..device.entries.len())
        .filter(|&event| device.entries[event].action == Action::Oom)
        .collect();
    let mut explained: Vec<_> = events.iter().copied().take(EXPLAINED).collect();
    explained.extend(events.last().copied().filter(|_| events.len() > EXPLAINED));
    let total = match total {
        Some(total) => Total::Is(total),
        None => Total::AtLeast(total_at_least(device, levels, &events)),
    };
    let found = explained.into_iter().map(|event| explain(device, states, event, total, lines));
    (events.len(), found.collect())
}

/// The bytes of the device.
#[derive(Clone, Copy)]
enum Total {
    Is(u64),
    /// No one says, but so many were seen at once.
    AtLeast(u64),
}

/// What was reserved and free at once at the failure where that was most; no less than was ever reserved.
fn total_at_least(device: &DeviceView<'_>, levels: &Levels, ooms: &[usize]) -> u64 {
    let seen = ooms.iter().map(|&event| {
        let reserved = levels.after().get(event).map_or(0, |level| level.reserved);
        device.entries[event].address.0.saturating_add(reserved)
    });
    seen.max().unwrap_or(0).max(levels.peak(|level| level.reserved).map_or(0, |peak| peak.bytes))
}

fn explain(
    device: &DeviceView<'_>,
    states: &States<'_>,
    event: usize,
    total: Total,
    lines: &mut Lines<'_>,
) -> OomReport {
    let segments = &states.at(Moment::Event(event))[..];
    let entry = &device.entries[event];
    let free = entry.address.0;
    let blocks = || segments.iter().flat_map(|it| it.blocks.iter().map(move |block| (it, block)));
    let sum = |state: BlockState| -> u64 {
        blocks()
            .filter(|(_, block)| block.state == state)
            .map(|(_, block)| block.size)
            .total_bytes()
    };
    let (cached, pending) = (sum(BlockState::Inactive), sum(BlockState::ActivePendingFree));
    let reserved = segments.iter().map(|it| it.total_size).total_bytes();
    let live = || blocks().filter(|(_, block)| block.state == BlockState::ActiveAllocated);
    let requested = live().map(|(_, block)| block.requested_size).total_bytes();
    let own = blocks().filter(|(segment, block)| {
        block.state == BlockState::Inactive
            && segment.stream == entry.stream
            && segment.pool.is_default()
    });
    let largest_free = own.map(|(_, block)| block.size).max().unwrap_or(0);
    let others = blocks()
        .filter(|(segment, block)| {
            block.state == BlockState::Inactive && segment.stream != entry.stream
        })
        .map(|(_, block)| block.size)
        .total_bytes();
    let by_limit = free >= entry.size;
    let others_of = |total: u64| total.saturating_sub(free).saturating_sub(reserved);
    let outside = match total {
        Total::Is(total) => Some(others_of(total)),
        // A few bytes are contexts and what the driver keeps.
        Total::AtLeast(total) => Some(others_of(total)).filter(|&it| it > total / 50),
    };
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
    // The smallest that alone is enough: the least that had to go earlier.
    let enough = live().filter(|(_, block)| block.size >= entry.size);
    if let Some((_, block)) = enough.min_by_key(|(_, block)| (block.size, block.address)) {
        let line = lines.of(block.stack).map_or(String::new(), |line| format!(" from {line}"));
        let asked = states.asked_for_at(block.address, Moment::Event(event));
        let asked = asked.map_or_else(
            || ", older than the history".to_owned(),
            |entry| format!(", of entry {}", grouped(entry)),
        );
        would_have.push(format!(
            "freeing earlier the block of {} at {:#x}{line}{asked}",
            Bytes(block.requested_size),
            block.address.0
        ));
    } else {
        let largest = live().max_by_key(|(_, block)| block.size);
        let largest = largest.map_or(0, |(_, block)| block.requested_size);
        would_have.push(format!(
            "freeing several blocks earlier: the largest live one has {}",
            Bytes(largest)
        ));
    }
    let would_not_have = vec![
        "torch.cuda.empty_cache(): before a request fails, the allocator gives back all that is cached whole by itself"
            .to_owned(),
    ];
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
        outside_at_least: outside.is_some() && matches!(total, Total::AtLeast(_)),
        by_limit,
        why,
        would_have,
        would_not_have,
    }
}
