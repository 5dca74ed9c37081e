//! Memory back to the device for a while, for others on the same GPU: what is cached, or all of it with the addresses kept.
//!
//! In:  a number of bytes, or a wish to stop and to go on.
//! Out: memory that others can have; after [`resume`](Engine::resume) the same blocks at the same addresses.
//!
//! While an allocator is paused its books stay as they are: figures and snapshots show what comes back with `resume`. Blocks can be
//! freed; nothing is handed out, and nothing is given back that is gone already. One private pool can be paused by itself: then the
//! same holds for it, and all others go on.
//!
//! *Addresses can be kept where memory is pages in a reserved range: under the policy `pages`, and in expandable segments.* A fixed
//! segment has its addresses from the device, with its memory.

use std::panic::Location;

use rustc_hash::FxHashSet;
use thiserror::Error;
use tonnage_device::{Device, DeviceError};
use tonnage_events::{Address, Bytes, PoolId, PoolKind, StackId};

use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::history::Context;
use crate::pages::PageKey;
use crate::pool::{PoolRef, PoolSet};
use crate::request::ABSURD_SIZE;
use crate::segment::RangeId;

/// An allocator that could not be paused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PauseError {
    /// It is.
    #[error("the allocator is paused already: resume it first")]
    Paused,
    /// A pool that nobody uses, or that was never made.
    #[error("there is no pool {0} in use to pause")]
    NoPool(PoolId),
    /// Nothing can be waited for during a capture.
    #[error("memory cannot be given back during a capture: end that first")]
    Capturing,
    /// Contents were to be kept.
    #[error(
        "the host has no memory to keep the contents, {}: free some there, or let them go (`keep=False`, `Contents::Lost`)",
        Bytes(*.0)
    )]
    NoHostMemory(u64),
    /// The addresses of fixed segments go with their memory.
    #[error(
        "{} in use lie in fixed segments, whose addresses cannot be kept: use the policy `pages` or \
         `expandable_segments:True`", Bytes(*.0)
    )]
    Fixed(u64),
    /// The memory of a pool with a source of its own is that source's.
    #[error(
        "{} in use lie in pools with an allocator of their own, whose memory only that allocator can give back: free what was \
         allocated there, and the pools, first", Bytes(*.0)
    )]
    OfSource(u64),
    /// The device failed. What was given back by then is back after a resume.
    #[error("the device failed while memory was being given back: {0}")]
    Device(#[from] DeviceError),
}

/// An allocator that stays paused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// Contents are copied back and waited for, which a capture does not let pass.
    #[error("memory cannot come back during a capture: end that first")]
    Capturing,
    /// The device failed, or others hold the memory. What is back by then stays so.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What a paused allocator has to obtain again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paused {
    /// Pages that move.
    pages: Vec<PageKey>,
    /// Places of expandable segments.
    places: Vec<(RangeId, usize)>,
}

impl Paused {
    fn is_back(&self) -> bool {
        self.pages.is_empty() && self.places.is_empty()
    }
}

impl<D: Device> Engine<D> {
    /// Gives cached memory back until `bytes` are gone, or all of it; waits for the work that uses it. Returns how many bytes went:
    /// whole segments or pages, so perhaps more. During a capture of any thread none: what is waited for might be part of it.
    ///
    /// # Errors
    ///
    /// If the device fails; what had been given back by then stays so.
    #[track_caller]
    pub fn release(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let stack = self.ledger.stack(Context::All, Location::caller());
        self.settle();
        if self.any_capture() || self.paused.is_some() {
            return Ok(0);
        }
        let before = self.reserved();
        let result = self.release_down_to(before.saturating_sub(bytes), stack);
        self.debug_walk("release");
        result.map(|()| before - self.reserved())
    }

