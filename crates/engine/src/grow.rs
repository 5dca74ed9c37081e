//! The way to the device: a new segment, or more pages for an expandable one.

use tonnage_device::{Device, DeviceError};
use tonnage_events::{Event, PoolKind, SegmentEvent, StackId};

use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::request::Request;
use crate::segment::{Places, reserved_size};
use crate::stats::MOST_RESERVED;

/// The page of expandable segments of small pools: the device's mapping granularity.
const SMALL_PAGE: u64 = 2 << 20;

impl<D: Device> Engine<D> {
    /// A block for the request out of memory that the device gives now; none if it has not enough,
    /// or if the limit forbids it. The block is in no set.
    pub(crate) fn grow(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        // The limit is compared with a whole segment even where fewer pages would do: PyTorch's rule.
        let after = self.reserved().saturating_add(request.segment_size);
        if self.limit.is_some_and(|limit| after > limit) || after > MOST_RESERVED {
            return Ok(None);
        }
        if request.expandable {
            return self.grow_range(request, stack);
        }
        let address = match self.device.acquire(request.segment_size) {
            Ok(address) => address,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut block = Block::new(address, request.segment_size, request.stream, request.pool);
        block.segment_stack = stack;
        let id = self.blocks.insert(block);
        self.pools.add_reserved(request.pool.set, request.segment_size);
        let event = Event::SegmentAlloc(self.segment_event(id));
        self.emit(&event, stack);
        Ok(Some(id))
    }

    /// Returns a whole fixed segment, of which `id` is the only block and free, to the device.
    pub(crate) fn release_segment(
        &mut self,
        id: BlockId,
        stack: Option<StackId>,
    ) -> Result<(), DeviceError> {
        self.device.release(self.blocks[id].address)?;
        let event = Event::SegmentFree(self.segment_event(id));
        let block = &self.blocks[id];
        self.pools.sub_reserved(block.pool.set, block.size);
        let stack = stack.or(block.segment_stack);
        self.take(id);
        self.blocks.remove(id);
        self.emit(&event, stack);
        Ok(())
    }

    /// See Note \[Expandable segments\].
    fn grow_range(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let Some(mut id) = self.find_room(request)? else { return Ok(None) };
        if !self.blocks[id].mapped {
            let bytes = self.blocks[id].size.min(request.size);
            if !self.map_front(id, bytes, stack)? {
                return Ok(None);
            }
        }
        while self.blocks[id].size < request.size {
            let next = self.blocks[id].next.expect("there is room behind: find_room saw it");
            let missing = request.size - self.blocks[id].size;
            let bytes = missing.min(self.blocks[next].size);
            if !self.map_front(next, bytes, stack)? {
                return Ok(None);
            }
            // The mapped block has absorbed the one before it.
            id = next;
        }
        self.take(id);
        Ok(Some(id))
    }

    /// The first block, by address, from which on idle blocks hold the request, some of them
    /// unmapped. If there is none, a new range is reserved; and if not even that is large enough, it is left
    /// behind for smaller requests, as PyTorch does, whose later ranges then lie elsewhere.
    fn find_room(&mut self, request: &Request) -> Result<Option<BlockId>, DeviceError> {
        let half = self.pools.half(request.pool);
        for unmapped in half.unmapped_of(request.stream) {
            let before = self.blocks[unmapped].prev.filter(|&id| self.blocks[id].is_idle());
            let first = before.unwrap_or(unmapped);
            let mut room = 0;
            let mut at = Some(first);
            while let Some(id) = at
                && room < request.size
                && self.blocks[id].is_idle()
            {
                room += self.blocks[id].size;
                at = self.blocks[id].next;
            }
            if room >= request.size {
                return Ok(Some(first));
            }
        }
        let page = self.page_size(request.pool.kind);
        self.check_page(page)?;
        let Some(size) = reserved_size(self.device.total(), page) else { return Ok(None) };
        let range = match self.ranges.reserve(&mut self.device, size, page) {
            Ok(range) => range,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut block = Block::new(self.ranges[range].base, size, request.stream, request.pool);
        block.mapped = false;
        block.range = Some(range);
        let id = self.blocks.insert(block);
        self.put(id);
        // PyTorch maps all of a range that is smaller than the request before it gives up; no device has as much
        // memory, so nothing would stay mapped.
        Ok((size >= request.size).then_some(id))
    }

    /// Whether the device can map the pages of expandable segments under the settings in force.
    ///
    /// # Errors
    ///
    /// If it cannot. Requests that need such pages fail with the same error; on a GPU, PyTorch's fail with the
    /// driver's *invalid argument*.
    pub fn check_pages(&self) -> Result<(), DeviceError> {
        if !self.config.expandable_segments() {
            return Ok(());
        }
        [PoolKind::Small, PoolKind::Large]
            .into_iter()
            .try_for_each(|kind| self.check_page(self.page_size(kind)))
    }

    fn check_page(&self, page: u64) -> Result<(), DeviceError> {
        let granularity = self.device.granularity();
        if page.is_multiple_of(granularity) {
            return Ok(());
        }
        Err(DeviceError::Misuse {
            call: "reserve",
            reason: format!(
                "an expandable segment would have pages of {page} bytes, and the device maps multiples of \
                 {granularity}: give `large_segment_size_mb` such a size, or do without `expandable_segments`"
            ),
        })
    }

    /// The page of expandable segments of this kind of pool.
    pub(crate) fn page_size(&self, kind: PoolKind) -> u64 {
        match kind {
            PoolKind::Small => SMALL_PAGE,
            PoolKind::Large => self.config.large_segment_size(),
        }
    }

    /// Maps pages for the first `bytes` of an unmapped block. False if the device has no memory for
    /// them; nothing has changed then.
    fn map_front(
        &mut self,
        id: BlockId,
        bytes: u64,
        stack: Option<StackId>,
    ) -> Result<bool, DeviceError> {
        let block = &self.blocks[id];
        let range = block.range.expect("unmapped blocks are parts of a range");
        let places = self.ranges[range].places_touched(block.address, bytes);
        let mapped = places.count as u64 * self.ranges[range].page_size;
        if mapped > MOST_RESERVED.saturating_sub(self.reserved()) {
            return Ok(false);
        }
        match self.ranges.map(&mut self.device, range, places) {
            Ok(()) => {}
            Err(DeviceError::OutOfMemory { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.take(id);
        if mapped < self.blocks[id].size {
            let rest = self.blocks.split_back(id, mapped);
            self.put(rest);
        }
        let block = &mut self.blocks[id];
        block.mapped = true;
        block.segment_stack = stack;
        let set = block.pool.set;
        let event = self.join_neighbours(id);
        self.pools.add_reserved(set, mapped);
        self.emit(&Event::SegmentMap(event), stack);
        Ok(true)
    }

    /// Unmaps the pages that lie entirely inside a free block, and gives the range back if nothing
    /// else is left of it.
    pub(crate) fn trim_range(
        &mut self,
        id: BlockId,
        stack: Option<StackId>,
    ) -> Result<(), DeviceError> {
        let block = &self.blocks[id];
        let range = block.range.expect("only parts of a range are trimmed");
        let places = self.ranges[range].places_within(block.address, block.size);
        if places.count > 0 {
            self.device.synchronize(block.stream)?;
            let (done, result) = self.ranges.unmap(&mut self.device, range, places);
            self.note_unmapped(id, Places { count: done, ..places }, stack);
            result?;
        }
        if !self.blocks[id].is_split() {
            self.release_range(id)?;
        }
        Ok(())
    }

    /// Gives back a range of which `id` is the only block and unmapped.
    pub(crate) fn release_range(&mut self, id: BlockId) -> Result<(), DeviceError> {
        let range = self.blocks[id].range.expect("only ranges have unmapped blocks");
        self.ranges.unreserve(&mut self.device, range)?;
        self.take(id);
        self.blocks.remove(id);
        Ok(())
    }

    /// Keeps the books of pages that are gone: the block becomes their place, and what is left of it
    /// before and behind stays free.
    fn note_unmapped(&mut self, id: BlockId, places: Places, stack: Option<StackId>) {
        if places.count == 0 {
            return;
        }
        let block = &self.blocks[id];
        let range = &self.ranges[block.range.expect("only parts of a range are trimmed")];
        let start = range.address_of(places.first);
        let unmapped = places.count as u64 * range.page_size;
        let before = start.distance_from(block.address);
        // Read before a part in front of it takes it over.
        let stack = stack.or(block.segment_stack);
        self.take(id);
        if before > 0 {
            let front = self.blocks.split_front(id, before);
            self.put(front);
        }
        if self.blocks[id].size > unmapped {
            let back = self.blocks.split_back(id, unmapped);
            self.put(back);
        }
        let block = &mut self.blocks[id];
        block.mapped = false;
        let set = block.pool.set;
        let event = self.join_neighbours(id);
        self.pools.sub_reserved(set, unmapped);
        self.emit(&Event::SegmentUnmap(event), stack);
    }

    /// Pages of a range that were just mapped or unmapped, as an event; merged with what lies beside
    /// them and is in the same state.
    fn join_neighbours(&mut self, id: BlockId) -> SegmentEvent {
        let block = &self.blocks[id];
        let event = SegmentEvent {
            address: block.address,
            size: block.size,
            stream: block.stream,
            kind: block.pool.kind,
            oversize: false,
        };
        for neighbour in [block.prev, block.next] {
            self.try_merge(id, neighbour);
        }
        self.put(id);
        event
    }

    /// A whole fixed segment, as an event.
    fn segment_event(&self, id: BlockId) -> SegmentEvent {
        let block = &self.blocks[id];
        SegmentEvent {
            address: block.address,
            size: block.size,
            stream: block.stream,
            kind: block.pool.kind,
            oversize: self.is_oversize(block.size),
        }
    }
}
