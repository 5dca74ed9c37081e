//! The free ends of pages, as memory for a request that would fail otherwise.
//!
//! # Note \[Ends of pages\]
//!
//! *Why.* A page with one live byte cannot move, and what else is free in it serves small requests alone. In a job of a hundred
//! mebibytes that is a tenth.
//!
//! *How.* The page is mapped once more, as the first or the last page of a view: a block that begins with the free end of one page
//! goes on over whole pages, and ends with the free beginning of another. Such a page is in use in two places, each byte of it in
//! one: what is *lent* is blocked where the rest is in use, and the rest is blocked where the part was lent to. When the block is freed, the part
//! goes back at once, which is bookkeeping.
//!
//! *Limits.* Of the pages between, all bytes are needed: a view has two ends. A page lends one part at a time. Pages that are used in two
//! places stay where they are for longer, so it is done where memory is short alone: for large requests near the limit, and for those
//! that would fail.

use tonnage_device::{Device, DeviceError};
use tonnage_events::{PoolKind, StackId, StreamId};

use super::place::Part;
use super::stitch::Effort;
use crate::block::BlockId;
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet};
use crate::request::Request;

impl<D: Device> Engine<D> {
    /// A block for the request out of the free end of a page, free pages, and the free beginning of a page; what is missing
    /// is made.
    pub(crate) fn stitch_with_ends(
        &mut self,
        request: &Request,
        effort: Effort,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let granule = self.granule();
        self.drop_a_retired_view()?;
        let [tail, head] = self.largest_ends(request, effort);
        let of_ends = [tail, head].iter().flatten().map(|end| end.size).sum();
        if of_ends == 0 {
            return Ok(None);
        }
        let idle = self.pages_to_stitch(request, effort, granule);
        let free: u64 = idle.iter().map(|it| it.size).sum();
        let missing = request.size.saturating_sub(of_ends).saturating_sub(free);
        let policy = self.policy;
        let suits = |page| effort > Effort::Sensible || policy.stitches(page, request, granule);
        let parts = if missing == 0 {
            join(tail, idle, head, request.size)
        } else if self.extend_home(request, missing, suits, stack)? {
            // Free blocks have grown.
            let [tail, head] = self.largest_ends(request, effort);
            join(tail, self.pages_to_stitch(request, effort, granule), head, request.size)
        } else {
            None
        };
        parts.map_or(Ok(None), |parts| self.use_new_view(&parts, request, stack))
    }

    /// The largest free end of a page, and the largest free beginning of another, that are smaller than the request.
    fn largest_ends(&self, request: &Request, effort: Effort) -> [Option<Part>; 2] {
        let [tail, head] = self.ends(request.stream, effort).map(|ends| {
            let smaller = ends.into_iter().filter(|end| end.size < request.size);
            let suitable = smaller.filter(|end| self.suits(end.page, request, effort));
            suitable.max_by_key(|end| end.size)
        });
        // A view has a page once.
        match (tail, head) {
            (Some(one), Some(other)) if one.page == other.page => {
                if one.size < other.size {
                    [None, head]
                } else {
                    [tail, None]
                }
            }
            ends => ends.into(),
        }
    }

    /// The free ends of pages that serve a stream, and the free beginnings.
    pub(super) fn ends(&self, stream: StreamId, effort: Effort) -> [Vec<Part>; 2] {
        let (tails, heads): (Vec<_>, Vec<_>) = self
            .free_to_all(stream)
            .map(|block| self.ends_of(block, effort))
            .map(|[tail, head]| (tail, head))
            .unzip();
        [tails, heads].map(|ends| ends.into_iter().flatten().collect())
    }

    /// Free blocks of the default pool that serve a stream.
    fn free_to_all(&self, stream: StreamId) -> impl Iterator<Item = BlockId> + '_ {
        [PoolKind::Large, PoolKind::Small].into_iter().flat_map(move |kind| {
            let free = self.pools.half(PoolRef { set: PoolSet::Default, kind }).free();
            free.iter().filter(move |&id| self.serves(&self.blocks[id], stream))
        })
    }

    /// What of a free block is the end of a page that begins before it, and the beginning of one that ends behind it.
    fn ends_of(&self, id: BlockId, effort: Effort) -> [Option<Part>; 2] {
        let block = &self.blocks[id];
        let Some(range) = block.range.map(|range| &self.ranges[range]) else { return [None; 2] };
        let start = block.address.distance_from(range.base);
        let end = start + block.size;
        let part = |(&at, &(page, size)): (&u64, &(_, u64))| {
            let (from, to) = (start.max(at), end.min(at + size));
            let lends = self.store.pages[page].lent.is_none() && self.has_room(page, effort);
            (lends && to - from < size).then_some(Part {
                page,
                block: id,
                offset: from - at,
                size: to - from,
            })
        };
        let first = range.laid.range(..=start).next_back();
        let last = range.laid.range(..end).next_back();
        let tail = first.filter(|(at, (_, size))| **at + size <= end).and_then(part);
        let head = last.filter(|(at, _)| start <= **at).and_then(part);
        [tail, head]
    }
}

/// Parts that make up a request: the end of a page, whole pages, and as much of the beginning of another as is missing then; or the smallest
/// page that is enough.
fn join(tail: Option<Part>, idle: Vec<Part>, head: Option<Part>, size: u64) -> Option<Vec<Part>> {
    let mut missing = size - tail.map_or(0, |tail| tail.size);
    let mut parts = Vec::from_iter(tail);
    let mut left = Vec::new();
    for it in idle {
        if it.size <= missing {
            missing -= it.size;
            parts.push(it);
        } else {
            left.push(it);
        }
    }
    if missing > 0 {
        let head = head.filter(|head| missing <= head.size);
        let head = head.map(|head| Part { size: missing, ..head });
        let whole = left.into_iter().filter(|it| missing <= it.size).min_by_key(|it| it.size);
        parts.push(head.or(whole)?);
    }
    Some(parts)
}
