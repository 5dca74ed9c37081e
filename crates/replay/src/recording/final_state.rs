//! The state at the end, compared.
//!
//! In: the segments of the file, and those that the engine has after the last entry. Out: the first
//! that is not as recorded.

use tonnage_events::{BlockState, SnapshotBlock, SnapshotSegment};

use crate::outcome::Difference;

/// The first segment or block at the end that is not as recorded. In a partial history, what was asked
/// for a block that was free at its start and still is, is not known and does not count.
pub(super) fn segments_difference(
    expected: &[SnapshotSegment],
    got: &[SnapshotSegment],
    event: usize,
    partial: bool,
) -> Option<Difference> {
    let longest = expected.len().max(got.len());
    (0..longest).find_map(|index| {
        let (expected, got) = match (expected.get(index), got.get(index)) {
            (Some(expected), Some(got)) => segment_difference(expected, got, partial)?,
            (expected, got) => (show(expected), show(got)),
        };
        Some(Difference { event, expected, got })
    })
}

fn show(segment: Option<&SnapshotSegment>) -> String {
    let Some(it) = segment else { return "no more segments at the end".to_owned() };
    let (address, size, stream, kind, pool) =
        (it.address, it.total_size, it.stream, it.kind, it.pool);
    let how = if it.expandable { "expandable" } else { "fixed" };
    format!(
        "at the end a {how} segment at {address}, {size} bytes, stream {stream}, {kind} pool {pool}"
    )
}

fn segment_difference(
    expected: &SnapshotSegment,
    got: &SnapshotSegment,
    partial: bool,
) -> Option<(String, String)> {
    let sums = |it: &SnapshotSegment| (it.allocated_size, it.active_size, it.requested_size);
    let head = |it: &SnapshotSegment| {
        (it.address, it.total_size, it.stream, it.kind, it.pool, it.expandable)
    };
    if head(expected) != head(got) {
        return Some((show(Some(expected)), show(Some(got))));
    }
    let blocks = expected.blocks.len().max(got.blocks.len());
    for index in 0..blocks {
        if let (Some(expected), Some(got)) = (expected.blocks.get(index), got.blocks.get(index))
            && agree(expected, got, partial)
        {
            continue;
        }
        let block = |segment: &SnapshotSegment| {
            segment.blocks.get(index).map_or_else(
                || format!("no more blocks in the segment at {}", segment.address),
                |it| {
                    let (address, size, requested, state) =
                        (it.address, it.size, it.requested_size, it.state);
                    format!("at the end a block at {address}, {size} bytes, {requested} requested, {state}")
                },
            )
        };
        return Some((block(expected), block(got)));
    }
    let show = |it: &SnapshotSegment| {
        let (allocated, active, requested) = sums(it);
        format!(
            "{} allocated, {active} active and {requested} requested bytes in the segment at {}",
            allocated, it.address
        )
    };
    (sums(expected) != sums(got)).then(|| (show(expected), show(got)))
}

fn agree(expected: &SnapshotBlock, got: &SnapshotBlock, partial: bool) -> bool {
    let place = |it: &SnapshotBlock| (it.address, it.size, it.state);
    let unknown = partial && got.state == BlockState::Inactive && got.requested_size == 0;
    place(expected) == place(got) && (unknown || expected.requested_size == got.requested_size)
}
