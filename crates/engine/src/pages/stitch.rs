//! Which free pages make a view for a request.

use rustc_hash::FxHashMap;
use tonnage_device::{Device, DeviceError};
use tonnage_events::{PoolKind, StackId, StreamId};

use super::place::Part;
use super::store::{PageKey, Place, View, ViewKey};
use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet};
use crate::request::Request;
use crate::segment::{RangeId, Role};

/// Places that a page may have: its home and this many views less one. As many were measured to cost no memory.
const MOST_PLACES: usize = 16;

/// How far a request may go to find pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effort {
    /// Pages that are of use to the request.
    Sensible,
    /// Pages of all sizes, rather than fail.
    Any,
    /// And of however many views. All of these are in use: those that are not were dropped before.
    Last,
}

impl<D: Device> Engine<D> {
    /// A block for the request out of a view that was made before and whose first pages, as many as it needs, are free; if
    /// `with_ends`, of the first page and the last one only an end must be.
    pub(crate) fn find_view(
        &mut self,
        request: &Request,
        with_ends: bool,
        stack: Option<StackId>,
    ) -> Option<BlockId> {
        let granule = self.granule();
        let need = request.size.checked_next_multiple_of(granule)?;
        let most = need.saturating_add(need / 2);
        let fits = |view: &View| {
            view.pool == request.pool
                && !view.retired
                && (need..=most).contains(&view.made_for.next_multiple_of(granule))
                && self.middle_pages(view, need).all(|page| self.store.pages[page].active == 0)
        };
        let mut fitting: Vec<_> = self
            .store
            .views
            .iter()
            .filter(|(_, view)| fits(view))
            .map(|(key, view)| (view.made_for, u64::MAX - view.used_at, key))
            .collect();
        if fitting.is_empty() {
            return None;
        }
        fitting.sort_unstable();
        let by_page = |parts: Vec<Part>| parts.into_iter().map(|it| (it.page, it)).collect();
        let idle = by_page(self.idle_pages(request.stream, granule).collect());
        // Only where memory is short: to find them takes a walk over all free blocks.
        let ends =
            if with_ends { self.ends(request.stream, Effort::Last) } else { Default::default() };
        let [tails, heads] = ends.map(by_page);
        let (key, parts) = fitting.into_iter().find_map(|(.., key)| {
            let range = self.store.views[key].range;
            let parts = parts_of(self.pages_of(range), request.size, &idle, &tails, &heads)?;
            let mut pages = parts.iter().map(|part| &self.store.pages[part.page]);
            pages.all(|page| page.used_in(range).is_none()).then_some((key, parts))
        })?;
        Some(self.use_view(key, &parts, request.stream, stack))
    }

