//! The way of a request, one line per stage: from what was asked to a block of the right size.
//!
//! In:  bytes and a stream. Out: a block, cut to size, in its owner's hands; or the end of the ladder, which says why not.

use std::sync::Arc;

use tonnage_device::{Device, DeviceError};
use tonnage_events::{Event, PoolKind, SplitChange, StackId, StreamId};

use crate::block::BlockId;
use crate::engine::Engine;
use crate::error::AllocError;
use crate::owner::Allocation;
use crate::pages::Effort;
use crate::policy::Rung;
use crate::pool::{PoolRef, PoolSet};
use crate::request::{Request, round};

/// Where a block for a request was found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// In the pool, where it still is.
    Cached(BlockId),
    /// At the device: it is in no set.
    New(BlockId),
}

impl<D: Device> Engine<D> {
    pub(crate) fn allocate_with(
        &mut self,
        bytes: u64,
        stream: StreamId,
        stack: Option<StackId>,
    ) -> Result<Allocation, AllocError> {
        if let Some(allocation) = self.try_cached(bytes, stream, stack)? {
            return Ok(allocation);
        }
        let request = self.plan(bytes, stream);
        let (found, request) = self.acquire_or_reclaim(request, stack)?;
        Ok(self.hand_out(found, &request, stack))
    }

    /// The part of the way that costs nothing but a search.
    #[inline]
    pub(crate) fn try_cached(
        &mut self,
        bytes: u64,
        stream: StreamId,
        stack: Option<StackId>,
    ) -> Result<Option<Allocation>, AllocError> {
        if !self.capturing() {
            self.poll()?;
        }
        let request = self.plan(bytes, stream);
        self.check_pool(&request)?;
        if let Some(allocation) = self.hand_out_last_freed(&request, stack) {
            return Ok(Some(allocation));
        }
        self.settle();
        let found = self.find_cached(&request);
        Ok(found.map(|id| self.hand_out(Found::Cached(id), &request, stack)))
    }

    /// The rest of the way, after callbacks that were run elsewhere.
    pub(crate) fn allocate_after_callbacks(
        &mut self,
        bytes: u64,
        stream: StreamId,
        freed: bool,
        stack: Option<StackId>,
    ) -> Result<Allocation, AllocError> {
        self.settle();
        let request = self.plan(bytes, stream);
        self.check_pool(&request)?;
        if freed && let Some(id) = self.find_cached(&request) {
            return Ok(self.hand_out(Found::Cached(id), &request, stack));
        }
        let (found, request) = self.acquire_or_reclaim(request, stack)?;
        Ok(self.hand_out(found, &request, stack))
    }

