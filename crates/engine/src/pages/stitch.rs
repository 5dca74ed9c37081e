//! Which free pages make a view for a request.

use rustc_hash::FxHashMap;
use tonnage_device::{Device, DeviceError};
use tonnage_events::{PoolKind, StackId, StreamId};

use super::store::{PageKey, Place, View, ViewKey};
use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet};
use crate::request::Request;
use crate::segment::Role;

/// Places that a page may have: its home and this many views less one.
const MOST_PLACES: usize = 8;

/// How far a request may go to find pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Pages that are of use to the request.
    Sensible,
    /// Whatever there is, rather than fail.
    Any,
}

/// A page that lies free at home, and the free block there.
#[derive(Clone, Copy, Debug)]
struct Idle {
    page: PageKey,
    size: u64,
    block: BlockId,
}

impl<D: Device> Engine<D> {
    /// A block for the request out of a view that was made before and whose pages are all free now.
    pub(crate) fn find_view(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let granule = self.granule();
        let need = request.size.next_multiple_of(granule);
        let fits = |view: &View| {
            view.pool == request.pool
                && view.retired.is_none()
                && (need..=need + need / 10).contains(&view.size)
                && view.pages.iter().all(|&page| self.store.pages[page].active == 0)
        };
        let mut fitting: Vec<_> = self
            .store
            .views
            .iter()
            .filter(|(_, view)| fits(view))
            .map(|(key, view)| (view.size, u64::MAX - view.used_at, key))
            .collect();
        if fitting.is_empty() {
            return Ok(None);
        }
        fitting.sort_unstable();
        let idle: FxHashMap<_, _> =
            self.idle_pages(granule).map(|it| (it.page, it.block)).collect();
        for (.., key) in fitting {
            let pages = &self.store.views[key].pages;
            let at_home: Option<Vec<_>> =
                pages.iter().map(|page| idle.get(page).map(|&block| (*page, block))).collect();
            let Some(at_home) = at_home else { continue };
            if self.order_after(request.stream, &self.users_of_all(&at_home))? {
                return Ok(Some(self.use_view(key, &at_home, request.stream, stack)));
            }
        }
        Ok(None)
    }

    /// A block for the request out of pages that lie free at home, mapped once more one behind the other; what is
    /// missing is made.
    pub(crate) fn stitch(
        &mut self,
        request: &Request,
        effort: Effort,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let granule = self.granule();
        let Some(need) = request.size.checked_next_multiple_of(granule) else { return Ok(None) };
        let mut idle = self.pages_to_stitch(request, effort, granule);
        let free: u64 = idle.iter().map(|it| it.size).sum();
        if free == 0 {
            return Ok(None);
        }
        if free < need {
            if self.extend_home(request, need - free, stack)?.is_none() {
                return Ok(None);
            }
            idle = self.pages_to_stitch(request, effort, granule);
        }
        let chosen = choose(idle, need);
        let Some(chosen) = chosen else { return Ok(None) };
        let at_home: Vec<_> = chosen.iter().map(|it| (it.page, it.block)).collect();
        if !self.order_after(request.stream, &self.users_of_all(&at_home))? {
            return Ok(None);
        }
        let pages: Vec<_> = chosen.iter().map(|it| it.page).collect();
        let Some(view) = self.make_view(&pages, request.pool)? else { return Ok(None) };
        let requests = self.stats().allocation.all.allocated.cast_unsigned();
        self.store.governor.note_moved(pages.len() as u64, requests);
        let id = self.use_view(view, &at_home, request.stream, stack);
        self.retire_old_views(&pages);
        Ok(Some(id))
    }

    /// The free pages that may become part of a view for the request: largest first, those that other streams have
    /// used last.
    fn pages_to_stitch(&self, request: &Request, effort: Effort, granule: u64) -> Vec<Idle> {
        let any = effort == Effort::Any;
        let mut idle: Vec<_> = self
            .idle_pages(granule)
            .filter(|it| {
                let places = self.store.pages[it.page].places.len();
                let suits = any || self.policy.stitches(it.size, request.size, granule);
                suits && places < MOST_PLACES
            })
            .map(|it| {
                let block = &self.blocks[it.block];
                (block.stream != request.stream || !block.is_unfenced(), it)
            })
            .collect();
        idle.sort_by_key(|&(foreign, it)| (foreign, u64::MAX - it.size));
        idle.into_iter().map(|(_, it)| it).collect()
    }

