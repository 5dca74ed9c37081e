//! A device that answers as the recorded one did.
//!
//! It follows the recording with a cursor: every change of the engine must be the next entry. Where
//! the engine asks the device for something, the next entry holds the answer:
//!
//! | the engine asks for | the next entry is | answer |
//! | --- | --- | --- |
//! | a segment, a range | `segment_alloc`, `segment_map` | its address |
//! | a segment, a page | memory given back, or `oom` | no memory, if refusals are believed |
//!
//! No one asks it about events: the player itself takes back the blocks that are found complete before anything
//! else in a call, and those that are found later in one are waited for.
//!
//! Anything else is answered somehow; what the engine then does differs from the recording, and the
//! cursor stops there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tonnage_device::{Device, DeviceError, EventId, MemoryInfo, PageId};
use tonnage_events::{Action, Address, DeviceId, Event, StreamId, TraceEntry};

use super::pools::Place;
use super::ranges::SMALL_PAGE;
use super::timeline::Timeline;

/// Most bytes a recording may hold at once: sums beyond would not fit the figures. No device comes
/// near.
const LARGEST_RECORDING: u64 = 1 << 56;

/// Most pages it may hold at once: they are kept one by one, and entries of a few bytes can ask for any number. Of the
/// smallest this is 4 TiB.
const MOST_PAGES: usize = 1 << 21;

/// Where segments and ranges are put that the recording does not have, one behind the other.
const NOWHERE: Address = Address(1 << 62);

/// How many entries that map pages are looked at for the address of a range whose first page the driver
/// refused.
const MOST_MAPS_AHEAD: usize = 1_000;

/// The stream of events for a free that completes at entry k, inside a call, is this plus k. Such blocks get a
/// stream each, because the recording does not name it; the numbers let the engine, which waits for
/// streams in order, find them complete in the recorded order.
const FOREIGN_STREAMS: u64 = 1 << 63;

/// The stream of all other events.
const NOT_WAITED_FOR: StreamId = StreamId(FOREIGN_STREAMS - 1);

/// What the engine did instead of the next entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) event: usize,
    pub(crate) got: TraceEntry,
    /// The segment it was done with, or to.
    pub(crate) place: Option<Place>,
}

/// A refusal that the recording was taken to show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// Bytes the driver had given by then.
    pub(crate) granted: u64,
    /// Bytes it was asked for.
    pub(crate) asked: u64,
}

/// The recorded device.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    id: DeviceId,
    total: u64,
    entries: Arc<[TraceEntry]>,
    /// The entries that map pages.
    maps: Arc<[usize]>,
    cursor: usize,
    mismatch: Option<Mismatch>,
    granted: u64,
    /// Whether memory given back in a request is read as the driver's refusal.
    pub(crate) believes_refusals: bool,
    pub(crate) refusals: Vec<Refusal>,
    /// Bytes of the request being served: refused as a whole, though asked for page by page.
    pub(crate) request_size: u64,
    /// Its stream.
    pub(crate) request_stream: StreamId,
    /// Segments and ranges: where each begins, its end, and when it was obtained.
    owners: BTreeMap<Address, (Address, Place)>,
    /// Memory that was given out, segments and mapped pages: where each begins and its end. No two overlap, whatever
    /// the recording says; ranges may, where nothing tells how far they reach.
    held: BTreeMap<Address, Address>,
    /// Pages that were made, and the bytes of the last.
    pages: usize,
    page_size: u64,
    /// The segment that was given back last.
    released: Option<(Address, Place)>,
    /// While a state is restored: where its segments and ranges begin, in order.
    restoring: Option<VecDeque<Address>>,
    last_id: u64,
}

impl Script {
    pub(crate) fn new(
        id: DeviceId,
        total: u64,
        entries: Arc<[TraceEntry]>,
        timeline: &Timeline,
    ) -> Self {
        Self {
            id,
            total,
            entries,
            maps: Arc::clone(&timeline.maps),
            cursor: 0,
            mismatch: None,
            granted: 0,
            believes_refusals: true,
            refusals: Vec::new(),
            request_size: 0,
            request_stream: StreamId::DEFAULT,
            owners: BTreeMap::new(),
            held: BTreeMap::new(),
            pages: 0,
            page_size: 0,
            released: None,
            restoring: None,
            last_id: 0,
        }
    }

    /// Answers with the places of a state that is restored, until [`restored`](Self::restored).
    pub(crate) fn restoring(&mut self, places: VecDeque<Address>) {
        self.restoring = Some(places);
    }

