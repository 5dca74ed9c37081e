//! New pages, laid one behind the other in the homes of pools.

use tonnage_device::{Device, DeviceError, PageId};
use tonnage_events::{Address, Event, SegmentEvent, StackId, StreamId};

use super::store::{Page, Place};
use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::policy::{Growth, Slack};
use crate::pool::{PoolRef, PoolSet};
use crate::request::Request;
use crate::segment::Role;
use crate::stats::MOST_RESERVED;

/// From so many bytes on the device is asked whether it has them before it is asked for them.
const ASK_FROM: u64 = 64 << 20;

/// Room for new pages: a part of a home without any. They make the free block before it larger.
#[derive(Clone, Copy, Debug)]
struct Gap {
    id: BlockId,
    /// Bytes of pages that the request needs here.
    bytes: u64,
}

impl<D: Device> Engine<D> {
    /// The unit of pages that move.
    pub(crate) fn granule(&self) -> u64 {
        self.policy.granule(self.device.granularity())
    }

    /// A block for the request out of pages that the device makes now; none if it has not enough, or if the limit
    /// forbids it. The block is in no set. `within_slack` is whether what is reserved must stay near what is in use.
    pub(crate) fn grow_home(
        &mut self,
        request: &Request,
        within_slack: bool,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let Some(gap) = self.find_gap(request)? else { return Ok(None) };
        if !self.may_hold(gap.bytes) || within_slack && !self.is_within_slack(request, gap.bytes) {
            return Ok(None);
        }
        let Some(id) = self.lay_pages(&gap, request.size, request.stream, stack)? else {
            return Ok(None);
        };
        self.merge_all(id);
        Ok(Some(id))
    }

    /// Makes free pages of at least `missing` bytes at home in the request's pool, if the device has them, the limit allows it and
    /// all of them suit. Says whether there are any.
    pub(crate) fn extend_home(
        &mut self,
        request: &Request,
        missing: u64,
        suits: impl Fn(u64) -> bool,
        stack: Option<StackId>,
    ) -> Result<bool, DeviceError> {
        let Some(bytes) = self.bytes_for(request, missing).filter(|&bytes| self.may_hold(bytes))
        else {
            return Ok(false);
        };
        let sizes = self.growth(request.size, request.pool).page_sizes(bytes);
        if !sizes.into_iter().all(suits) {
            return Ok(false);
        }
        let gaps = self.pools.half(request.pool).unmapped().filter(|&id| self.is_gap(id));
        let found = gaps.into_iter().find(|&id| self.blocks[id].size >= bytes);
        let Some(id) =
            found.map_or_else(|| self.new_home(request.pool, bytes), |id| Ok(Some(id)))?
        else {
            return Ok(false);
        };
        let gap = Gap { id, bytes };
        let Some(id) = self.lay_pages(&gap, request.size, request.stream, stack)? else {
            return Ok(false);
        };
        self.merge_all(id);
        self.put(id);
        Ok(true)
    }

    /// What new pages for a block of this size in this pool are for.
    fn growth(&self, size: u64, pool: PoolRef) -> Growth {
        Growth {
            size,
            kind: pool.kind,
            reserved: self.reserved(),
            granule: self.granule(),
            tight: self.limit.is_some() || self.reserved() > self.device.total() / 2,
            most: self.most_held(),
            stay: pool.set != PoolSet::Default,
            emptied: self.store.emptied,
        }
    }

    /// Bytes of new pages for a request where so many are missing. None if no number is as large.
    fn bytes_for(&self, request: &Request, missing: u64) -> Option<u64> {
        let growth = self.growth(request.size, request.pool);
        growth
            .bytes(missing, true)
            .filter(|&bytes| self.may_hold(bytes))
            .or_else(|| growth.bytes(missing, false))
    }

    /// Whether the request would come near the limit, or near all of the device.
    pub(crate) fn is_nearly_full(&self, request: &Request) -> bool {
        let after = self.reserved().saturating_add(request.size);
        self.policy.is_nearly_full(request, after, self.most_held())
    }

    /// Bytes that may be held: the limit, or all of the device.
    fn most_held(&self) -> u64 {
        self.limit.unwrap_or(u64::MAX).min(self.device.total())
    }

    /// Whether more memory may lie free than by default, as the settings or the governor want it: there is to be less moving then.
    pub(crate) fn allows_much_slack(&self) -> bool {
        self.store.governor.slack(self.policy) > Slack::DEFAULT.share()
    }

