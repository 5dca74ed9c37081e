//! The engine's state in the words of a command stream.

use std::collections::BTreeMap;

use tonnage_engine::{Stat, StatArray, Stats};
use tonnage_events::{BlockState, SnapshotSegment};

use super::format::{End, Segment};
use crate::outcome::Difference;

/// The current values that a stream compares after every command.
pub(super) fn current(stats: &Stats) -> [(&'static str, i64); 18] {
    [
        ("reserved", stats.reserved_bytes.all.current),
        ("allocated", stats.allocated_bytes.all.current),
        ("active", stats.active_bytes.all.current),
        ("requested", stats.requested_bytes.all.current),
        ("inactive_split", stats.inactive_split_bytes.all.current),
        ("inactive_split_count", stats.inactive_split.all.current),
        ("segments", stats.segment.all.current),
        ("allocations", stats.allocation.all.current),
        ("active_count", stats.active.all.current),
        ("reserved_small", stats.reserved_bytes.small_pool.current),
        ("reserved_large", stats.reserved_bytes.large_pool.current),
        ("retries", stats.num_alloc_retries),
        ("ooms", stats.num_ooms),
        ("syncs", stats.num_sync_all_streams),
        ("device_allocs", stats.num_device_alloc),
        ("device_frees", stats.num_device_free),
        ("oversize_allocations", stats.oversize_allocations.current),
        ("oversize_segments", stats.oversize_segments.current),
    ]
}

/// The first current value that is not as expected; values that were never named are 0.
pub(super) fn current_difference(
    expected: &BTreeMap<String, i64>,
    stats: &Stats,
) -> Option<(String, String)> {
    current(stats).into_iter().find_map(|(name, got)| {
        let expected = expected.get(name).copied().unwrap_or(0);
        (got != expected).then(|| (format!("{name} {expected}"), format!("{name} {got}")))
    })
}

fn array<'a>(stats: &'a Stats, name: &str) -> Option<&'a StatArray> {
    Some(match name {
        "allocation" => &stats.allocation,
        "segment" => &stats.segment,
        "active" => &stats.active,
        "inactive_split" => &stats.inactive_split,
        "allocated_bytes" => &stats.allocated_bytes,
        "reserved_bytes" => &stats.reserved_bytes,
        "active_bytes" => &stats.active_bytes,
        "inactive_split_bytes" => &stats.inactive_split_bytes,
        "requested_bytes" => &stats.requested_bytes,
        _ => return None,
    })
}

/// The first difference at the end: current values, peaks and sums, then segments.
pub(super) fn end_difference(
    end: &End,
    stats: &Stats,
    segments: &[SnapshotSegment],
    at: usize,
) -> Option<Difference> {
    let found = current_difference(&end.stats, stats)
        .or_else(|| full_difference(end, stats))
        .or_else(|| segments_difference(&end.segments, segments));
    found.map(|(expected, got)| Difference { event: at, expected, got })
}

fn full_difference(end: &End, stats: &Stats) -> Option<(String, String)> {
    for (name, rows) in &end.full_stats {
        let Some(array) = array(stats, name) else {
            return Some((format!("a statistic called {name}"), "no such statistic".to_owned()));
        };
        let pools = [("all", array.all), ("small", array.small_pool), ("large", array.large_pool)];
        if rows.len() != pools.len() {
            return Some((format!("{} rows of {name}", rows.len()), "3 rows".to_owned()));
        }
        for (row, (pool, stat)) in rows.iter().zip(pools) {
            for (expected, (metric, got)) in row.iter().zip(metrics(stat)) {
                if let Some(expected) = expected.filter(|&expected| expected != got) {
                    let figure = format!("{name}.{pool}.{metric}");
                    return Some((format!("{figure} {expected}"), format!("{figure} {got}")));
                }
            }
        }
    }
    None
}

fn metrics(stat: Stat) -> [(&'static str, i64); 4] {
    [
        ("current", stat.current),
        ("peak", stat.peak),
        ("allocated", stat.allocated),
        ("freed", stat.freed),
    ]
}

/// The first segment that is not as expected.
pub(super) fn segments_difference(
    expected: &[Segment],
    got: &[SnapshotSegment],
) -> Option<(String, String)> {
    let got: Vec<_> = got.iter().map(in_stream_words).collect();
    let longest = expected.len().max(got.len());
    (0..longest).find_map(|index| {
        let (expected, got) = (expected.get(index), got.get(index));
        (expected != got).then(|| (show(expected), show(got)))
    })
}

fn show(segment: Option<&Segment>) -> String {
    segment.map_or_else(|| "no segment".to_owned(), |segment| format!("{segment:?}"))
}

fn in_stream_words(segment: &SnapshotSegment) -> Segment {
    let blocks = segment.blocks.iter().map(|block| {
        let (state, requested) = match block.state {
            BlockState::ActiveAllocated => ("allocated", Some(block.requested_size)),
            BlockState::ActivePendingFree => ("pending", Some(block.requested_size)),
            BlockState::Inactive => ("free", None),
        };
        let offset = block.address.distance_from(segment.address);
        (offset, block.size, state.to_owned(), requested)
    });
    Segment {
        address: segment.address.0,
        size: segment.total_size,
        pool_kind: segment.kind.name().to_owned(),
        stream: segment.stream.0,
        pool: (segment.pool.0, segment.pool.1),
        expandable: segment.expandable,
        blocks: blocks.collect(),
    }
}