    /// Pages of the default pool that lie free at home.
    fn idle_pages(&self, granule: u64) -> impl Iterator<Item = Idle> + '_ {
        [PoolKind::Large, PoolKind::Small].into_iter().flat_map(move |kind| {
            let half = self.pools.half(PoolRef { set: PoolSet::Default, kind });
            let large = half.free().with_at_least(granule);
            large
                .flat_map(|block| self.pages_in(block).map(move |page| (page, block)))
                .map(|(page, block)| Idle { page, size: self.store.pages[page].size, block })
        })
    }

    /// The pages that lie entirely in a block of a home.
    pub(crate) fn pages_in(&self, id: BlockId) -> impl Iterator<Item = PageKey> + '_ {
        let block = &self.blocks[id];
        let range = block.range.map(|range| &self.ranges[range]);
        let home = range.filter(|range| range.role == Role::Home);
        home.into_iter()
            .flat_map(move |range| range.laid_within(block.address, block.size))
            .map(|(_, page)| page)
    }

    /// The streams that have used any of these free blocks.
    fn users_of_all(&self, at_home: &[(PageKey, BlockId)]) -> Vec<StreamId> {
        let mut users: Vec<_> =
            at_home.iter().flat_map(|&(_, block)| self.users_of(block)).collect();
        users.sort_unstable();
        users.dedup();
        users
    }

    /// Maps pages one behind the other once more. Nobody uses them there yet. None if the device has no addresses left.
    fn make_view(
        &mut self,
        pages: &[PageKey],
        pool: PoolRef,
    ) -> Result<Option<ViewKey>, DeviceError> {
        let granule = self.granule();
        let size = pages.iter().map(|&page| self.store.pages[page].size).sum();
        // Named before it exists, so that the range can say whose it is.
        let range = match self.ranges.reserve(
            &mut self.device,
            size,
            granule,
            Role::View(ViewKey::default()),
        ) {
            Ok(range) => range,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let base = self.ranges[range].base;
        let mut address = base;
        for (done, &page) in pages.iter().enumerate() {
            if let Err(error) = self.device.map(self.store.pages[page].id, address) {
                let mut address = base;
                let undone = pages[..done].iter().all(|&page| {
                    let unmapped = self.device.unmap(address).is_ok();
                    address = address.offset(self.store.pages[page].size);
                    unmapped
                });
                // Addresses of which a part is mapped stay the device's.
                if !undone || self.ranges.unreserve(&mut self.device, range).is_err() {
                    self.ranges.abandon(range);
                }
                return Err(error);
            }
            address = address.offset(self.store.pages[page].size);
        }
        let view = self.store.views.insert(View {
            range,
            pool,
            size,
            pages: pages.to_vec(),
            used_at: 0,
            streams: Vec::new(),
            retired: None,
            marked: false,
        });
        self.ranges[range].role = Role::View(view);
        self.add_places(view, pages, pool);
        Ok(Some(view))
    }

    /// Enters a new view in the books of its pages, each with a block that stands for it.
    fn add_places(&mut self, view: ViewKey, pages: &[PageKey], pool: PoolRef) {
        let View { range, size: whole, .. } = self.store.views[view];
        let mut address = self.ranges[range].base;
        let mut rest: Option<BlockId> = None;
        let mut left = whole;
        for &page in pages {
            let size = self.store.pages[page].size;
            let id = match rest {
                Some(id) => id,
                None => {
                    let mut block = Block::new(address, whole, StreamId::DEFAULT, pool);
                    block.mapped = false;
                    block.blocked = true;
                    block.range = Some(range);
                    self.insert_segment(block, whole)
                }
            };
            left -= size;
            rest = (left > 0).then(|| self.blocks.split_back(id, size));
            if let Some(rest) = rest {
                self.blocks[rest].blocked = true;
            }
            self.put(id);
            let places = &mut self.store.pages[page].places;
            places.push(Place { range, address, blocked: Some(id) });
            let range = &mut self.ranges[range];
            range.laid.insert(address.distance_from(range.base), (page, size));
            address = address.offset(size);
        }
    }
}

/// Of pages in the order in which they are preferred, those that make up `need`: none larger than what is still
/// missing, if possible; the last one the smallest that is enough.
fn choose(idle: Vec<Idle>, need: u64) -> Option<Vec<Idle>> {
    let mut missing = need;
    let (mut chosen, mut left) = (Vec::new(), Vec::new());
    for it in idle {
        if missing > 0 && it.size <= missing {
            missing -= it.size;
            chosen.push(it);
        } else {
            left.push(it);
        }
    }
    if missing > 0 {
        let last = left.into_iter().filter(|it| it.size >= missing).min_by_key(|it| it.size)?;
        chosen.push(last);
    }
    Some(chosen)
}