    /// Whether the limit, the device's size and what figures can count allow so many bytes more. So a list of pages is
    /// never longer than what a device could hold.
    fn may_hold(&self, bytes: u64) -> bool {
        let after = self.reserved().saturating_add(bytes);
        after <= self.most_held().min(MOST_RESERVED)
    }

    /// Whether so many bytes more are in proportion to the most that was ever in use, with the request.
    fn is_within_slack(&mut self, request: &Request, bytes: u64) -> bool {
        self.note_peak();
        let now = self.stats().active_bytes.all.current.cast_unsigned() + request.size;
        let peak = self.store.live_peak.max(now);
        let slack = self.store.governor.slack(self.policy);
        self.reserved() + bytes <= peak + (peak as f64 * slack) as u64
    }

    /// Remembers the most bytes that were ever in use, whoever lets the figures begin again.
    pub(crate) fn note_peak(&mut self) {
        let peak = self.stats().active_bytes.all.peak.cast_unsigned();
        self.store.live_peak = self.store.live_peak.max(peak);
    }

    /// Where the request fits with new pages: the first gap by address, or a new home.
    fn find_gap(&mut self, request: &Request) -> Result<Option<Gap>, DeviceError> {
        let half = self.pools.half(request.pool);
        let found = half.unmapped().filter(|&id| self.is_gap(id)).find_map(|id| {
            let before = self.blocks[id].prev.filter(|&before| {
                let before = &self.blocks[before];
                before.is_idle() && before.mapped && self.serves(before, request.stream)
            });
            let have = before.map_or(0, |before| self.blocks[before].size);
            let bytes = self.bytes_for(request, request.size.saturating_sub(have))?;
            (bytes <= self.blocks[id].size).then_some(Gap { id, bytes })
        });
        if found.is_some() {
            return Ok(found);
        }
        let Some(bytes) = self.bytes_for(request, request.size) else { return Ok(None) };
        let id = self.new_home(request.pool, bytes)?;
        Ok(id.map(|id| Gap { id, bytes }))
    }

    /// Whether an unmapped block is a part of a home without pages.
    fn is_gap(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        !block.blocked && block.range.is_some_and(|range| self.ranges[range].role == Role::Home)
    }