    fn release_down_to(&mut self, target: u64, stack: Option<StackId>) -> Result<(), DeviceError> {
        self.synchronize_events(None)?;
        for key in self.pools.freeable() {
            if self.reserved() > target {
                self.release_private(key, stack)?;
            }
        }
        if self.policy.moves_pages() {
            let want = self.reserved().saturating_sub(target);
            return self.give_pages_back(PoolSet::Default, want, stack).map(drop);
        }
        for kind in [PoolKind::Large, PoolKind::Small] {
            let half = self.pools.half(PoolRef { set: PoolSet::Default, kind });
            let mut free: Vec<_> = half.free().iter().collect();
            free.sort_by_key(|&id| std::cmp::Reverse(self.blocks[id].size));
            for id in free {
                if self.reserved() <= target {
                    return Ok(());
                }
                match self.blocks[id].range {
                    Some(_) => self.trim_range(id, stack)?,
                    None if !self.blocks[id].is_split() => self.release_segment(id, stack)?,
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Gives back what one private pool caches, whoever uses it; waits for the work that does. Returns how many bytes went. Graphs
    /// that were captured with the pool must not be replayed afterwards. During a capture, or while it is paused, none.
    ///
    /// # Errors
    ///
    /// If the device fails; what had been given back by then stays so.
    #[track_caller]
    pub fn release_pool_memory(&mut self, pool: PoolId) -> Result<u64, DeviceError> {
        let stack = self.ledger.stack(Context::All, Location::caller());
        self.settle();
        let Some(PoolSet::Private(key)) = self.pools.set_of(pool) else { return Ok(0) };
        if self.any_capture() || self.paused.is_some() || self.is_pool_paused(pool) {
            return Ok(0);
        }
        let before = self.reserved();
        self.synchronize_events(Some(PoolSet::Private(key)))?;
        let result = self.release_private(key, stack);
        self.debug_walk("release_pool_memory");
        result.map(|()| before - self.reserved())
    }

    /// Whether the allocator is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// The memory whose contents a program may need again: live blocks, and all that private pools hold, which captured graphs use
    /// unasked. By address. Without what is paused already.
    #[must_use]
    pub fn contents(&self) -> Vec<(Address, u64)> {
        self.contents_where(|set| set == PoolSet::Default || !self.is_paused_set(set))
    }

    /// The same of one private pool.
    #[must_use]
    pub fn contents_of(&self, pool: PoolId) -> Vec<(Address, u64)> {
        let set = self.pools.set_of(pool);
        self.contents_where(|it| Some(it) == set && !self.is_paused_set(it))
    }

    fn contents_where(&self, counts: impl Fn(PoolSet) -> bool) -> Vec<(Address, u64)> {
        let needed = |block: &&Block| {
            block.mapped
                && (!block.is_idle() || block.pool.set != PoolSet::Default)
                && counts(block.pool.set)
        };
        let blocks = self.blocks.iter().map(|(_, block)| block).filter(needed);
        let mut contents: Vec<_> = blocks.map(|block| (block.address, block.size)).collect();
        contents.sort_unstable();
        contents
    }

    /// Waits for everything that is queued and gives all memory back to the device. Addresses stay reserved. Returns how many bytes
    /// went. Contents are lost: who needs them saves them before. Until [`resume`](Self::resume), no work may use the memory.
    ///
    /// # Errors
    ///
    /// See [`PauseError`].
    #[track_caller]
    pub fn pause(&mut self) -> Result<u64, PauseError> {
        self.check_pause()?;
        let stack = self.ledger.stack(Context::All, Location::caller());
        let before = self.reserved();
        self.flush(stack)?;
        // What was in use a moment ago still is.
        self.refuse_fixed(|_| true)?;
        self.wait_for_all_streams()?;
        // What is paused by itself is gone already.
        let stays = self.ranges_of(|set| self.is_paused_set(set));
        let already =
            self.paused_pools.keys().map(|&pool| self.pools.reserved_by(pool)).sum::<u64>();
        self.most_bytes = 0;
        let (gone, result) = self.let_pages_go(|range| !stays.contains(&range));
        self.paused = Some(gone);
        self.debug_walk("pause");
        result?;
        Ok(before - already)
    }

    /// Whether [`pause`](Self::pause) could be: nothing is waited for, and nothing changes.
    ///
    /// # Errors
    ///
    /// Those of [`PauseError`] that are known beforehand.
    pub fn check_pause(&mut self) -> Result<(), PauseError> {
        if self.paused.is_some() {
            return Err(PauseError::Paused);
        }
        if self.any_capture() {
            return Err(PauseError::Capturing);
        }
        self.settle();
        // What nobody uses goes back first.
        let goes = |first: BlockId| {
            let uses = |set| set != PoolSet::Default && self.pools.uses(self.pools.id(set)) > 0;
            !uses(self.blocks[first].pool.set)
                && !self.segment_from_first(first).any(|id| self.blocks[id].allocated)
        };
        let is_first = |id: &BlockId| self.blocks[*id].prev.is_none();
        let fixed = self.fixed_blocks(|_| true).filter(is_first).filter(|&first| !goes(first));
        self.refuse(fixed.flat_map(|first| self.segment_from_first(first)))
    }

    /// The same for [`pause_pool`](Self::pause_pool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn check_pause_pool(&mut self, pool: PoolId) -> Result<(), PauseError> {
        self.checked_pool(pool).map(drop)
    }

    fn checked_pool(&mut self, pool: PoolId) -> Result<PoolSet, PauseError> {
        if self.paused.is_some() || self.is_pool_paused(pool) {
            return Err(PauseError::Paused);
        }
        if self.any_capture() {
            return Err(PauseError::Capturing);
        }
        let set = self.pools.set_of(pool).filter(|_| self.pools.uses(pool) > 0);
        let set = set.ok_or(PauseError::NoPool(pool))?;
        self.settle();
        self.refuse_fixed(|it| it == set)?;
        Ok(set)
    }

    fn refuse_fixed(&self, of: impl Fn(PoolSet) -> bool) -> Result<(), PauseError> {
        self.refuse(self.fixed_blocks(of))
    }

    /// Blocks of fixed segments, of some pools.
    fn fixed_blocks(&self, of: impl Fn(PoolSet) -> bool) -> impl Iterator<Item = BlockId> {
        let fixed = self.blocks.iter().filter(|(_, it)| it.range.is_none());
        fixed.filter(move |(_, it)| of(it.pool.set)).map(|it| it.0)
    }

    /// The blocks of a segment, by its first.
    fn segment_from_first(&self, first: BlockId) -> impl Iterator<Item = BlockId> {
        std::iter::successors(Some(first), |&id| self.blocks[id].next)
    }

    /// Says of blocks in fixed segments, if there are any, why they cannot be paused.
    fn refuse(&self, fixed: impl Iterator<Item = BlockId>) -> Result<(), PauseError> {
        let (mut bytes, mut of_sources) = (0, 0);
        for block in fixed.map(|id| &self.blocks[id]) {
            let has_source = self.pools.source(block.pool.set).is_some();
            *(if has_source { &mut of_sources } else { &mut bytes }) += block.size;
        }
        match (of_sources, bytes) {
            (0, 0) => Ok(()),
            (0, _) => Err(PauseError::Fixed(bytes)),
            // No setting helps here.
            _ => Err(PauseError::OfSource(of_sources)),
        }
    }

    fn wait_for_all_streams(&mut self) -> Result<(), DeviceError> {
        let streams = self.all_streams();
        streams.into_iter().try_for_each(|stream| self.device.synchronize(stream))
    }

    /// The ranges of some pools.
    fn ranges_of(&self, of: impl Fn(PoolSet) -> bool) -> FxHashSet<RangeId> {
        let blocks = self.blocks.iter().map(|(_, block)| block);
        blocks.filter(|block| of(block.pool.set)).filter_map(|block| block.range).collect()
    }

    fn is_paused_set(&self, set: PoolSet) -> bool {
        set != PoolSet::Default && self.is_pool_paused(self.pools.id(set))
    }

    /// Whether a private pool is paused by itself.
    #[must_use]
    pub fn is_pool_paused(&self, pool: PoolId) -> bool {
        self.paused_pools.contains_key(&pool)
    }

    /// The private pools that are paused by themselves.
    #[must_use]
    pub fn paused_pools(&self) -> Vec<PoolId> {
        self.paused_pools.keys().copied().collect()
    }

    /// As [`pause`](Self::pause), for one private pool: requests that go there fail until [`resume_pool`](Self::resume_pool), and all
    /// others go on.
    ///
    /// # Errors
    ///
    /// See [`PauseError`].
    #[track_caller]
    pub fn pause_pool(&mut self, pool: PoolId) -> Result<u64, PauseError> {
        let set = self.checked_pool(pool)?;
        self.synchronize_events(Some(set))?;
        self.wait_for_all_streams()?;
        let bytes = self.pools.reserved_by(pool);
        let goes = self.ranges_of(|it| it == set);
        let (gone, result) = self.let_pages_go(|range| goes.contains(&range));
        self.paused_pools.insert(pool, gone);
        self.pools.set_paused(pool, true);
        self.debug_walk("pause_pool");
        result?;
        Ok(bytes)
    }

    /// Pauses a pool that holds nothing, if another of its tag is paused. Nothing has to go, and nothing is waited for.
    pub(crate) fn pause_with_tag(&mut self, pool: PoolId, tag: &str) {
        let is_of_tag = |it: &PoolId| self.pools.tag(*it).is_some_and(|name| **name == *tag);
        let holds_nothing = self.pools.reserved_by(pool) == 0;
        if holds_nothing && !self.is_pool_paused(pool) && self.paused_pools.keys().any(is_of_tag) {
            self.paused_pools.insert(pool, Paused::default());
            self.pools.set_paused(pool, true);
        }
    }

    /// As [`resume`](Self::resume), for one private pool.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn resume_pool(&mut self, pool: PoolId) -> Result<(), ResumeError> {
        if self.paused_pools.get(&pool).is_some_and(|gone| !gone.is_back()) {
            self.obtain_pool_again(pool)?;
        }
        if self.paused_pools.remove(&pool).is_none() {
            return Ok(());
        }
        self.pools.set_paused(pool, false);
        if self.policy.moves_pages() {
            // It may have been released meanwhile.
            self.note_release(pool);
        }
        self.debug_walk("resume_pool");
        Ok(())
    }

    /// Gives the memory of some ranges back. Returns what is to be obtained again, with the first failure.
    fn let_pages_go(
        &mut self,
        goes: impl Fn(RangeId) -> bool,
    ) -> (Paused, Result<(), DeviceError>) {
        let mut gone = Paused::default();
        let mut result = Ok(());
        for key in self.store.pages.keys().collect::<Vec<_>>() {
            if !goes(self.store.pages[key].places[0].range) {
                continue;
            }
            match self.let_page_go(key) {
                Ok(()) => gone.pages.push(key),
                Err(error) => result = result.and(Err(error)),
            }
        }
        let (places, of_ranges) = self.ranges.let_go(&mut self.device, goes);
        gone.places = places;
        (gone, result.and(of_ranges))
    }

    /// Gives the memory of a page back, and keeps its places.
    fn let_page_go(&mut self, key: PageKey) -> Result<(), DeviceError> {
        let page = &self.store.pages[key];
        let (id, size) = (page.id, page.size);
        for (done, place) in page.places.iter().enumerate() {
            if let Err(error) = self.device.unmap(place.address) {
                for undone in &page.places[..done] {
                    // It was mapped there a moment ago.
                    self.device.map(id, undone.address)?;
                }
                return Err(error);
            }
        }
        self.destroy_or_strand(id, size);
        Ok(())
    }

    /// Obtains all memory again, at the same addresses; its contents are whatever the device gives. What cannot be had yet is tried
    /// again by the next call: the allocator stays paused until then.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if others hold the memory now; during a capture; or if the device fails.
    pub fn resume(&mut self) -> Result<(), ResumeError> {
        if self.paused.as_ref().is_some_and(|gone| !gone.is_back()) {
            self.obtain_again()?;
        }
        if self.paused.take().is_none() {
            return Ok(());
        }
        self.most_bytes = ABSURD_SIZE - 1;
        self.debug_walk("resume");
        Ok(())
    }

    /// The first half of [`resume`](Self::resume): the memory is there again, and the allocator is still paused, so that its contents
    /// can be put back before anybody uses it. Afterwards `resume` only says that it goes on, which can be during a capture.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn obtain_again(&mut self) -> Result<(), ResumeError> {
        let Some(mut gone) = self.paused.take() else { return Ok(()) };
        let result = self.bring_back(&mut gone);
        self.paused = Some(gone);
        result
    }

    /// The first half of [`resume_pool`](Self::resume_pool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn obtain_pool_again(&mut self, pool: PoolId) -> Result<(), ResumeError> {
        let Some(mut gone) = self.paused_pools.remove(&pool) else { return Ok(()) };
        let result = self.bring_back(&mut gone);
        self.paused_pools.insert(pool, gone);
        result
    }

    /// Obtains again what is gone, from the end; what is left has no memory yet.
    fn bring_back(&mut self, gone: &mut Paused) -> Result<(), ResumeError> {
        if self.any_capture() {
            return Err(ResumeError::Capturing);
        }
        while let Some(&key) = gone.pages.last() {
            self.bring_page_back(key)?;
            gone.pages.pop();
        }
        Ok(self.ranges.bring_back(&mut self.device, &mut gone.places)?)
    }

    fn bring_page_back(&mut self, key: PageKey) -> Result<(), DeviceError> {
        let size = self.store.pages[key].size;
        let id = self.ranges.obtain(&mut self.device, size)?;
        let places: Vec<_> = self.store.pages[key].places.iter().map(|it| it.address).collect();
        for (done, &address) in places.iter().enumerate() {
            if let Err(error) = self.device.map(id, address) {
                let undone = places[..done].iter().all(|&it| self.device.unmap(it).is_ok());
                if undone {
                    self.destroy_or_strand(id, size);
                }
                return Err(error);
            }
        }
        self.store.pages[key].id = id;
        Ok(())
    }
}
