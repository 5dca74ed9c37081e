//! Stage 6: where memory comes from.
//!
//! The engine never touches memory: it asks a [`Device`] for segments, reserved ranges, pages and
//! events, and keeps the books. Three devices make the same promises, and one suite
//! ([`device_conformance!`]) holds each of them to these:
//!
//! | device | memory | for |
//! | --- | --- | --- |
//! | [`Dry`] | none: addresses only | prediction, replay, tests |
//! | [`Host`](host::Host) | this machine's, real pages | the default, CI, laptops |
//! | [`Cuda`](cuda::Cuda) | a GPU's, through its driver | the real thing |
//!
//! Something that watches or disturbs a device is a wrapper with the
//! same interface, such as [`FailNth`].

// Foreign calls live in `host` and `cuda`, which say so.
#![deny(unsafe_code)]

mod conformance;

mod dry;

#[allow(unsafe_code, reason = "memory is the operating system's")]
pub mod host;

#[allow(unsafe_code, reason = "the driver is a C library")]
pub mod cuda;

mod error;

mod fail_nth;

pub use dry::{Arenas, Downwards, Dry, FirstFit, PageCalls, PagePart, Placement};
pub use error::DeviceError;
pub use fail_nth::FailNth;
use tonnage_events::{Address, DeviceId, Event, StreamId};

/// Memory of a device, by its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that can still be obtained.
    pub free: u64,
    /// Bytes the device has.
    pub total: u64,
}

/// Names a piece of physical memory of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u64);

/// Names a recorded event of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// Where segments, pages and events come from.
///
/// Promises of every implementation:
///
/// 1. No caching: what is released is gone.
/// 2. A call that fails changes nothing, and the device goes on working.
/// 3. [`DeviceError::OutOfMemory`] means that freeing memory may help; nothing else does.
/// 4. Segments and pages count against the capacity; reserved ranges do not.
/// 5. The page is the unit of mapping: whole pages only, at multiples of the granularity.
pub trait Device {
    /// Which device this is.
    fn id(&self) -> DeviceId;

    /// Bytes the device has. Fixed for its lifetime.
    fn total(&self) -> u64;

    /// Free and total bytes now.
    ///
    /// # Errors
    ///
    /// If the driver cannot tell.
    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError>;

    /// Obtains `size` contiguous bytes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if they are not to be had.
    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError>;

    /// Returns the segment that [`acquire`](Device::acquire) gave at `address`. Waits for work that
    /// uses it.
    ///
    /// # Errors
    ///
    /// If no segment begins there.
    fn release(&mut self, address: Address) -> Result<(), DeviceError>;

    /// The unit of mapping: page sizes and mapping addresses are multiples of it.
    fn granularity(&self) -> u64;

    /// Reserves `size` bytes of addresses with no memory behind them.
    ///
    /// # Errors
    ///
    /// If the address space has no such range.
    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError>;

    /// Gives back a range that [`reserve`](Device::reserve) gave at `address`.
    ///
    /// # Errors
    ///
    /// If no range begins there, or if a page is still mapped into it.
    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError>;

    /// Obtains a page of physical memory, mapped nowhere yet.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if it is not to be had.
    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError>;

    /// Returns a page that is mapped nowhere.
    ///
    /// # Errors
    ///
    /// If there is no such page, or if it is still mapped.
    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError>;

    /// Puts a page at `address`, inside a reserved range, readable and writable. A page may be
    /// mapped at several addresses.
    ///
    /// # Errors
    ///
    /// If the page or the range does not exist, the address is not aligned, or another page lies
    /// there.
    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError>;

    /// Takes away the page at `address`; the page itself stays.
    ///
    /// # Errors
    ///
    /// If no mapping begins there.
    fn unmap(&mut self, address: Address) -> Result<(), DeviceError>;

    /// Marks the end of what is queued on `stream` now.
    ///
    /// # Errors
    ///
    /// If the driver refuses.
    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError>;

    /// Whether everything before the mark is done.
    ///
    /// # Errors
    ///
    /// If there is no such event, or if work before it failed.
    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError>;

    /// Waits until everything before the mark is done.
    ///
    /// # Errors
    ///
    /// If there is no such event, or if work before it failed.
    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError>;

    /// Makes `stream` wait, before what is queued on it from now on, until everything before the mark is done. The
    /// caller goes on, and may forget the mark at once.
    ///
    /// # Errors
    ///
    /// If there is no such event, or if the driver refuses.
    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        // What is queued after the caller has waited comes after the mark too.
        let _ = stream;
        self.wait_event(event)
    }

    /// Forgets a mark.
    ///
    /// # Errors
    ///
    /// If there is no such event.
    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError>;

    /// Waits until everything queued on `stream` is done.
    ///
    /// # Errors
    ///
    /// If work on it failed.
    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError>;

    /// The streams on which work may be queued that this device knows, besides those that its allocator is asked for
    /// memory on: a captured graph runs on any of them. Unknown ones are their owner's to wait for.
    fn known_streams(&self) -> Vec<StreamId> {
        Vec::new()
    }

    /// Is told of every state change of the allocator that lives on this device, in order, for
    /// devices that act on it: poisoning freed memory, following a recording.
    fn observe(&mut self, _event: &Event) {}
}
