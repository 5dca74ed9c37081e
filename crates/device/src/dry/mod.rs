//! A device without memory: addresses by rule, a capacity, events that complete when told.
//!
//! Because nothing here depends on time or hardware, a run on `dry` is a prediction: the same
//! requests always get the same addresses.

mod calls;

pub(crate) mod placement;

use std::collections::{BTreeMap, BTreeSet};

pub use calls::PageCalls;
pub use placement::{Arenas, Downwards, FirstFit, Placement};
use tonnage_events::{Address, DeviceId, StreamId};

use crate::{Device, DeviceError, EventId, MemoryInfo, PageId};

/// The mapping granularity of NVIDIA's devices, measured on an H200.
const GRANULARITY: u64 = 2 << 20;

/// A device that only keeps count.
///
/// *Live segments + pages, in bytes = used ≤ capacity.*
#[derive(Clone, Debug)]
pub struct Dry {
    id: DeviceId,
    total: u64,
    capacity: u64,
    granularity: u64,
    used: u64,
    placement: Placement,
    segments: BTreeMap<Address, u64>,
    ranges: BTreeMap<Address, u64>,
    pages: BTreeMap<PageId, Page>,
    /// Which page lies at an address.
    mappings: BTreeMap<Address, PageId>,
    events: BTreeMap<EventId, StreamId>,
    completion: Completion,
    /// The last number given to a page or an event.
    last_id: u64,
    calls: PageCalls,
}

/// A part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagePart {
    /// The page.
    pub page: PageId,
    /// Its bytes.
    pub page_size: u64,
    /// Where in the page the part begins.
    pub offset: u64,
    /// Bytes of the part.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
struct Page {
    size: u64,
    mappings: u32,
}

/// Which events count as complete.
#[derive(Clone, Debug)]
enum Completion {
    All,
    Of(BTreeSet<StreamId>),
}