    /// Goes on with the entry at `from`, before which the driver had given `granted` bytes.
    pub(crate) fn restored(&mut self, from: usize, granted: u64) {
        self.restoring = None;
        (self.cursor, self.granted) = (from, granted);
    }

    /// The next entry's index.
    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }

    /// The next entry.
    pub(crate) fn next(&self) -> Option<&TraceEntry> {
        self.entries.get(self.cursor)
    }

    pub(crate) fn entries(&self) -> &Arc<[TraceEntry]> {
        &self.entries
    }

    /// Passes over an entry that no change of the engine makes.
    pub(crate) fn pass_over(&mut self) {
        self.cursor += 1;
    }

    pub(crate) fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_ref()
    }

    /// The stream of a block's events: one of its own only if they are waited for inside a call.
    pub(crate) fn stream_of(completion: Option<usize>, timeline: &Timeline) -> StreamId {
        match completion {
            Some(entry) if timeline.completes_mid_call(entry) => {
                StreamId(FOREIGN_STREAMS + entry as u64)
            }
            _ => NOT_WAITED_FOR,
        }
    }

    /// The segment or range that this address lies in.
    pub(crate) fn owner(&self, address: Address) -> Option<Place> {
        let (_, &(end, place)) = self.owners.range(..=address).next_back()?;
        (address < end).then_some(place)
    }

    /// Where segments and ranges begin, in order.
    pub(crate) fn begins(&self) -> Vec<Address> {
        self.owners.keys().copied().collect()
    }

    /// Whether no segment or range reaches into these addresses.
    fn is_vacant(&self, address: Address, size: u64) -> bool {
        let end = Address(address.0.saturating_add(size));
        let below = self.owners.range(..end).next_back();
        below.is_none_or(|(_, &(reached, _))| reached <= address)
    }

    /// Takes these addresses for memory, unless some of them are memory already.
    fn hold(&mut self, address: Address, size: u64) -> bool {
        let end = Address(address.0.saturating_add(size));
        let below = self.held.range(..end).next_back();
        let vacant = below.is_none_or(|(_, &reached)| reached <= address);
        if vacant {
            self.held.insert(address, end);
        }
        vacant
    }

    /// Pages and events that it made so far.
    pub(crate) fn made(&self) -> usize {
        usize::try_from(self.last_id).unwrap_or(usize::MAX)
    }

    /// Pages that it holds.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes that the driver has given.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    fn next_action(&self) -> Option<Action> {
        self.next().map(|entry| entry.action)
    }

    /// Whether the recording goes on as it does after the driver refuses `asked` bytes.
    fn refuses(&mut self, asked: u64) -> bool {
        let refused = self.believes_refusals
            && matches!(
                self.next_action(),
                Some(
                    Action::SegmentFree
                        | Action::SegmentUnmap
                        | Action::FreeCompleted
                        | Action::Oom
                )
            );
        if refused {
            let asked = asked.max(self.request_size);
            self.refusals.push(Refusal { granted: self.granted, asked });
        }
        refused
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Puts a range there, if the address space has room behind it.
    fn place_range(&mut self, address: Address, size: u64, place: Place) -> Option<Address> {
        let end = address.0.checked_add(size).filter(|&end| end <= NOWHERE.0 << 1)?;
        self.owners.insert(address, (Address(end), place));
        Some(address)
    }

    /// Puts a segment there, if nothing else lies there.
    fn place_segment(&mut self, address: Address, size: u64, place: Place) -> Option<Address> {
        let end = address.0.checked_add(size).filter(|&end| end <= NOWHERE.0 << 1)?;
        if !self.may_begin(address) || !self.hold(address, size) {
            return None;
        }
        self.owners.insert(address, (Address(end), place));
        Some(address)
    }

    /// Behind all that the recording does not have.
    fn nowhere(&self) -> Address {
        self.owners.range(NOWHERE..).next_back().map_or(NOWHERE, |(_, &(end, _))| end)
    }

    /// While a state is restored: where its next segment or range begins.
    fn next_restored(&mut self) -> Option<Address> {
        self.restoring.as_mut()?.pop_front()
    }

    /// Whether a segment or range can begin here: none does, and no memory reaches here.
    fn may_begin(&self, address: Address) -> bool {
        let below = self.held.range(..=address).next_back();
        !self.owners.contains_key(&address) && below.is_none_or(|(_, &end)| end <= address)
    }

    fn forget(&mut self, address: Address) {
        self.released = self.owners.remove(&address).map(|(_, place)| (address, place));
    }
}

