//! PyTorch's placement rules.

use tonnage_events::PoolKind;

use crate::block::{BlockId, Blocks};
use crate::config::Config;
use crate::pool::BlockPool;
use crate::request::{MIN_BLOCK, Request, SMALL_SIZE, kind_of};

/// Segments that serve the small pool.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Rounded sizes from here on get a segment of their own.
const MIN_OWN_SEGMENT: u64 = 10 << 20;

/// Such segments are whole multiples of this.
const OWN_SEGMENT_UNIT: u64 = 2 << 20;

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
