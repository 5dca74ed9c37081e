//! Pages back to the device, and views that are dropped.
//!
//! Unmapping does not wait for the GPU, so whoever unmaps does: for all who have used the pages, when memory goes back; and a view
//! that has grown old goes along with a request that makes a new one, if its users are known to be done.

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_device::{Device, DeviceError};
use tonnage_events::{PoolKind, StackId, StreamId};

use super::store::{PageKey, Place, ViewKey};
use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet};
use crate::segment::{RangeId, Role};

/// Places of a page from which on its oldest view is dropped.
const MANY_PLACES: usize = 15;

impl<D: Device> Engine<D> {
    /// Gives free pages of a pool back, whatever views they are in, until `want` bytes are gone or there are no more. Returns
    /// how many went.
    pub(crate) fn give_pages_back(
        &mut self,
        set: PoolSet,
        want: u64,
        stack: Option<StackId>,
    ) -> Result<u64, DeviceError> {
        self.wait_for_users(set)?;
        let mut leaving = Vec::new();
        let mut bytes = 0;
        'all: for kind in [PoolKind::Large, PoolKind::Small] {
            let free: Vec<_> = self.pools.half(PoolRef { set, kind }).free().iter().collect();
            for block in free {
                let pages: Vec<_> = self.pages_in(block).collect();
                for page in pages {
                    if bytes >= want {
                        break 'all;
                    }
                    bytes += self.store.pages[page].size;
                    leaving.push((block, self.store.pages[page].places[0].address, page));
                }
            }
        }
        leaving.sort_unstable();
        let mut rest: Option<(BlockId, BlockId)> = None;
        let mut result = Ok(bytes);
        for (block, _, page) in leaving {
            let from = rest.filter(|&(of, _)| of == block).map_or(block, |(_, rest)| rest);
            match self.give_page_back(page, from, stack) {
                Ok(behind) => rest = behind.map(|behind| (block, behind)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.drop_empty_ranges()?;
        result
    }

    /// Waits for everyone who may still use free pages of a pool, wherever they are mapped, if there are any. Captured graphs
    /// use those of a private pool on any stream.
    fn wait_for_users(&mut self, set: PoolSet) -> Result<(), DeviceError> {
        if set == PoolSet::Default {
            self.wait_until_done(self.unknown_in(set, 0))?;
            self.merge_anyones();
            let views = self.store.views.values().flat_map(|view| view.users().to_vec());
            return self.wait_until_done(views.collect::<Vec<_>>());
        }
        let mut halves = [PoolKind::Large, PoolKind::Small].map(|kind| PoolRef { set, kind });
        if halves.iter_mut().all(|half| self.pools.half(*half).free().len() == 0) {
            return Ok(());
        }
        let now = self.store.marks.last();
        let all = self.all_streams();
        self.wait_until_done(all.into_iter().map(|stream| (stream, now)))
    }

    /// Gives one page back that lies free at home, in the free block given. Returns what is left of that block behind it.
    fn give_page_back(
        &mut self,
        key: PageKey,
        block: BlockId,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        while self.store.pages[key].places.len() > 1 {
            self.leave_place(key)?;
        }
        let page = &self.store.pages[key];
        let (id, size, home) = (page.id, page.size, page.places[0]);
        self.device.unmap(home.address)?;
        let (here, behind) = self.cut_out(block, home.address, size);
        self.note_gone(here, stack);
        let it = &mut self.blocks[here];
        it.mapped = false;
        it.stream = StreamId::DEFAULT;
        let range = &mut self.ranges[home.range];
        range.laid.remove(&home.address.distance_from(range.base));
        self.store.pages.remove(key);
        self.join_gaps(here);
        if let Err(error) = self.device.destroy_page(id) {
            self.ranges.strand(size, id);
            return Err(error);
        }
        Ok(behind)
    }

    /// Puts an unmapped block, which is in no set, among the others, together with its neighbours.
    fn join_gaps(&mut self, id: BlockId) {
        for neighbour in [self.blocks[id].prev, self.blocks[id].next] {
            self.try_merge(id, neighbour);
        }
        self.put(id);
    }

    /// Unmaps the last view of a page, in which it is not in use. That view serves no more.
    fn leave_place(&mut self, key: PageKey) -> Result<(), DeviceError> {
        let page = &self.store.pages[key];
        let place = *page.places.last().expect("a page has places");
        debug_assert!(page.active + 1 < page.places.len(), "it is not in use there");
        self.device.unmap(place.address)?;
        self.store.pages[key].places.pop();
        self.forget_place(place);
        Ok(())
    }

    /// Keeps the books of a page that is no longer mapped in a place in a view. Returns the unmapped block that is there now.
    fn forget_place(&mut self, place: Place) -> BlockId {
        let id = place.blocked.expect("it was in use elsewhere");
        self.take(id);
        self.blocks[id].blocked = false;
        self.join_gaps(id);
        let range = &mut self.ranges[place.range];
        range.laid.remove(&place.address.distance_from(range.base));
        if let Role::View(view) = range.role {
            self.retire(view);
        }
        id
    }

    /// Gives back the addresses of views and homes that have no pages left.
    pub(super) fn drop_empty_ranges(&mut self) -> Result<(), DeviceError> {
        let views = self.store.retired.iter().map(|&view| self.store.views[view].range);
        let homes = self.store.homes.iter().map(|&(_, range)| range);
        let empty = views.chain(homes).filter(|&range| self.ranges[range].laid.is_empty());
        let empty: FxHashSet<_> = empty.collect();
        if empty.is_empty() {
            return Ok(());
        }
        // One walk for all of them.
        let of_empty = |(id, it): (BlockId, &Block)| Some((it.range?, id));
        let found = self.blocks.iter().filter_map(of_empty);
        let found: Vec<_> = found.filter(|(range, _)| empty.contains(range)).collect();
        for (range, only) in found {
            match self.ranges[range].role {
                Role::View(view) => self.forget_view(view, only)?,
                _ => {
                    self.release_empty_range(range, only)?;
                    self.store.homes.retain(|&(_, known)| known != range);
                }
            }
        }
        Ok(())
    }

    /// Gives back a range without pages, of which one unmapped block is left.
    fn release_empty_range(&mut self, range: RangeId, only: BlockId) -> Result<(), DeviceError> {
        debug_assert_eq!(self.blocks[only].address, self.ranges[range].base, "it is one block");
        self.ranges.unreserve(&mut self.device, range)?;
        self.take(only);
        self.blocks.remove(only);
        Ok(())
    }

    /// Forgets a view that has no pages left, and the one block that stands for all of it.
    fn forget_view(&mut self, view: ViewKey, only: BlockId) -> Result<(), DeviceError> {
        self.release_empty_range(self.store.views[view].range, only)?;
        self.store.views.remove(view);
        self.store.retired.retain(|&key| key != view);
        Ok(())
    }

    /// Lets the oldest view of each of these pages that has many places serve no more. It goes when nothing uses it. One that
    /// many of the pages have in common is enough for all of these.
    pub(crate) fn retire_old_views(&mut self, pages: &[PageKey]) {
        let mut unused: FxHashMap<ViewKey, bool> = FxHashMap::default();
        for &page in pages {
            if self.store.pages[page].places.len() < MANY_PLACES {
                continue;
            }
            let views = self.store.pages[page].places[1..].iter();
            let views = views.filter_map(|place| match self.ranges[place.range].role {
                Role::View(view) => Some(view),
                _ => None,
            });
            let serving: Vec<_> = views.filter(|&view| !self.store.views[view].retired).collect();
            if serving.len() + 1 < MANY_PLACES {
                continue;
            }
            let oldest = serving
                .into_iter()
                .filter(|&view| *unused.entry(view).or_insert_with(|| self.is_unused(view)))
                .min_by_key(|&view| self.store.views[view].used_at);
            if let Some(oldest) = oldest {
                self.retire(oldest);
            }
        }
    }

    /// Whether no page is in use in a view.
    fn is_unused(&self, view: ViewKey) -> bool {
        let range = self.store.views[view].range;
        self.pages_of(range).all(|page| self.store.pages[page].used_in(range).is_none())
    }

    /// Lets a view serve no more.
    fn retire(&mut self, view: ViewKey) {
        if !std::mem::replace(&mut self.store.views[view].retired, true) {
            self.store.retired.push(view);
        }
    }

    /// Drops one view that serves no more, if nothing uses it by now. Called before another one is made.
    pub(crate) fn drop_a_retired_view(&mut self) -> Result<(), DeviceError> {
        let Some(&view) = self.store.retired.first() else { return Ok(()) };
        if self.capturing() {
            return Ok(());
        }
        // The next time it is another's turn.
        self.store.retired.rotate_left(1);
        if !self.is_unused(view) {
            return Ok(());
        }
        for (stream, until) in self.store.views[view].users().to_vec() {
            if !self.find_done(stream, until)? {
                return Ok(());
            }
        }
        self.drop_view(view)
    }

    /// Unmaps a view that nothing uses, neither blocks nor work.
    fn drop_view(&mut self, view: ViewKey) -> Result<(), DeviceError> {
        let range = self.store.views[view].range;
        let mut only = None;
        while let Some((_, &(key, _))) = self.ranges[range].laid.last_key_value() {
            let page = &self.store.pages[key];
            let index = page.place_in(range).expect("a view's pages are mapped there");
            let place = page.places[index];
            self.device.unmap(place.address)?;
            let page = &mut self.store.pages[key];
            page.places.remove(index);
            page.active -= usize::from(page.active > index);
            only = Some(self.forget_place(place));
        }
        match only {
            Some(only) => self.forget_view(view, only),
            // Its pages have gone before, and its addresses could not.
            None => self.drop_empty_ranges(),
        }
    }

    /// Drops every view that nothing uses, after waiting for who has used it.
    pub(crate) fn drop_unused_views(&mut self) -> Result<(), DeviceError> {
        let unused: Vec<_> = self.store.views.keys().filter(|&view| self.is_unused(view)).collect();
        let users = unused.iter().flat_map(|&view| self.store.views[view].users());
        self.wait_until_done(users.copied().collect::<Vec<_>>())?;
        for view in unused {
            // One that was empty may have gone with another.
            if self.store.views.contains_key(view) {
                self.drop_view(view)?;
            }
        }
        Ok(())
    }
}
