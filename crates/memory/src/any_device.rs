//! One type for every device, so that what stands above need not be generic.

use std::fmt;

use tonnage_device::cuda::{Cuda, HeldMemory, Pinned};
use tonnage_device::host::{Host, Streams};
use tonnage_device::{Device, DeviceError, Dry, EventId, MemoryInfo, PageId};
use tonnage_events::{Address, DeviceId, Event, StreamId};

/// A device of any kind.
#[non_exhaustive]
pub enum AnyDevice {
    /// No memory at all.
    Dry(Box<Dry>),
    /// This machine's memory.
    Host(Box<Host>),
    /// A GPU's.
    Cuda(Box<Cuda>),
    /// One that was made elsewhere. Streams are names to it, and whoever made it reaches its memory.
    Other(Box<dyn Device + Send>),
}

impl fmt::Debug for AnyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dry(dry) => dry.fmt(f),
            Self::Host(host) => host.fmt(f),
            Self::Cuda(cuda) => cuda.fmt(f),
            Self::Other(_) => f.debug_struct("Other").finish_non_exhaustive(),
        }
    }
}

/// Passes a call on to whichever device it is.
macro_rules! each {
    ($device:expr, $inner:ident => $call:expr) => {
        match $device {
            AnyDevice::Dry($inner) => $call,
            AnyDevice::Host($inner) => $call,
            AnyDevice::Cuda($inner) => $call,
            AnyDevice::Other($inner) => $call,
        }
    };
}

impl AnyDevice {
    /// The kind's name: `dry`, `host`, `cuda` or `other`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Dry(_) => "dry",
            Self::Host(_) => "host",
            Self::Cuda(_) => "cuda",
            Self::Other(_) => "other",
        }
    }

    /// The streams of a `host`, which can be used without it.
    pub(crate) fn streams(&self) -> Option<Streams> {
        match self {
            Self::Host(host) => Some(host.streams()),
            Self::Dry(_) | Self::Cuda(_) | Self::Other(_) => None,
        }
    }

    /// The pinned memory of a driver, which can be used without the device.
    pub(crate) fn driver_pinned(&self) -> Option<Pinned> {
        match self {
            Self::Cuda(cuda) => Some(cuda.pinned()),
            Self::Dry(_) | Self::Host(_) | Self::Other(_) => None,
        }
    }

    /// A new stream. Not for a `host`: its [streams](Self::streams) are used without it, here and below.
    pub(crate) fn create_stream(&mut self, number: u64) -> Result<StreamId, DeviceError> {
        match self {
            Self::Cuda(cuda) => cuda.create_stream(),
            // Streams are names.
            Self::Dry(_) | Self::Host(_) | Self::Other(_) => Ok(StreamId(number)),
        }
    }

    pub(crate) fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        match self {
            Self::Cuda(cuda) => cuda.destroy_stream(stream),
            Self::Dry(_) | Self::Host(_) | Self::Other(_) => Ok(()),
        }
    }

    /// Lets `stream` wait for what `event` marks.
    pub(crate) fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        match self {
            Self::Cuda(cuda) => cuda.wait_on(stream, event),
            // More than is asked for: the caller waits as well.
            Self::Dry(_) | Self::Host(_) | Self::Other(_) => self.wait_event(event),
        }
    }

    /// Where the `size` bytes at `address` can be copied without the device; `call` is what errors name.
    pub(crate) fn reach(
        &self,
        call: &'static str,
        address: Address,
        size: u64,
    ) -> Result<Reach, DeviceError> {
        match self {
            Self::Dry(_) => Ok(Reach::Nothing),
            Self::Host(host) => host.pointer(address, size).map(Reach::Host),
            Self::Cuda(cuda) => cuda.held_memory(call, address, size).map(Reach::Cuda),
            Self::Other(_) => Err(out_of_reach(call)),
        }
    }
}

/// Memory of a device, for copies without it.
pub(crate) enum Reach {
    /// There is none: nothing is copied, and zeros are read.
    Nothing,
    /// This machine's.
    Host(*mut u8),
    /// A GPU's.
    Cuda(HeldMemory),
}

fn out_of_reach(call: &'static str) -> DeviceError {
    let reason = "memory of a device that was made elsewhere is reached there".to_owned();
    DeviceError::Misuse { call, reason }
}

impl Device for AnyDevice {
    fn id(&self) -> DeviceId {
        each!(self, it => it.id())
    }

    fn total(&self) -> u64 {
        each!(self, it => it.total())
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        each!(self, it => it.memory_info())
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        each!(self, it => it.acquire(size))
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        each!(self, it => it.release(address))
    }

    fn granularity(&self) -> u64 {
        each!(self, it => it.granularity())
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        each!(self, it => it.reserve(size))
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        each!(self, it => it.unreserve(address))
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        each!(self, it => it.create_page(size))
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        each!(self, it => it.destroy_page(page))
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        each!(self, it => it.map(page, address))
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        each!(self, it => it.unmap(address))
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        each!(self, it => it.record_event(stream))
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        each!(self, it => it.query_event(event))
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        each!(self, it => it.wait_event(event))
    }

    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        each!(self, it => it.wait_on(stream, event))
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        each!(self, it => it.destroy_event(event))
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        each!(self, it => it.synchronize(stream))
    }

    fn known_streams(&self) -> Vec<StreamId> {
        each!(self, it => it.known_streams())
    }

    #[inline]
    fn observe(&mut self, event: &Event) {
        // Of ours only the host acts on what happens: it can poison.
        match self {
            Self::Host(host) => host.observe(event),
            Self::Other(other) => other.observe(event),
            Self::Dry(_) | Self::Cuda(_) => {}
        }
    }
}
