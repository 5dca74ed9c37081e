//! The way to the device: a new segment, or more pages for an expandable one.

use tonnage_device::{Device, DeviceError};
use tonnage_events::{Event, PoolKind, SegmentEvent, StackId};

use crate::block::{Block, BlockId, Blocks};
use crate::engine::{Engine, share_of};
use crate::error::{AllocError, Rejected};
use crate::pool::SourceFailed;
use crate::request::Request;
use crate::segment::{Places, Role};
use crate::stats::MOST_RESERVED;

impl<D: Device> Engine<D> {
    /// A block for the request out of memory that the device gives now; none if it has not enough,
    /// or if the limit forbids it. The block is in no set. An error too if a setting rejects it before the
    /// device is asked.
    pub(crate) fn grow(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, AllocError> {
        // The limit is compared with a whole segment even where fewer pages would do: PyTorch's rule. So is that the sum
        // has 64 bits: `large_segment_size_mb:-1` is no more than any limit.
        let after = self.reserved().wrapping_add(request.segment_size);
        if self.limit.is_some_and(|limit| after > limit) {
            return Ok(None);
        }
        if self.config.throw_on_cudamalloc_oom() {
            self.check_fraction(request, after)?;
        }
        if request.expandable {
            let grown = self.grow_range(request, stack)?;
            if grown.is_some() {
                self.pools.add_growth(request.pool.set);
            }
            return Ok(grown);
        }
        if self.reserved().saturating_add(request.segment_size) > MOST_RESERVED {
            return Ok(None);
        }
        let address = match self.pools.source(request.pool.set) {
            Some(source) => (source.acquire)(request.segment_size)
                .map_err(|SourceFailed| AllocError::Source(self.pools.id(request.pool.set)))?,
            None => match self.device.acquire(request.segment_size) {
                Ok(address) => Some(address),
                Err(DeviceError::OutOfMemory { .. }) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let Some(address) = address else { return Ok(None) };
        let mut block = Block::new(address, request.segment_size, request.stream, request.pool);
        block.segment_stack = stack;
        let id = self.insert_segment(block, request.segment_size);
        self.pools.add_reserved(request.pool.set, request.segment_size);
        self.pools.add_growth(request.pool.set);
        let event = Event::SegmentAlloc(self.segment_event(id));
        self.emit(&event, stack);
        Ok(Some(id))
    }

    /// Turns a request down whose segment would take the reserved bytes to `after`, if that is more than the share
    /// of the device in the settings. That share need not be in force as a limit.
    fn check_fraction(&mut self, request: &Request, after: u64) -> Result<(), AllocError> {
        let allowed = share_of(self.device.total(), self.config.per_process_memory_fraction());
        if after <= allowed {
            return Ok(());
        }
        self.emit(&Event::Rejected, None);
        let moment = self.oom_report(request, None);
        Err(AllocError::Rejected(Box::new(Rejected { allowed, moment })))
    }

    /// Puts the first block of a new segment among the others, as the last in the order of segments.
    pub(crate) fn insert_segment(&mut self, mut block: Block, size: u64) -> BlockId {
        if !self.blocks.has_ranks_for(size) {
            self.close_ranks();
        }
        self.blocks.rank_segment(&mut block, size);
        self.blocks.number_segment(&mut block);
        self.pools.revive(block.pool.set);
        self.blocks.insert(block)
    }

    /// Closes the gaps that segments have left in the order of segments.
    #[cold]
    fn close_ranks(&mut self) {
        self.change_ranks(Blocks::close_ranks);
    }

    /// Changes the ranks of blocks, and has the sets look for their blocks where they are then.
    pub(crate) fn change_ranks(&mut self, change: impl FnOnce(&mut Blocks)) {
        self.settle();
        let free: Vec<_> =
            self.blocks.iter().filter(|(_, block)| block.is_idle() && block.mapped).collect();
        let free: Vec<_> =
            free.into_iter().map(|(id, block)| (id, block.searches_at_put)).collect();
        for &(id, _) in &free {
            self.take(id);
        }
        change(&mut self.blocks);
        for (id, searches_at_put) in free {
            self.put(id);
            self.blocks[id].searches_at_put = searches_at_put;
        }
    }

    /// Returns a whole fixed segment, of which `id` is the only block and free, to the device.
    pub(crate) fn release_segment(
        &mut self,
        id: BlockId,
        stack: Option<StackId>,
    ) -> Result<(), DeviceError> {
        let event = self.segment_event(id);
        let block = &self.blocks[id];
        let (address, size, set) = (block.address, block.size, block.pool.set);
        let stack = stack.or(block.segment_stack);
        let freed = Event::SegmentFree(event);
        // Whoever has told others of the memory takes that back while there still is some.
        self.ledger.announce(&freed, stack);
        match self.pools.source(set) {
            Some(source) => (source.release)(address),
            None => {
                if let Err(error) = self.device.release(address) {
                    // It is there as before, and who was told otherwise is told so.
                    self.ledger.announce(&Event::SegmentAlloc(event), stack);
                    return Err(error);
                }
            }
        }
        self.pools.sub_reserved(set, size);
        self.pools.sub_growth(set);
        self.take(id);
        self.blocks.remove(id);
        self.ledger.count_announced(&mut self.device, &freed);
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

    /// The block from which on the request fits into an expandable segment. If there is none, a new range is
    /// reserved; and if not even that is large enough, it goes back at once
    /// or, in older releases, is left behind for smaller requests, and later ranges then lie elsewhere.
    fn find_room(&mut self, request: &Request) -> Result<Option<BlockId>, DeviceError> {
        let half = self.pools.half(request.pool);
        if let Some(first) = self.policy.find_room(half, &self.blocks, request) {
            return Ok(Some(first));
        }
        let page = self.page_size(request.pool.kind);
        self.check_page(page)?;
        let Some(size) = self.range_size(request.stream, page) else { return Ok(None) };
        let range = match self.ranges.reserve(&mut self.device, size, page, Role::Expandable) {
            Ok(range) => range,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if size < request.size && self.config.release().gives_back_small_ranges() {
            self.ranges.unreserve(&mut self.device, range)?;
            return Ok(None);
        }
        let mut block = Block::new(self.ranges[range].base, size, request.stream, request.pool);
        block.mapped = false;
        block.range = Some(range);
        let id = self.insert_segment(block, size);
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
        self.policy.page_size(&self.config, kind)
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

    /// Forgets a range of which `id` is the only block and unmapped. The device keeps its addresses.
    pub(crate) fn abandon_range(&mut self, id: BlockId) {
        let range = self.blocks[id].range.expect("only ranges have unmapped blocks");
        self.ranges.abandon(range);
        self.take(id);
        self.blocks.remove(id);
    }

    /// Gives back a range of which `id` is the only block and unmapped.
    fn release_range(&mut self, id: BlockId) -> Result<(), DeviceError> {
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
        self.pools.sub_growth(set);
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
            pool: self.pools.id(block.pool.set),
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
            pool: self.pools.id(block.pool.set),
            kind: block.pool.kind,
            oversize: self.is_oversize(block.size),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonnage_device::Dry;
    use tonnage_events::StreamId;

    use crate::{Config, Engine, Release};

    /// Allocations and frees of round sizes, so that blocks are equal, with segments that come and go.
    fn work(engine: &mut Engine<Dry>, rounds: u64, live: &mut Vec<crate::Allocation>) -> Vec<u64> {
        let mut places = Vec::new();
        for round in 0..rounds {
            for (index, mib) in [1, 3, 12, 1, 30, 3].into_iter().enumerate() {
                let stream = StreamId((round + index as u64) % 2);
                live.push(engine.allocate(mib << 20, stream).unwrap());
                places.push(live.last().unwrap().address.0);
            }
            for _ in 0..5 {
                let at = (round * 7 + places.len() as u64) as usize % live.len();
                engine.free(&live.swap_remove(at)).unwrap();
            }
            if round % 4 == 3 {
                engine.empty_cache().unwrap();
            }
        }
        places
    }

    #[test]
    fn ranks_that_are_used_up_change_no_answer() {
        for conf in ["", "expandable_segments:True", "garbage_collection_threshold:0.1"] {
            let config = Config::parse(conf, Release::NEWEST).unwrap();
            let mut engines = [0; 2].map(|_| Engine::new(Dry::new(4 << 30), config.clone()));
            let mut live = [Vec::new(), Vec::new()];
            for _ in 0..12 {
                let [often, never] = &mut engines;
                // Several segments fit before the end, and the one after them does not.
                often.blocks.use_up_ranks(u64::MAX - (64 << 20));
                assert_eq!(work(often, 10, &mut live[0]), work(never, 10, &mut live[1]), "{conf}");
                often.check_invariants().unwrap();
            }
        }
    }

    #[test]
    fn ranges_as_wide_as_the_address_space_have_an_order_too() {
        // A range is an eighth larger than the device: about 2⁶⁰ bytes, of which sixteen fit into 64 bits.
        let config = Config::parse("expandable_segments:True", Release::NEWEST).unwrap();
        let mut engine = Engine::new(Dry::new(1 << 60), config);
        for _ in 0..40 {
            let block = engine.allocate(1 << 20, StreamId(0)).unwrap();
            engine.free(&block).unwrap();
            engine.empty_cache().unwrap();
        }
        assert_eq!(engine.stats().memory_reserved(), 0);
    }

    #[test]
    fn ranges_that_no_address_space_holds_are_refused() {
        let config = Config::parse("expandable_segments:True", Release::NEWEST).unwrap();
        let mut engine = Engine::new(Dry::new(1 << 60), config);
        let mut refused = 0;
        for stream in 0..20 {
            if let Err(error) = engine.allocate(1 << 20, StreamId(stream)) {
                assert!(error.to_string().contains("no address space has"), "{error}");
                refused += 1;
            }
        }
        assert_eq!(refused, 17, "three ranges of 9/8 · 2⁶⁰ bytes are less than 2⁶²");
        // What is left for segments still has an order.
        engine.configure("expandable_segments:False").unwrap();
        engine.allocate((1 << 60) - (1 << 30), StreamId(0)).unwrap();
        engine.check_invariants().unwrap();
    }
}
