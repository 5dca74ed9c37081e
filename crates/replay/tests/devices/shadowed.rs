//! A dry device that decides, and a real one that does the same.

use std::collections::BTreeMap;
use std::fmt::Debug;

use tonnage_device::{Device, DeviceError, Dry, EventId, MemoryInfo, PageId};
use tonnage_events::{Address, DeviceId, StreamId};

use crate::real::{Mark, Real};

/// A device whose decisions are those of a dry one.
pub(crate) trait Ruled: Device {
    fn rules(&mut self) -> &mut Dry;
}

impl Ruled for Dry {
    fn rules(&mut self) -> &mut Dry {
        self
    }
}

/// Does every call twice: `dry` decides addresses, refusals and which events are complete, and
/// `real` must be able to do what was decided. The caller sees the dry one's names only.
#[derive(Debug)]
pub(crate) struct Shadowed<R> {
    dry: Dry,
    real: R,
    /// `real` has no more memory than `dry`, and so refuses the same requests.
    limited: bool,
    /// Segments and ranges: the dry address, the size, and the real address.
    places: BTreeMap<Address, (u64, Address)>,
    pages: BTreeMap<PageId, PageId>,
    events: BTreeMap<EventId, EventId>,
    streams: BTreeMap<StreamId, StreamId>,
}

impl<R: Real> Shadowed<R> {
    /// Follows a dry device of these bytes; `streams` are the ones that may be named.
    pub(crate) fn new(total: u64, capacity: u64, mut real: R, streams: &[StreamId]) -> Self {
        let made = streams.iter().map(|stream| (*stream, real.make_stream().unwrap()));
        Self {
            dry: Dry::new(total).with_capacity(capacity),
            streams: made.chain([(StreamId::DEFAULT, StreamId::DEFAULT)]).collect(),
            limited: real.total() <= capacity,
            real,
            places: BTreeMap::new(),
            pages: BTreeMap::new(),
            events: BTreeMap::new(),
        }
    }

    pub(crate) fn put(&mut self, address: Address, mark: Mark) {
        self.real.put(self.place(address), mark).unwrap();
    }

    pub(crate) fn has(&mut self, address: Address, mark: Mark) -> bool {
        self.real.has(self.place(address), mark).unwrap()
    }

    /// Whether neither device holds anything, once the streams are ended.
    pub(crate) fn ends_with_nothing(&mut self) -> bool {
        for (_, stream) in std::mem::take(&mut self.streams) {
            if stream != StreamId::DEFAULT {
                self.real.end_stream(stream).unwrap();
            }
        }
        self.real.holds_nothing() && (self.dry.used(), self.dry.handles()) == (0, 0)
    }

    /// The real address of a byte in a segment or range.
    fn place(&self, address: Address) -> Address {
        let below = self.places.range(..=address).next_back();
        let (base, (size, real)) = below.expect("the address lies in a segment or range");
        assert!(address.distance_from(*base) < *size, "{address} lies behind {base}");
        real.offset(address.distance_from(*base))
    }

    /// What the real device gives for what the dry one gave, or refuses as the dry one did.
    fn follow<T, U: Debug>(
        &mut self,
        decided: Result<T, DeviceError>,
        ask: impl FnOnce(&mut R) -> Result<U, DeviceError>,
    ) -> Result<(T, U), DeviceError> {
        match decided {
            Ok(dry) => Ok((dry, ask(&mut self.real).expect("the dry device could"))),
            Err(refusal) => {
                if self.limited {
                    assert_eq!(ask(&mut self.real).expect_err("the dry device could not"), refusal);
                }
                Err(refusal)
            }
        }
    }
}

impl<R: Real> Ruled for Shadowed<R> {
    fn rules(&mut self) -> &mut Dry {
        &mut self.dry
    }
}

/// The engine makes no mistakes, so what is not about capacity does not fail on either device.
impl<R: Real> Device for Shadowed<R> {
    fn id(&self) -> DeviceId {
        self.dry.id()
    }

    fn total(&self) -> u64 {
        self.dry.total()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        let real = self.real.memory_info().unwrap();
        let info = self.dry.memory_info().unwrap();
        assert!(!self.limited || real.free == info.free, "{real:?} {info:?}");
        Ok(info)
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        let decided = self.dry.acquire(size);
        let (address, real) = self.follow(decided, |real| real.acquire(size))?;
        self.places.insert(address, (size, real));
        Ok(address)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.dry.release(address).unwrap();
        let (_, real) = self.places.remove(&address).unwrap();
        self.real.release(real)
    }

    fn granularity(&self) -> u64 {
        assert_eq!(self.real.granularity(), self.dry.granularity());
        self.dry.granularity()
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        let address = self.dry.reserve(size).unwrap();
        let real = self.real.reserve(size)?;
        self.places.insert(address, (size, real));
        Ok(address)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.dry.unreserve(address).unwrap();
        let (_, real) = self.places.remove(&address).unwrap();
        self.real.unreserve(real)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        let decided = self.dry.create_page(size);
        let (page, real) = self.follow(decided, |real| real.create_page(size))?;
        self.pages.insert(page, real);
        Ok(page)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.dry.destroy_page(page).unwrap();
        self.real.destroy_page(self.pages.remove(&page).unwrap())
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.dry.map(page, address).unwrap();
        self.real.map(self.pages[&page], self.place(address))
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        self.dry.unmap(address).unwrap();
        self.real.unmap(self.place(address))
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        let event = self.dry.record_event(stream).unwrap();
        let real = self.real.record_event(self.streams[&stream])?;
        self.events.insert(event, real);
        Ok(event)
    }

    /// An event that the dry device calls complete is waited for.
    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let real = self.events[&event];
        let complete = self.dry.query_event(event).unwrap();
        if complete {
            self.real.wait_event(real)?;
            assert_eq!(self.real.query_event(real), Ok(true));
        }
        Ok(complete)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.dry.wait_event(event).unwrap();
        self.real.wait_event(self.events[&event])
    }

    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.dry.wait_on(stream, event).unwrap();
        self.real.wait_on(self.streams[&stream], self.events[&event])
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.dry.destroy_event(event).unwrap();
        self.real.destroy_event(self.events.remove(&event).unwrap())
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.dry.synchronize(stream).unwrap();
        self.real.synchronize(self.streams[&stream])
    }
}