    /// A new home of a pool that has room for so many bytes, without pages. None if no home is as large, or there are no addresses.
    fn new_home(&mut self, pool: PoolRef, bytes: u64) -> Result<Option<BlockId>, DeviceError> {
        let granule = self.granule();
        let size = self.policy.range_size(self.device.total(), u64::MAX, granule);
        let Some(size) = size.filter(|&size| bytes <= size) else { return Ok(None) };
        let range = match self.ranges.reserve(&mut self.device, size, granule, Role::Home) {
            Ok(range) => range,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.store.homes.push((pool, range));
        let mut block = Block::new(self.ranges[range].base, size, StreamId::DEFAULT, pool);
        block.mapped = false;
        block.range = Some(range);
        let id = self.insert_segment(block, size);
        self.put(id);
        Ok(Some(id))
    }

    /// Lays new pages at the beginning of a gap. The block that they make is in no set. None if the device has not
    /// enough; nothing has changed then.
    fn lay_pages(
        &mut self,
        gap: &Gap,
        size: u64,
        stream: StreamId,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let range = self.blocks[gap.id].range.expect("a gap is part of a home");
        let start = self.blocks[gap.id].address;
        let sizes = self.growth(size, self.blocks[gap.id].pool).page_sizes(gap.bytes);
        let pages = match self.make_pages(start, &sizes) {
            Ok(pages) => pages,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut address = start;
        for (id, size) in pages {
            let places = vec![Place { range, address, blocked: None }];
            let key = self.store.pages.insert(Page { id, size, places, active: 0, lent: None });
            let range = &mut self.ranges[range];
            range.laid.insert(address.distance_from(range.base), (key, size));
            address = address.offset(size);
        }
        let id = gap.id;
        self.take(id);
        if gap.bytes < self.blocks[id].size {
            let rest = self.blocks.split_back(id, gap.bytes);
            self.put(rest);
        }
        let block = &mut self.blocks[id];
        block.mapped = true;
        block.stream = stream;
        block.used_until = 0;
        block.segment_stack = stack;
        self.note_new(id, stack);
        Ok(Some(id))
    }

    /// Makes pages and maps them one behind the other: all, or none. A device that has not enough is not filled first.
    fn make_pages(
        &mut self,
        start: Address,
        sizes: &[u64],
    ) -> Result<Vec<(PageId, u64)>, DeviceError> {
        let requested = sizes.iter().sum();
        if requested >= ASK_FROM
            && self.device.memory_info()?.free + self.stranded_bytes() < requested
        {
            return Err(DeviceError::OutOfMemory { requested });
        }
        let mut made = Vec::with_capacity(sizes.len());
        for &size in sizes {
            match self.ranges.obtain(&mut self.device, size) {
                Ok(page) => made.push((page, size)),
                Err(error) => {
                    made.into_iter().for_each(|(page, size)| self.destroy_or_strand(page, size));
                    return Err(error);
                }
            }
        }
        let pages: Vec<_> = made.iter().map(|&(page, _)| page).collect();
        match self.map_all(start, &made) {
            Ok(()) => Ok(made),
            Err((unmapped, error)) => {
                let unmapped = pages.into_iter().zip(sizes).zip(unmapped);
                for ((page, &size), _) in unmapped.filter(|(_, unmapped)| *unmapped) {
                    self.destroy_or_strand(page, size);
                }
                Err(error)
            }
        }
    }

    /// Maps pages one behind the other: all, or none. With a failure comes which of them are mapped nowhere for it; one that
    /// cannot be unmapped again stays where it is, and nothing is handed out twice: mapping this place again fails.
    pub(super) fn map_all(
        &mut self,
        start: Address,
        pages: &[(PageId, u64)],
    ) -> Result<(), (Vec<bool>, DeviceError)> {
        let mut address = start;
        for (done, &(page, size)) in pages.iter().enumerate() {
            if let Err(error) = self.device.map(page, address) {
                let mut address = start;
                let undo = |(index, &(_, size)): (usize, &(PageId, u64))| {
                    let at = address;
                    address = address.offset(size);
                    index >= done || self.device.unmap(at).is_ok()
                };
                return Err((pages.iter().enumerate().map(undo).collect(), error));
            }
            address = address.offset(size);
        }
        Ok(())
    }

    /// Gives a page back that is mapped nowhere, or keeps it for the next one who needs its size.
    pub(crate) fn destroy_or_strand(&mut self, page: PageId, size: u64) {
        if self.device.destroy_page(page).is_err() {
            self.ranges.strand(size, page);
        }
    }

    /// Enters pages that came into use at a block, which is exactly theirs, in the figures and the history.
    fn note_new(&mut self, id: BlockId, stack: Option<StackId>) {
        let event = self.pages_event(id);
        self.pools.add_reserved(self.blocks[id].pool.set, event.size);
        self.emit(&Event::SegmentMap(event), stack);
    }

    /// Enters pages that go back to the device from a block, which is exactly theirs.
    pub(crate) fn note_gone(&mut self, id: BlockId, stack: Option<StackId>) {
        let event = self.pages_event(id);
        self.pools.sub_reserved(self.blocks[id].pool.set, event.size);
        self.emit(&Event::SegmentUnmap(event), stack);
    }

    /// Enters pages that came into use at a block, which is exactly theirs, and went out of use elsewhere.
    pub(crate) fn note_arrived(&mut self, id: BlockId, stack: Option<StackId>) {
        let event = self.pages_event(id);
        self.pools.add_reserved(self.blocks[id].pool.set, event.size);
        self.ledger.emit_move(&mut self.device, &Event::SegmentMap(event), stack);
    }

    /// Enters pages that go out of use at a block, which is exactly theirs, to be of use elsewhere.
    pub(crate) fn note_left(&mut self, id: BlockId, stack: Option<StackId>) {
        let event = self.pages_event(id);
        self.pools.sub_reserved(self.blocks[id].pool.set, event.size);
        self.ledger.emit_move(&mut self.device, &Event::SegmentUnmap(event), stack);
    }

    fn pages_event(&self, id: BlockId) -> SegmentEvent {
        let Block { address, size, stream, pool: PoolRef { set, kind }, .. } = self.blocks[id];
        SegmentEvent { address, size, stream, pool: self.pools.id(set), kind, oversize: false }
    }
}
