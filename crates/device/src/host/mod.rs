//! A device made of this machine's memory and threads.
//!
//! In:  the calls of [`Device`]; work through [`Streams`]; bytes through [`Host::read`] and
//!      [`Host::write`].
//! Out: memory that is really there, and really gone when given back: touching it faults.
//!
//! Memory costs nothing until touched, so the capacity may be larger than the machine's. Addresses
//! have the order that they have on `dry`, so a dry run predicts a run here. Streams run
//! asynchronously, as on a GPU, so what is wrongly ordered there is wrongly ordered here.

// The system's calls, and every unsafe line about memory.
mod memory;

// Where segments and ranges lie.
mod addresses;

// Reserved ranges and the pages in them.
mod pages;

// The books of the streams.
mod queue;

// A stream's thread.
mod worker;

// What users of streams hold.
mod streams;

// Patterns in memory without data.
mod poison;

use std::collections::BTreeMap;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::thread;

use addresses::Addresses;
use memory::Span;
use pages::Pages;
use poison::Poison;
pub use poison::{FREED, FRESH};
pub use streams::Streams;
use tonnage_events::{Address, BlockEvent, DeviceId, Event, StreamId};

use crate::{Device, DeviceError, EventId, MemoryInfo, PageId};

/// Real memory up to a capacity, and streams that are threads.
///
/// *Live segments + pages, in bytes = used ≤ capacity.*
///
/// # Who orders what
///
/// Work on streams reaches memory through [`pointer`](Self::pointer), in unsafe code that promises:
///
/// 1. Work that touches a range runs while the range is mapped. [`release`](Device::release) and
///    dropping the device wait for everything that is queued; [`unmap`](Device::unmap) and
///    [`unreserve`](Device::unreserve) do not, as on a GPU.
/// 2. Two pieces of work that touch the same bytes, one of them writing, are ordered by a stream or
///    by an event.
/// 3. So are work and this device's own [`read`](Self::read), [`write`](Self::write) and
///    [`fill`](Self::fill): wait for the work first.
///
/// What the device itself does needs no promise: those three check that the range is there, two of
/// them need the device for themselves, and poisoning is ordered by the block's stream.
#[derive(Debug)]
pub struct Host {
    id: DeviceId,
    capacity: u64,
    used: u64,
    addresses: Addresses,
    segments: BTreeMap<Address, Segment>,
    pages: Pages,
    streams: Streams,
    poison: Poison,
    poisons: bool,
}

#[derive(Debug)]
struct Segment {
    span: Span,
    size: u64,
}

impl Host {
    /// A device that gives out at most `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            id: DeviceId::default(),
            capacity,
            used: 0,
            addresses: Addresses::new(capacity),
            segments: BTreeMap::new(),
            pages: Pages::default(),
            streams: Streams::new(),
            poison: Poison::default(),
            poisons: false,
        }
    }

    /// Gives the device another ordinal.
    #[must_use]
    pub fn with_id(mut self, id: DeviceId) -> Self {
        self.id = id;
        self
    }

    /// Whether blocks are filled with [`FRESH`] when an allocator on this device hands them out, and
    /// with [`FREED`] when they are back in its pool. It learns of them by
    /// [`observe`](Device::observe); blocks outside its memory it leaves alone.
    #[must_use]
    pub fn poison(mut self, on: bool) -> Self {
        self.poisons = on;
        self
    }

    /// The streams, for use without the device.
    #[must_use]
    pub fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// Bytes given out now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Ranges, pages and events that were not given back.
    #[must_use]
    pub fn handles(&self) -> usize {
        self.pages.handles() + self.streams.events()
    }

    /// Copies the bytes at `address`. It waits for no work: see *Who orders what*.
    ///
    /// # Errors
    ///
    /// If not all of the range lies in one live segment or in mapped pages.
    pub fn read(&self, address: Address, into: &mut [u8]) -> Result<(), DeviceError> {
        self.accessible("read", address, into.len() as u64)?;
        // SAFETY:
        // 1. Mapped: checked; `&self` keeps it so.
        // 2. Not written meanwhile: not by this device (`write` and `fill` need `&mut self`, and no
        //    poisoning is under way after the check), nor by work, by promise 3 of its author.
        unsafe { memory::copy_from(address.0, into) };
        Ok(())
    }

    /// Copies `bytes` to `address`. It waits for no work: see *Who orders what*.
    ///
    /// # Errors
    ///
    /// If not all of the range lies in one live segment or in mapped pages.
    pub fn write(&mut self, address: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.accessible("write", address, bytes.len() as u64)?;
        // SAFETY:
        // 1. Mapped: checked; `&mut self` keeps it so.
        // 2. Not touched meanwhile: not by this device (`&mut self`, and no poisoning is under way
        //    after the check), nor by work, by promise 3 of its author.
        unsafe { memory::copy_to(address.0, bytes) };
        Ok(())
    }

    /// Writes `byte` to `length` bytes at `address`. It waits for no work: see *Who orders what*.
    ///
    /// # Errors
    ///
    /// If not all of the range lies in one live segment or in mapped pages.
    pub fn fill(&mut self, address: Address, byte: u8, length: u64) -> Result<(), DeviceError> {
        self.accessible("fill", address, length)?;
        // SAFETY: as in `write`.
        unsafe { memory::fill(address.0, byte, length) };
        Ok(())
    }

    /// Where work finds the `length` bytes at `address`. What it must promise to use the pointer is
    /// under *Who orders what*.
    ///
    /// # Errors
    ///
    /// If not all of the range lies in one live segment or in mapped pages.
    pub fn pointer(&self, address: Address, length: u64) -> Result<*mut u8, DeviceError> {
        self.mapped("pointer", address, length)?;
        Ok(ptr::with_exposed_provenance_mut(address.0 as usize))
    }

    /// Refuses ranges without memory; waits for poisoning of the range that is under way.
    fn accessible(
        &self,
        call: &'static str,
        address: Address,
        length: u64,
    ) -> Result<(), DeviceError> {
        self.mapped(call, address, length)?;
        self.poison.settle(call, &self.streams, address, length)
    }

    fn mapped(&self, call: &'static str, address: Address, length: u64) -> Result<(), DeviceError> {
        let below = self.segments.range(..=address).next_back();
        let in_segment = below.is_some_and(|(base, segment)| {
            let end = (address.0 - base.0).checked_add(length);
            end.is_some_and(|end| end <= segment.size)
        });
        if length == 0 || in_segment || self.pages.covers(address, length) {
            return Ok(());
        }
        Err(DeviceError::misuse(call, format!("not all of {length} bytes at {address} is memory")))
    }

    /// What the capacity's account is when `size` more bytes are given out.
    fn used_with(&self, size: u64) -> Result<u64, DeviceError> {
        let used = self.used.checked_add(size).filter(|used| *used <= self.capacity);
        used.ok_or(DeviceError::OutOfMemory { requested: size })
    }

    fn poison_block(&mut self, block: &BlockEvent, byte: u8) {
        if self.poisons && self.mapped("observe", block.address, block.size).is_ok() {
            // SAFETY:
            // 1. Mapped: checked. `release` and dropping the device drain the streams first, and
            //    `unmap` settles.
            // 2. Work is ordered by the block's stream: that is what the allocator's events mean,
            //    and its author's promise 2. `read`, `write` and `fill` settle first.
            unsafe { self.poison.fill(&self.streams, block, byte) };
        }
    }
}