impl Dry {
    /// A device of `total` bytes that all can be had, with first-fit addresses.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self {
            id: DeviceId::default(),
            total,
            capacity: total,
            granularity: GRANULARITY,
            used: 0,
            placement: Placement::FirstFit(FirstFit::default()),
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            pages: BTreeMap::new(),
            mappings: BTreeMap::new(),
            events: BTreeMap::new(),
            completion: Completion::All,
            last_id: 0,
            calls: PageCalls::default(),
        }
    }

    /// Gives out at most `capacity` bytes, as if others held the rest.
    #[must_use]
    pub fn with_capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// Maps pages in other units than NVIDIA's devices do: a power of two.
    ///
    /// # Panics
    ///
    /// If it is not one.
    #[must_use]
    pub fn with_granularity(mut self, granularity: u64) -> Self {
        assert!(granularity.is_power_of_two(), "{granularity} is not a power of two");
        self.granularity = granularity;
        self
    }

    /// Chooses the rule for addresses.
    #[must_use]
    pub fn with_placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Gives the device another ordinal.
    #[must_use]
    pub fn with_id(mut self, id: DeviceId) -> Self {
        self.id = id;
        self
    }

    /// Bytes given out now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Ranges, pages and events that were not given back.
    #[must_use]
    pub fn handles(&self) -> usize {
        self.ranges.len() + self.pages.len() + self.events.len()
    }

    /// The calls about pages so far, and what they would have cost.
    #[must_use]
    pub fn page_calls(&self) -> PageCalls {
        self.calls
    }

    /// What lies under `size` bytes at `address`, by address; nothing where these are a segment's, or not mapped.
    pub fn pages_under(&self, address: Address, size: u64) -> impl Iterator<Item = PagePart> + '_ {
        let end = address.offset(size);
        let first = self.mappings.range(..=address).next_back().map_or(address, |(&at, _)| at);
        self.mappings.range(first..end).filter_map(move |(&at, &page)| {
            let page_size = self.pages[&page].size;
            let from = at.max(address);
            let to = at.offset(page_size).min(end);
            (from < to).then(|| PagePart {
                page,
                page_size,
                offset: from.distance_from(at),
                bytes: to.distance_from(from),
            })
        })
    }

    /// Every event, recorded or still to come, counts as complete. So it is at the start.
    pub fn complete_events(&mut self) {
        self.completion = Completion::All;
    }

    /// No event counts as complete until told again; waiting still completes.
    pub fn hold_events(&mut self) {
        self.completion = Completion::Of(BTreeSet::new());
    }

    /// After [`hold_events`](Self::hold_events): the events of this stream, recorded or still to
    /// come, count as complete.
    pub fn complete_events_of(&mut self, stream: StreamId) {
        if let Completion::Of(streams) = &mut self.completion {
            streams.insert(stream);
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Takes `size` bytes of the capacity.
    fn take(&mut self, size: u64) -> Result<(), DeviceError> {
        match self.used.checked_add(size) {
            Some(used) if used <= self.capacity => {
                self.used = used;
                Ok(())
            }
            _ => Err(DeviceError::OutOfMemory { requested: size }),
        }
    }

    /// The reserved range that holds all of `[address, address + size)`.
    fn range_of(&self, address: Address, size: u64) -> Option<Address> {
        let (&base, &length) = self.ranges.range(..=address).next_back()?;
        (address.distance_from(base).checked_add(size)? <= length).then_some(base)
    }

    fn whole_granules(&self, call: &'static str, size: u64) -> Result<(), DeviceError> {
        let granularity = self.granularity;
        if size == 0 || !size.is_multiple_of(granularity) {
            return Err(DeviceError::misuse(
                call,
                format!("{size} bytes are not a whole number of granules of {granularity}"),
            ));
        }
        Ok(())
    }
}

impl Device for Dry {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        Ok(MemoryInfo { free: self.capacity - self.used, total: self.total })
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        if size == 0 {
            return Err(DeviceError::misuse("acquire", "a segment has at least one byte"));
        }
        self.take(size)?;
        let Some(address) = self.placement.place_segment(size, &self.segments) else {
            self.used -= size;
            return Err(DeviceError::OutOfMemory { requested: size });
        };
        self.segments.insert(address, size);
        Ok(address)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        let size = self.segments.remove(&address).ok_or_else(|| {
            DeviceError::misuse("release", format!("no segment begins at {address}"))
        })?;
        self.placement.remove_segment(address, size);
        self.used -= size;
        Ok(())
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.whole_granules("reserve", size)?;
        let address = self.placement.place_range(size, &self.ranges).ok_or_else(|| {
            DeviceError::misuse("reserve", format!("the address space has no {size} bytes left"))
        })?;
        self.ranges.insert(address, size);
        self.calls.reserved += 1;
        Ok(address)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        let size = *self.ranges.get(&address).ok_or_else(|| {
            DeviceError::misuse("unreserve", format!("no range begins at {address}"))
        })?;
        if let Some((at, _)) = self.mappings.range(address..address.offset(size)).next() {
            return Err(DeviceError::misuse(
                "unreserve",
                format!("a page is still mapped at {at}, inside the range at {address}"),
            ));
        }
        self.ranges.remove(&address);
        Ok(())
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.whole_granules("create_page", size)?;
        self.take(size)?;
        let page = PageId(self.next_id());
        self.pages.insert(page, Page { size, mappings: 0 });
        self.calls.created += 1;
        Ok(page)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        let entry = self
            .pages
            .get(&page)
            .ok_or_else(|| DeviceError::misuse("destroy_page", format!("no page {}", page.0)))?;
        if entry.mappings > 0 {
            return Err(DeviceError::misuse(
                "destroy_page",
                format!("page {} is still mapped", page.0),
            ));
        }
        self.used -= entry.size;
        self.calls.destroyed += 1;
        self.calls.destroyed_bytes += entry.size;
        self.pages.remove(&page);
        Ok(())
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        let Some(size) = self.pages.get(&page).map(|entry| entry.size) else {
            return Err(DeviceError::misuse("map", format!("no page {}", page.0)));
        };
        if !address.0.is_multiple_of(self.granularity) {
            return Err(DeviceError::misuse("map", format!("{address} is not aligned")));
        }
        if self.range_of(address, size).is_none() {
            return Err(DeviceError::misuse(
                "map",
                format!("no reserved range holds {size} bytes at {address}"),
            ));
        }
        let below = self.mappings.range(..address.offset(size)).next_back();
        if let Some((&at, other)) = below
            && at.offset(self.pages[other].size) > address
        {
            return Err(DeviceError::misuse("map", format!("a page is mapped at {at} already")));
        }
        self.mappings.insert(address, page);
        self.calls.mapped += 1;
        self.pages.get_mut(&page).expect("looked up above").mappings += 1;
        Ok(())
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        let page = self.mappings.remove(&address).ok_or_else(|| {
            DeviceError::misuse("unmap", format!("no mapping begins at {address}"))
        })?;
        self.pages.get_mut(&page).expect("a mapped page exists").mappings -= 1;
        self.calls.unmapped += 1;
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        let event = EventId(self.next_id());
        self.events.insert(event, stream);
        Ok(event)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let stream = self
            .events
            .get(&event)
            .ok_or_else(|| DeviceError::misuse("query_event", format!("no event {}", event.0)))?;
        Ok(match &self.completion {
            Completion::All => true,
            Completion::Of(streams) => streams.contains(stream),
        })
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        if !self.events.contains_key(&event) {
            return Err(DeviceError::misuse("wait_event", format!("no event {}", event.0)));
        }
        Ok(())
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.events
            .remove(&event)
            .map(|_| ())
            .ok_or_else(|| DeviceError::misuse("destroy_event", format!("no event {}", event.0)))
    }

    fn synchronize(&mut self, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::device_conformance!(first_fit, Dry::new(1 << 30));
    crate::device_conformance!(
        arenas,
        Dry::new(1 << 30).with_placement(Placement::Arenas(Arenas::default()))
    );
    crate::device_conformance!(unfailing, crate::FailNth::new(Dry::new(1 << 30), u64::MAX));

    #[test]
    fn events_complete_when_told() {
        let mut device = Dry::new(1 << 30);
        let [one, two] = [1, 2].map(|stream| device.record_event(StreamId(stream)).unwrap());
        assert_eq!(device.query_event(one), Ok(true));
        device.hold_events();
        assert_eq!(device.query_event(one), Ok(false));
        device.complete_events_of(StreamId(2));
        assert_eq!(device.query_event(one), Ok(false));
        assert_eq!(device.query_event(two), Ok(true));
        device.hold_events();
        assert_eq!(device.query_event(two), Ok(false));
        device.complete_events();
        assert_eq!(device.query_event(one), Ok(true));
    }

    #[test]
    fn capacity_may_be_less_than_the_total() {
        let mut device = Dry::new(1 << 30).with_capacity(10 << 20);
        assert_eq!(device.acquire(11 << 20), Err(DeviceError::OutOfMemory { requested: 11 << 20 }));
        device.acquire(10 << 20).unwrap();
        assert_eq!(device.memory_info(), Ok(MemoryInfo { free: 0, total: 1 << 30 }));
    }
}
