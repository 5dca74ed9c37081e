//! Pages back to the device, and views that are dropped.
//!
//! Unmapping does not wait for the GPU, so whoever unmaps does: for all who have used the pages, on demand; or, for views
//! that have grown old, by events that are asked when blocks are freed, never on the way of a request.

use tonnage_device::{Device, DeviceError, EventId};
use tonnage_events::{Address, PoolKind, StackId, StreamId};

use super::store::{PageKey, View, ViewKey};
use crate::block::BlockId;
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet};
use crate::segment::{RangeId, Role};

/// Places of a page from which on its oldest view is dropped.
const MANY_PLACES: usize = 7;

impl<D: Device> Engine<D> {
    /// Gives free pages of a pool back, whatever views they are in, until `want` bytes are gone or there are no more. Returns
    /// how many went.
    pub(crate) fn give_pages_back(
        &mut self,
        set: PoolSet,
        want: u64,
        stack: Option<StackId>,
    ) -> Result<u64, DeviceError> {
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
        self.wait_for_users(&leaving)?;
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

    /// Waits for everyone who has used these pages, which are free, wherever they are mapped.
    fn wait_for_users(
        &mut self,
        leaving: &[(BlockId, Address, PageKey)],
    ) -> Result<(), DeviceError> {
        let mut users: Vec<StreamId> = Vec::new();
        for &(block, _, page) in leaving {
            users.extend(self.users_of(block));
            for place in &self.store.pages[page].places[1..] {
                if let Role::View(view) = self.ranges[place.range].role {
                    users.extend(&self.store.views[view].streams);
                }
            }
        }
        self.wait_for_streams(users)
    }

    fn wait_for_streams(&mut self, mut streams: Vec<StreamId>) -> Result<(), DeviceError> {
        streams.sort_unstable();
        streams.dedup();
        streams.into_iter().try_for_each(|stream| self.device.synchronize(stream))
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
        it.forget_foreign();
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
        self.forget_place(key, place.range, place.address, place.blocked);
        Ok(())
    }

    /// Keeps the books of a page that is no longer mapped in a view.
    fn forget_place(
        &mut self,
        key: PageKey,
        range: RangeId,
        address: Address,
        blocked: Option<BlockId>,
    ) {
        let id = blocked.expect("it was in use elsewhere");
        self.take(id);
        self.blocks[id].blocked = false;
        self.join_gaps(id);
        let range = &mut self.ranges[range];
        range.laid.remove(&address.distance_from(range.base));
        let Role::View(view) = range.role else { return };
        self.store.views[view].pages.retain(|&page| page != key);
        if self.store.views[view].retired.is_none() {
            self.store.views[view].retired = Some(Vec::new());
            self.store.retired.push(view);
        }
    }

    /// Gives back the addresses of views and homes that have no pages left.
    fn drop_empty_ranges(&mut self) -> Result<(), DeviceError> {
        for view in self.store.retired.clone() {
            if self.store.views[view].pages.is_empty() {
                self.forget_view(view)?;
            }
        }
        for (pool, range) in self.store.homes.clone() {
            if self.ranges[range].laid.is_empty() {
                self.release_empty_range(range)?;
                self.store.homes.retain(|&known| known != (pool, range));
            }
        }
        Ok(())
    }

    /// Gives back a range without pages, of which one unmapped block is left.
    fn release_empty_range(&mut self, range: RangeId) -> Result<(), DeviceError> {
        let base = self.ranges[range].base;
        let blocks = &self.blocks;
        let only = blocks.iter().find(|(_, it)| it.range == Some(range)).map(|(id, _)| id);
        let id = only.expect("a range has blocks");
        debug_assert_eq!(self.blocks[id].address, base, "a range without pages is one block");
        self.ranges.unreserve(&mut self.device, range)?;
        self.take(id);
        self.blocks.remove(id);
        Ok(())
    }

    /// Forgets a view that has no pages left.
    fn forget_view(&mut self, view: ViewKey) -> Result<(), DeviceError> {
        let events = self.store.views[view].retired.take().unwrap_or_default();
        self.store.views[view].retired = Some(Vec::new());
        self.forget_events(events)?;
        self.release_empty_range(self.store.views[view].range)?;
        self.store.views.remove(view);
        self.store.retired.retain(|&key| key != view);
        Ok(())
    }

    fn forget_events(&mut self, events: Vec<EventId>) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for event in events {
            result = result.and(self.device.destroy_event(event));
        }
        result
    }