impl Device for Host {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn total(&self) -> u64 {
        self.capacity
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        Ok(MemoryInfo { free: self.capacity - self.used, total: self.capacity })
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        if size == 0 {
            return Err(DeviceError::misuse("acquire", "a segment has at least one byte"));
        }
        let used = self.used_with(size)?;
        let live = self.segments.iter().map(|(&address, segment)| (address, segment.size));
        let span = self
            .addresses
            .segment(size, live)
            .map_err(|error| memory::memory_or_driver("mmap", size, &error))?;
        let address = Address(span.start());
        self.segments.insert(address, Segment { span, size });
        self.used = used;
        Ok(address)
    }

    /// Waits for everything queued on any stream, as the driver's call does: which work uses the
    /// segment is not known here. Work itself can therefore not call it.
    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        if !self.segments.contains_key(&address) {
            return Err(pages::none_begins("release", "segment", address));
        }
        self.streams.drain("release")?;
        let Segment { span, size } = self.segments.remove(&address).expect("looked up above");
        if let Err((span, error)) = span.release() {
            self.segments.insert(address, Segment { span, size });
            return Err(memory::driver("munmap", &error));
        }
        self.used -= size;
        Ok(())
    }

    fn granularity(&self) -> u64 {
        pages::GRANULARITY
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.pages.reserve(size, &mut self.addresses)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.pages.unreserve(address)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        pages::whole_granules("create_page", size)?;
        let used = self.used_with(size)?;
        let page = self.pages.create(size)?;
        self.used = used;
        Ok(page)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.used -= self.pages.destroy(page)?;
        Ok(())
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.pages.map(page, address)
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        // Fills of any block that lies here, wherever it ends.
        self.poison.settle("unmap", &self.streams, Address(0), u64::MAX)?;
        self.pages.unmap(address)
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        self.streams.record(stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.streams.query(event)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.streams.wait(event)
    }

    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.streams.wait_on(stream, event)
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.streams.destroy_event(event)
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.streams.synchronize(stream)
    }

    fn known_streams(&self) -> Vec<StreamId> {
        self.streams.known()
    }

    fn observe(&mut self, event: &Event) {
        match event {
            Event::Alloc(block) => self.poison_block(block, FRESH),
            Event::FreeCompleted(block) => self.poison_block(block, FREED),
            _ => {}
        }
    }
}

impl Drop for Host {
    /// Waits for everything that is queued, then gives all memory back. Work that drops the device
    /// cannot wait for itself: a thread is left behind to do both.
    fn drop(&mut self) {
        let memory = (mem::take(&mut self.segments), mem::take(&mut self.pages));
        if self.streams.drain("drop").is_ok() {
            return;
        }
        let streams = self.streams.clone();
        let memory = ManuallyDrop::new(memory);
        // If there is no thread to be had, the memory leaks: queued work may still use it.
        let _ = thread::Builder::new().spawn(move || {
            if streams.drain("drop").is_ok() {
                drop(ManuallyDrop::into_inner(memory));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::device_conformance!(host, Host::new(1 << 30));
    crate::device_conformance!(poisoning, Host::new(1 << 30).poison(true));
    crate::device_conformance!(unfailing, crate::FailNth::new(Host::new(1 << 30), u64::MAX));

    const _: () = {
        const fn anywhere<T: Send + Sync>() {}
        anywhere::<Host>();
        anywhere::<Streams>();
    };
}