impl Device for Script {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        let free = match self.next() {
            Some(entry) if entry.action == Action::Oom => entry.address.0,
            _ => self.total.saturating_sub(self.granted),
        };
        Ok(MemoryInfo { free, total: self.total })
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        let no_memory = DeviceError::OutOfMemory { requested: size };
        if self.restoring.is_some() {
            let address = self.next_restored();
            let place = address.and_then(|at| self.place_segment(at, size, Place::Start(at)));
            return place.ok_or(no_memory);
        }
        let too_much = self.granted.saturating_add(size) > LARGEST_RECORDING;
        if self.mismatch.is_some() || too_much || self.refuses(size) {
            return Err(no_memory);
        }
        let recorded = self.next().filter(|entry| entry.action == Action::SegmentAlloc);
        let recorded = recorded.map(|entry| entry.address);
        let place = Place::Entry(self.cursor);
        recorded
            .and_then(|at| self.place_segment(at, size, place))
            .or_else(|| self.place_segment(self.nowhere(), size, place))
            .ok_or(no_memory)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.held.remove(&address);
        self.forget(address);
        Ok(())
    }

    fn granularity(&self) -> u64 {
        2 << 20
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        let no_memory = DeviceError::OutOfMemory { requested: size };
        if self.restoring.is_some() {
            let address = self.next_restored();
            let place = address.and_then(|at| self.place_range(at, size, Place::Start(at)));
            return place.ok_or(no_memory);
        }
        // If the driver refuses the first page, the range's address shows only later; and if the request is larger
        // than the range, perhaps never, since only large requests of the same stream use what is left behind.
        let left_behind = self.request_size > size;
        let ahead = self.maps.partition_point(|&index| index < self.cursor);
        let mut maps = self.maps[ahead..].iter().copied().take(MOST_MAPS_AHEAD);
        let new = maps.find(|&index| {
            let TraceEntry { address, size: pages, stream, .. } = self.entries[index];
            // What is reserved at its addresses later is another one.
            let is_new = self.is_vacant(address, size);
            match left_behind {
                true => is_new && stream == self.request_stream && pages > SMALL_PAGE,
                false => is_new || (index == self.cursor && self.may_begin(address)),
            }
        });
        let (index, address) = match new {
            Some(index) => (index, self.entries[index].address),
            None => (self.cursor, self.nowhere()),
        };
        self.place_range(address, size, Place::Entry(index)).ok_or(no_memory)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.forget(address);
        Ok(())
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        let too_much = self.granted.saturating_add(size) > LARGEST_RECORDING;
        let restoring = self.restoring.is_some();
        let refused = !restoring && (self.mismatch.is_some() || too_much || self.refuses(size));
        if refused || self.pages == MOST_PAGES {
            return Err(DeviceError::OutOfMemory { requested: size });
        }
        self.pages += 1;
        self.page_size = size;
        Ok(PageId(self.new_id()))
    }

    fn destroy_page(&mut self, _page: PageId) -> Result<(), DeviceError> {
        self.pages = self.pages.saturating_sub(1);
        Ok(())
    }

    fn map(&mut self, _page: PageId, address: Address) -> Result<(), DeviceError> {
        let vacant = self.hold(address, self.page_size);
        vacant.then_some(()).ok_or(DeviceError::OutOfMemory { requested: self.page_size })
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        self.held.remove(&address);
        Ok(())
    }

    fn record_event(&mut self, _stream: StreamId) -> Result<EventId, DeviceError> {
        Ok(EventId(self.new_id()))
    }

    fn query_event(&mut self, _event: EventId) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn wait_event(&mut self, _event: EventId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn destroy_event(&mut self, _event: EventId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronize(&mut self, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn observe(&mut self, event: &Event) {
        match event {
            Event::SegmentAlloc(it) | Event::SegmentMap(it) => self.granted += it.size,
            Event::SegmentFree(it) | Event::SegmentUnmap(it) => self.granted -= it.size,
            _ => {}
        }
        let Some(got) = TraceEntry::of(event) else { return };
        if self.mismatch.is_some() {
            return;
        }
        if self.next().is_some_and(|expected| expected.agrees_with(&got)) {
            self.cursor += 1;
        } else {
            // Another may lie there by now, unless it is the giving back that differs.
            let gives_back = matches!(got.action, Action::SegmentFree | Action::SegmentUnmap);
            let released = self.released.filter(|&(at, _)| gives_back && at == got.address);
            let place = released.map(|(_, place)| place).or_else(|| self.owner(got.address));
            self.mismatch = Some(Mismatch { event: self.cursor, got, place });
        }
    }
}