    /// The pages that are laid in a range, by address.
    pub(super) fn pages_of(&self, range: RangeId) -> impl Iterator<Item = PageKey> + '_ {
        self.ranges[range].laid.values().map(|&(page, _)| page)
    }

    /// The first pages of a view that together have as many bytes, but for the first and the last of them.
    fn middle_pages(&self, view: &View, need: u64) -> impl Iterator<Item = PageKey> + '_ {
        let laid = self.ranges[view.range].laid.iter().skip(1);
        let before = laid.take_while(move |&(at, (_, size))| at + size < need);
        before.map(|(_, &(page, _))| page)
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
        self.drop_a_retired_view()?;
        let mut idle = self.pages_to_stitch(request, effort, granule);
        let free: u64 = idle.iter().map(|it| it.size).sum();
        if free == 0 {
            return Ok(None);
        }
        if free < need {
            let policy = self.policy;
            let suits = |page| effort > Effort::Sensible || policy.stitches(page, request, granule);
            if !self.extend_home(request, need - free, suits, stack)? {
                return Ok(None);
            }
            idle = self.pages_to_stitch(request, effort, granule);
        }
        let chosen = choose(idle, need);
        let Some(chosen) = chosen else { return Ok(None) };
        self.use_new_view(&chosen, request, stack)
    }

    /// Makes a view of these parts, and a block of them for the request.
    pub(super) fn use_new_view(
        &mut self,
        parts: &[Part],
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let pages: Vec<_> = parts.iter().map(|part| part.page).collect();
        let made_for = parts.iter().map(|part| part.size).sum();
        let Some(view) = self.make_view(&pages, made_for, request.pool)? else { return Ok(None) };
        let requests = self.stats().allocation.all.allocated.cast_unsigned();
        self.store.governor.note_moved(pages.len() as u64, requests);
        let id = self.use_view(view, parts, request.stream, stack);
        self.retire_old_views(&pages);
        Ok(Some(id))
    }

    /// The free pages that may become part of a view for the request: largest first, those of other streams last.
    pub(super) fn pages_to_stitch(
        &self,
        request: &Request,
        effort: Effort,
        granule: u64,
    ) -> Vec<Part> {
        let mut idle: Vec<_> = self
            .idle_pages(request.stream, granule)
            .filter(|it| self.suits(it.page, request, effort) && self.has_room(it.page, effort))
            .map(|it| (self.blocks[it.block].stream != request.stream, it))
            .collect();
        idle.sort_by_key(|&(foreign, it)| (foreign, u64::MAX - it.size));
        idle.into_iter().map(|(_, it)| it).collect()
    }

    /// Whether a page of this size is of use to the request, as far as that matters.
    pub(super) fn suits(&self, page: PageKey, request: &Request, effort: Effort) -> bool {
        let size = self.store.pages[page].size;
        effort > Effort::Sensible || self.policy.stitches(size, request, self.granule())
    }

    /// Whether a page may have one more place.
    pub(super) fn has_room(&self, page: PageKey, effort: Effort) -> bool {
        effort == Effort::Last || self.store.pages[page].places.len() < MOST_PLACES
    }

    /// Pages of the default pool that lie free at home, for whom nobody needs to wait on this stream.
    fn idle_pages(&self, stream: StreamId, granule: u64) -> impl Iterator<Item = Part> + '_ {
        [PoolKind::Large, PoolKind::Small].into_iter().flat_map(move |kind| {
            let half = self.pools.half(PoolRef { set: PoolSet::Default, kind });
            let large = half.free().with_at_least(granule);
            large
                .filter(move |&block| self.serves(&self.blocks[block], stream))
                .flat_map(|block| self.pages_in(block).map(move |page| (page, block)))
                .map(|(page, block)| Part {
                    page,
                    block,
                    offset: 0,
                    size: self.store.pages[page].size,
                })
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

    /// Maps pages one behind the other once more. Nobody uses them there yet. None if the device has no memory for it.
    fn make_view(
        &mut self,
        pages: &[PageKey],
        made_for: u64,
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
        let mapped: Vec<_> = pages.iter().map(|&page| &self.store.pages[page]).collect();
        let mapped: Vec<_> = mapped.into_iter().map(|page| (page.id, page.size)).collect();
        if let Err((unmapped, error)) = self.map_all(base, &mapped) {
            // Addresses of which a part is mapped stay the device's.
            let undone = unmapped.into_iter().all(|unmapped| unmapped);
            if !undone || self.ranges.unreserve(&mut self.device, range).is_err() {
                self.ranges.abandon(range);
            }
            return if matches!(error, DeviceError::OutOfMemory { .. }) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        let view = self.store.views.insert(View::new(range, pool, size, made_for));
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

/// The parts of a view's first pages that serve a request of `size` bytes: free pages, the first of which may be the free end of one, and
/// the last the free beginning. None if they do not.
fn parts_of(
    pages: impl Iterator<Item = PageKey>,
    size: u64,
    idle: &FxHashMap<PageKey, Part>,
    tails: &FxHashMap<PageKey, Part>,
    heads: &FxHashMap<PageKey, Part>,
) -> Option<Vec<Part>> {
    let mut missing = size;
    let mut parts = Vec::new();
    for page in pages {
        let tail = || tails.get(&page).filter(|it| parts.is_empty() && it.size < missing).copied();
        let head = || heads.get(&page).filter(|it| missing <= it.size);
        let head = || head().map(|&it| Part { size: missing, ..it });
        let part = idle.get(&page).copied().or_else(tail).or_else(head)?;
        missing = missing.saturating_sub(part.size);
        parts.push(part);
        if missing == 0 {
            return Some(parts);
        }
    }
    None
}

/// Of pages in the order in which they are preferred, those that make up `need`: none larger than what is still
/// missing, if possible; the last one the smallest that is enough.
fn choose(idle: Vec<Part>, need: u64) -> Option<Vec<Part>> {
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