    /// Lets the oldest view of each of these pages that has many places serve no more. It goes when nothing uses it.
    pub(crate) fn retire_old_views(&mut self, pages: &[PageKey]) {
        for &page in pages {
            if self.store.pages[page].places.len() < MANY_PLACES || self.capturing() {
                continue;
            }
            let views = self.store.pages[page].places[1..].iter();
            let views = views.filter_map(|place| match self.ranges[place.range].role {
                Role::View(view) => Some(view),
                _ => None,
            });
            let oldest = views
                .filter(|&view| self.is_unused(view) && self.store.views[view].retired.is_none())
                .min_by_key(|&view| self.store.views[view].used_at);
            if let Some(oldest) = oldest {
                self.retire(oldest);
            }
        }
    }

    /// Whether no page is in use in a view.
    fn is_unused(&self, view: ViewKey) -> bool {
        let View { range, pages, .. } = &self.store.views[view];
        pages.iter().all(|&page| {
            let page = &self.store.pages[page];
            page.places[page.active].range != *range
        })
    }

    /// Lets an unused view serve no more.
    fn retire(&mut self, view: ViewKey) {
        // If a mark cannot be made now, it is tried again when blocks are freed.
        let _ = self.mark_end_of_use(view);
        self.store.retired.push(view);
    }

    /// Marks the end of what may still use an unused view that serves no more.
    fn mark_end_of_use(&mut self, view: ViewKey) -> Result<(), DeviceError> {
        let mut events = Vec::new();
        let mut result = Ok(());
        for stream in self.store.views[view].streams.clone() {
            match self.device.record_event(stream) {
                Ok(event) => events.push(event),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let of_view = &mut self.store.views[view];
        of_view.marked = result.is_ok();
        of_view.retired =
            Some(if result.is_ok() { std::mem::take(&mut events) } else { Vec::new() });
        result.and(self.forget_events(events))
    }

    /// Drops one view that serves no more, if nothing uses it by now. Called when a block was freed.
    #[cold]
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
        if !self.store.views[view].marked {
            return self.mark_end_of_use(view);
        }
        while let Some(event) = self.store.views[view].next_event() {
            if !self.device.query_event(event)? {
                return Ok(());
            }
            self.store.views[view].retired.as_mut().map(Vec::pop);
            self.device.destroy_event(event)?;
        }
        self.drop_view(view)
    }

    /// Unmaps a view that nothing uses, neither blocks nor work.
    fn drop_view(&mut self, view: ViewKey) -> Result<(), DeviceError> {
        let View { range, .. } = self.store.views[view];
        while let Some(&key) = self.store.views[view].pages.last() {
            let page = &self.store.pages[key];
            let index = page.place_in(range).expect("a view's pages are mapped there");
            let place = page.places[index];
            self.device.unmap(place.address)?;
            let page = &mut self.store.pages[key];
            page.places.remove(index);
            page.active -= usize::from(page.active > index);
            self.forget_place(key, range, place.address, place.blocked);
        }
        self.forget_view(view)
    }

    /// Drops every view that nothing uses, after waiting for who has used it.
    pub(crate) fn drop_unused_views(&mut self) -> Result<(), DeviceError> {
        let unused: Vec<_> = self.store.views.keys().filter(|&view| self.is_unused(view)).collect();
        let streams = unused.iter().flat_map(|&view| &self.store.views[view].streams);
        let streams = streams.copied().collect();
        self.wait_for_streams(streams)?;
        unused.into_iter().try_for_each(|view| self.drop_view(view))
    }
}
