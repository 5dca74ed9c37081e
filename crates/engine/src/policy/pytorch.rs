//! PyTorch's placement rules.

use tonnage_events::PoolKind;

use crate::block::{BlockId, Blocks};
use crate::config::{Config, Release};
use crate::policy::Rung;
use crate::pool::BlockPool;
use crate::request::{MIN_BLOCK, Request};

/// The largest rounded size that the small pool serves.
const SMALL_SIZE: u64 = 1 << 20;

/// Segments that serve the small pool.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Rounded sizes from here on get a segment of their own.
const MIN_OWN_SEGMENT: u64 = 10 << 20;

/// Such segments are whole multiples of this.
const OWN_SEGMENT_UNIT: u64 = 2 << 20;

/// The page of expandable segments of small pools: the device's mapping granularity.
const SMALL_PAGE: u64 = 2 << 20;

/// Where private pools that are set aside come before cached memory goes back.
const SPARE_FIRST: [Rung; 6] = [
    Rung::Callbacks,
    Rung::CollectGarbage,
    Rung::Grow,
    Rung::SparePools,
    Rung::ReleaseOversize,
    Rung::Flush,
];

/// Where they come last.
const SPARE_LAST: [Rung; 6] = [
    Rung::Callbacks,
    Rung::CollectGarbage,
    Rung::Grow,
    Rung::ReleaseOversize,
    Rung::Flush,
    Rung::SparePools,
];

pub(super) fn kind_of(size: u64) -> PoolKind {
    if size <= SMALL_SIZE { PoolKind::Small } else { PoolKind::Large }
}

pub(super) fn ladder(release: Release) -> &'static [Rung] {
    if release.use_on_oom_before_reclaim() { &SPARE_FIRST } else { &SPARE_LAST }
}

pub(super) fn page_size(config: &Config, kind: PoolKind) -> u64 {
    match kind {
        PoolKind::Small => SMALL_PAGE,
        PoolKind::Large => config.large_segment_size(),
    }
}

/// An eighth more than the device has, so that the range can hold the device with some room for holes.
pub(super) fn range_size(total: u64, most: u64, page_size: u64) -> Option<u64> {
    let size = total.checked_add(total / 8)?.min(most).checked_next_multiple_of(page_size)?;
    (size > 0).then_some(size)
}

/// The first block, by address, from which on idle blocks hold the request, some of them unmapped.
pub(super) fn find_room(pool: &BlockPool, blocks: &Blocks, request: &Request) -> Option<BlockId> {
    pool.unmapped_of(request.stream).find_map(|unmapped| {
        let before = blocks[unmapped].prev.filter(|&id| blocks[id].is_idle());
        let first = before.unwrap_or(unmapped);
        let mut room = 0;
        let mut at = Some(first);
        while let Some(id) = at
            && room < request.size
            && blocks[id].is_idle()
        {
            room += blocks[id].size;
            at = blocks[id].next;
        }
        (room >= request.size).then_some(first)
    })
}

pub(super) fn segment_size(config: &Config, size: u64) -> u64 {
    match kind_of(size) {
        PoolKind::Small => SMALL_SEGMENT,
        PoolKind::Large if size < MIN_OWN_SEGMENT => config.large_segment_size(),
        PoolKind::Large => size.next_multiple_of(OWN_SEGMENT_UNIT),
    }
}

pub(super) fn choose(
    config: &Config,
    pool: &BlockPool,
    blocks: &Blocks,
    request: &Request,
) -> Option<BlockId> {
    let &Request { size, stream, .. } = request;
    let mut chosen = pool.free().best(stream, size)?;
    if blocks[chosen].range.is_some() {
        chosen = choose_around_ranges(pool, blocks, request)?;
    }
    // Only this one candidate is tested: no other is tried in its place.
    accepts(config, blocks[chosen].size, request).then_some(chosen)
}

pub(super) fn accepts(config: &Config, found: u64, request: &Request) -> bool {
    let size = request.size;
    let max_split = config.max_split_size();
    let too_good = size < max_split && found >= max_split;
    // The sum wraps around for absurd settings, as PyTorch's does.
    let too_loose =
        size >= max_split && found >= size.wrapping_add(config.max_non_split_rounding());
    !too_good && !too_loose
}

/// The candidate where the best fit is part of an expandable segment.
fn choose_around_ranges(pool: &BlockPool, blocks: &Blocks, request: &Request) -> Option<BlockId> {
    let mut candidates = pool.free().at_least(request.stream, request.size);
    let mut chosen = candidates.next()?;
    if !request.expandable {
        return candidates.find(|&id| blocks[id].range.is_none());
    }
    // The block at the growing end counts with all it could still grow into, so that holes inside
    // are used up first.
    for next in candidates {
        if blocks[chosen].range.is_none() || reach(blocks, next) >= reach(blocks, chosen) {
            break;
        }
        chosen = next;
    }
    Some(chosen)
}

/// A block's size, and that of the unmapped block behind it, if there is one.
fn reach(blocks: &Blocks, id: BlockId) -> u64 {
    let block = &blocks[id];
    let behind = block.next.map(|next| &blocks[next]).filter(|next| !next.mapped);
    block.size + behind.map_or(0, |next| next.size)
}

pub(super) fn splits(config: &Config, size: u64, kind: PoolKind, request: &Request) -> bool {
    let remaining = size - request.size;
    if kind == PoolKind::Small || request.expandable {
        remaining >= MIN_BLOCK
    } else {
        request.size < config.max_split_size() && remaining > SMALL_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mebibyte_is_small_and_one_granule_more_is_large() {
        assert_eq!(kind_of(SMALL_SIZE), PoolKind::Small);
        assert_eq!(kind_of(SMALL_SIZE + MIN_BLOCK), PoolKind::Large);
    }

    #[test]
    fn a_range_is_an_eighth_larger_than_the_device() {
        let total = 8 << 30;
        let unbounded = u64::MAX;
        assert_eq!(range_size(total, unbounded, 2 << 20), Some(9_663_676_416));
        assert_eq!(range_size(total, unbounded, 20 << 20), Some(9_667_870_720));
        assert_eq!(range_size(total, unbounded, u64::MAX - 1), Some(u64::MAX - 1));
        assert_eq!(range_size(u64::MAX, unbounded, 2 << 20), None);
        // A thousandth of the device takes one large page.
        assert_eq!(range_size(total, 8_589_934, 20 << 20), Some(20 << 20));
        assert_eq!(range_size(total, 0, 2 << 20), None);
    }

    #[test]
    fn segments_have_the_sizes_of_the_specification() {
        let config = Config::default();
        for (size, segment) in [
            (512, 2 << 20),
            (1 << 20, 2 << 20),
            ((1 << 20) + 512, 20 << 20),
            (10_485_248, 20 << 20),
            (10 << 20, 10 << 20),
            ((10 << 20) + 512, 12 << 20),
        ] {
            assert_eq!(segment_size(&config, size), segment, "{size}");
        }
    }
}