    /// Asks the device how events stand, and takes back the blocks that nothing uses any more.
    fn poll(&mut self) -> Result<(), DeviceError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.settle_deferred()?;
        if self.polls { self.collect_complete() } else { Ok(()) }
    }

    /// Stages 1 and 2: what the pools will deal in, and which of them.
    fn plan(&self, bytes: u64, stream: StreamId) -> Request {
        let size = round(bytes, &self.config);
        let set = self.pools.select(stream, self.config.release().newest_diversion_wins());
        Request {
            bytes,
            size,
            stream,
            pool: PoolRef { set, kind: self.policy.kind_of(size, self.reserved()) },
            segment_size: self.policy.segment_size(&self.config, size),
            expandable: self.config.expandable_segments()
                && !self.policy.moves_pages()
                && self.pools.source(set).is_none(),
        }
    }

    /// A pool that is paused serves nothing.
    #[inline]
    fn check_pool(&self, request: &Request) -> Result<(), AllocError> {
        if request.pool.set == PoolSet::Default || self.paused_pools.is_empty() {
            return Ok(());
        }
        let pool = self.pools.id(request.pool.set);
        if !self.is_pool_paused(pool) {
            return Ok(());
        }
        let tag = self.pools.tag(pool).map(Arc::clone);
        Err(tag.map_or(AllocError::PoolPaused(pool), AllocError::TagPaused))
    }

    /// Stage 3: a free block of the request's pool and stream.
    fn find_cached(&mut self, request: &Request) -> Option<BlockId> {
        let collecting = self.collects_garbage();
        let pool = self.pools.half_mut(request.pool);
        if collecting {
            pool.count_search();
        }
        self.policy.choose(&self.config, pool, &self.blocks, request)
    }

    /// The ladder below the cache: each rung costs more than the one before.
    #[cold]
    fn acquire_or_reclaim(
        &mut self,
        mut request: Request,
        stack: Option<StackId>,
    ) -> Result<(Found, Request), AllocError> {
        for &rung in self.policy.ladder(self.config.release()) {
            if let Some(found) = self.try_rung(rung, &mut request, stack)? {
                return Ok(found);
            }
        }
        Err(self.out_of_memory(&request, stack))
    }

    /// A block from this rung, if it has one, and the request that it serves.
    fn try_rung(
        &mut self,
        rung: Rung,
        request: &mut Request,
        stack: Option<StackId>,
    ) -> Result<Option<(Found, Request)>, AllocError> {
        let grown = match rung {
            Rung::Callbacks => return Ok(self.find_after_callbacks(request)),
            Rung::CollectGarbage => {
                if self.collects_garbage() {
                    self.collect_garbage(stack)?;
                }
                None
            }
            Rung::Grow if self.policy.moves_pages() => self.grow_home(request, false, stack)?,
            Rung::Grow => self.grow(request, stack)?,
            // Captured graphs use the memory of private pools on streams that no one knows yet: nothing is lent to them.
            Rung::Borrow | Rung::View | Rung::Ends | Rung::Stitch
                if request.pool.set != PoolSet::Default =>
            {
                None
            }
            Rung::Borrow => {
                self.look_at_others(request)?;
                self.borrow(request)
            }
            Rung::View => match self.find_view(request, false, stack) {
                None if self.is_nearly_full(request) => self.find_view(request, true, stack),
                found => found,
            },
            Rung::Leftovers => self.find_leftover(request, stack)?,
            Rung::Ends if !self.is_nearly_full(request) => None,
            Rung::Ends => self.use_ends(request, stack)?,
            Rung::GrowWithinSlack => self.grow_home(request, true, stack)?,
            Rung::Stitch => self.stitch(request, Effort::Sensible, stack)?,
            Rung::Reclaim => self.reclaim_pages(request, stack)?,
            Rung::OtherHalf => {
                let kind = match request.pool.kind {
                    PoolKind::Small => PoolKind::Large,
                    PoolKind::Large => PoolKind::Small,
                };
                let pool = PoolRef { kind, ..request.pool };
                let request = Request { pool, ..*request };
                return Ok(self.borrow(&request).map(|id| (Found::New(id), request)));
            }
            Rung::SparePools => return Ok(self.find_in_spare_pool(request)),
            Rung::ReleaseOversize => {
                if !self.release_oversize(request, stack)? {
                    return Ok(None);
                }
                self.grow(request, stack)?
            }
            Rung::Flush => {
                if self.capturing() {
                    return Ok(None);
                }
                self.flush(stack)?;
                self.emit(&Event::Retry, None);
                self.grow(request, stack)?
            }
        };
        Ok(grown.map(|id| (Found::New(id), *request)))
    }

    /// Runs the callbacks, plans the request anew, and searches again if they freed anything.
    fn find_after_callbacks(&mut self, request: &mut Request) -> Option<(Found, Request)> {
        if self.callbacks.is_empty() {
            return None;
        }
        let freed = self.run_callbacks();
        self.settle();
        // They may have changed pools and settings.
        *request = self.plan(request.bytes, request.stream);
        let id = freed.then(|| self.find_cached(request)).flatten()?;
        Some((Found::Cached(id), *request))
    }

    /// A view with ends of pages; or new pages first, where more may lie free than by default, so that sizes that never repeat are
    /// not stitched for ever here either.
    fn use_ends(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        if self.allows_much_slack()
            && let Some(id) = self.grow_home(request, true, stack)?
        {
            return Ok(Some(id));
        }
        self.stitch_with_ends(request, Effort::Sensible, stack)
    }

    /// A part of a free block that is of the request's stream by now, or that another stream is done with.
    fn borrow(&mut self, request: &Request) -> Option<BlockId> {
        if let Some(id) = self.find_cached(request) {
            self.take(id);
            return Some(id);
        }
        let free = self.pools.half(request.pool).free();
        let id = free
            .streams()
            .filter_map(|stream| {
                let mut large = free.at_least(stream, request.size);
                large.find(|&id| self.is_anyones(&self.blocks[id]))
            })
            .min_by_key(|&id| (self.blocks[id].size, self.blocks[id].rank))?;
        self.take(id);
        let cut =
            self.policy.splits(&self.config, self.blocks[id].size, request.pool.kind, request)
                && !self.pools.never_splits(request.pool.set);
        let taken = if cut {
            let taken = self.blocks.split_front(id, request.size);
            self.put(id);
            taken
        } else {
            id
        };
        self.blocks[taken].stream = request.stream;
        Some(taken)
    }

    /// Waits for all that is pending, and looks everywhere again; then gives up what keeps pages from being moved.
    fn reclaim_pages(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        if self.capturing() {
            return Ok(None);
        }
        self.synchronize_events(None)?;
        self.emit(&Event::Retry, None);
        if request.pool.set != PoolSet::Default
            && let Some(id) = self.find_cached(request)
        {
            self.take(id);
            return Ok(Some(id));
        }
        for key in self.pools.freeable() {
            self.release_private(key, stack)?;
        }
        if request.pool.set == PoolSet::Default {
            self.wait_until_done(self.unknown_in(PoolSet::Default, 0))?;
            self.merge_anyones();
            let found = self.borrow(request).or_else(|| self.find_view(request, true, stack));
            if let Some(id) = found {
                return Ok(Some(id));
            }
            if let Some(id) = self.stitch(request, Effort::Any, stack)? {
                return Ok(Some(id));
            }
            self.drop_unused_views()?;
            if let Some(id) = self.stitch(request, Effort::Last, stack)? {
                return Ok(Some(id));
            }
        }
        // A private pool cannot use what lies free in the default one; the device can give it.
        if request.pool.set != PoolSet::Default {
            self.give_pages_back(PoolSet::Default, request.segment_size, stack)?;
        }
        if let Some(id) = self.grow_home(request, false, stack)? {
            return Ok(Some(id));
        }
        if request.pool.set != PoolSet::Default {
            return Ok(None);
        }
        self.stitch_with_ends(request, Effort::Last, stack)
    }

    /// Runs every callback, in the order of their names, and says whether any freed memory.
    fn run_callbacks(&mut self) -> bool {
        let callbacks: Vec<_> = self.callbacks.values().cloned().collect();
        let mut freed = false;
        for callback in callbacks {
            freed |= callback(self);
        }
        freed
    }

    /// A free block of a private pool that was set aside for this, rather than fail.
    fn find_in_spare_pool(&mut self, request: &Request) -> Option<(Found, Request)> {
        if request.pool.set != PoolSet::Default {
            return None;
        }
        let release = self.config.release();
        let expandable = request.expandable && !release.use_on_oom_ignores_expandable();
        self.pools.spare(release.released_pool_loses_no_split()).into_iter().find_map(|key| {
            if self.is_pool_paused(self.pools.id(PoolSet::Private(key))) {
                return None;
            }
            let pool = PoolRef { set: PoolSet::Private(key), kind: request.pool.kind };
            let request = Request { pool, expandable, ..*request };
            let found = self.find_cached(&request);
            found.map(|id| (Found::Cached(id), request))
        })
    }

    /// Stage 4: cuts the block to size, puts the rest back, and hands it to its owner.
    fn hand_out(&mut self, found: Found, request: &Request, stack: Option<StackId>) -> Allocation {
        let (Found::Cached(whole) | Found::New(whole)) = found;
        let block = &self.blocks[whole];
        let cut = self.policy.splits(&self.config, block.size, block.pool.kind, request)
            && !self.pools.never_splits(request.pool.set);
        self.hand_out_cut(found, request, cut, stack)
    }

    /// The same where it is known already whether there is a rest.
    #[inline]
    pub(crate) fn hand_out_cut(
        &mut self,
        found: Found,
        request: &Request,
        cut: bool,
        stack: Option<StackId>,
    ) -> Allocation {
        let (Found::Cached(whole) | Found::New(whole)) = found;
        let block = &self.blocks[whole];
        let was_split = block.is_split();
        let fixed = block.range.is_none();
        let old = (block.size, block.rank);
        let mut split = SplitChange::default();
        let pool = self.pools.half_mut(request.pool);
        let id = if cut {
            let id = self.blocks.split_front(whole, request.size);
            match found {
                Found::Cached(rest) => pool.replace(old, rest, &mut self.blocks),
                Found::New(rest) => pool.put(rest, &mut self.blocks),
            }
            if fixed && was_split {
                split.bytes = -request.size.cast_signed();
            } else if fixed {
                split = SplitChange { count: 1, bytes: (old.0 - request.size).cast_signed() };
            }
            id
        } else {
            if let Found::Cached(id) = found {
                pool.take(&self.blocks[id]);
            }
            if fixed && was_split {
                split = SplitChange { count: -1, bytes: -old.0.cast_signed() };
            }
            whole
        };
        self.give_to_owner(id, request, split, stack)
    }
}
