//! Memory back to the device for a while, for others on the same GPU: what is cached, or all of it with the addresses kept.
//!
//! In:  a number of bytes, or a wish to stop and to go on.
//! Out: memory that others can have; after [`resume`](Engine::resume) the same blocks at the same addresses.
//!
//! While an allocator is paused its books stay as they are: figures and snapshots show what comes back with `resume`. Blocks can be
//! freed; nothing is handed out, and nothing is given back that is gone already.
//!
//! *Addresses can be kept where memory is pages in a reserved range: under the policy `pages`, and in expandable segments.* A fixed
//! segment has its addresses from the device, with its memory.

use std::panic::Location;

use thiserror::Error;
use tonnage_device::{Device, DeviceError};
use tonnage_events::{Address, Bytes, PoolKind, StackId};

use crate::block::Block;
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
    /// Nothing can be waited for during a capture.
    #[error("memory cannot be given back during a capture: end that first")]
    Capturing,
    /// The addresses of fixed segments go with their memory.
    #[error(
        "{} in use lie in fixed segments, whose addresses cannot be kept: use the policy `pages` or \
         `expandable_segments:True`", Bytes(*.0)
    )]
    Fixed(u64),
    /// The device failed. What was given back by then is back after a resume.
    #[error("the device failed while memory was being given back: {0}")]
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

impl<D: Device> Engine<D> {
    /// Gives cached memory back until `bytes` are gone, or all of it; waits for the work that uses it. Returns how many bytes went:
    /// whole segments or pages, so perhaps more. During a capture none.
    ///
    /// # Errors
    ///
    /// If the device fails; what had been given back by then stays so.
    #[track_caller]
    pub fn release(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let stack = self.ledger.stack(Context::All, Location::caller());
        self.settle();
        if self.capturing() || self.paused.is_some() {
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

    /// Whether the allocator is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// The memory whose contents a program may need again: live blocks, and all that private pools hold, which captured graphs use
    /// unasked. By address.
    #[must_use]
    pub fn contents(&self) -> Vec<(Address, u64)> {
        let needed = |block: &&Block| {
            block.mapped && (!block.is_idle() || block.pool.set != PoolSet::Default)
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
        if self.paused.is_some() {
            return Err(PauseError::Paused);
        }
        if self.capturing() {
            return Err(PauseError::Capturing);
        }
        let stack = self.ledger.stack(Context::All, Location::caller());
        self.settle();
        let before = self.reserved();
        self.flush(stack)?;
        let fixed = self.blocks.iter().filter(|(_, block)| block.range.is_none());
        let fixed: u64 = fixed.map(|(_, block)| block.size).sum();
        if fixed > 0 {
            return Err(PauseError::Fixed(fixed));
        }
        let streams = self.all_streams();
        streams.into_iter().try_for_each(|stream| self.device.synchronize(stream))?;
        self.paused = Some(Paused::default());
        self.most_bytes = 0;
        let result = self.let_pages_go();
        self.debug_walk("pause");
        result?;
        Ok(before)
    }

    fn let_pages_go(&mut self) -> Result<(), DeviceError> {
        let mut gone = Paused::default();
        let mut result = Ok(());
        for key in self.store.pages.keys().collect::<Vec<_>>() {
            match self.let_page_go(key) {
                Ok(()) => gone.pages.push(key),
                Err(error) => result = result.and(Err(error)),
            }
        }
        let (places, of_ranges) = self.ranges.let_go(&mut self.device);
        gone.places = places;
        self.paused = Some(gone);
        result.and(of_ranges)
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
    /// [`DeviceError::OutOfMemory`] if others hold the memory now; or if the device fails.
    pub fn resume(&mut self) -> Result<(), DeviceError> {
        let Some(mut gone) = self.paused.take() else { return Ok(()) };
        let mut result = Ok(());
        while result.is_ok()
            && let Some(key) = gone.pages.pop()
        {
            result = self.bring_page_back(key);
            if result.is_err() {
                gone.pages.push(key);
            }
        }
        if result.is_ok() {
            result = self.ranges.bring_back(&mut self.device, &mut gone.places);
        }
        if result.is_err() {
            self.paused = Some(gone);
            return result;
        }
        self.most_bytes = ABSURD_SIZE - 1;
        self.debug_walk("resume");
        Ok(())
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
