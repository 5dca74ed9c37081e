//! Level 3: a CUDA device as a [`Device`].

use std::sync::Arc;

use tonnage_events::{Address, DeviceId, StreamId};

use super::books::{Books, Source};
use super::context::Context;
use super::pinned::Pinned;
use super::queues::Queues;
use super::sys::{CUdevice, CUresult};
use super::{Driver, Properties};
use crate::{Device, DeviceError, EventId, MemoryInfo, PageId};

/// Stands for the granularity of a device that cannot map pages, and so has none.
const NO_GRANULARITY: u64 = 2 << 20;

/// A CUDA device.
///
/// It keeps books of what it has given: misuse is refused before the driver is asked, and what was
/// not given back goes back when the device is dropped. A call that fails leaves the books as they
/// were.
#[derive(Debug)]
pub struct Cuda {
    properties: Properties,
    pub(super) books: Books,
    /// The devices that may read and write what is mapped here: this one, and those it shares its pages with.
    readers: Vec<CUdevice>,
    pub(super) queues: Arc<Queues>,
    pub(super) pinned: Pinned,
    /// The last field: the context goes after everything that was made in it.
    pub(super) context: Arc<Context>,
}

/// How many things a device has given and not got back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Live {
    /// Segments.
    pub segments: usize,
    /// Reserved ranges.
    pub ranges: usize,
    /// Pages.
    pub pages: usize,
    /// Pages at addresses: a page that is mapped twice counts twice.
    pub mappings: usize,
    /// Recorded events.
    pub events: usize,
    /// Streams made here.
    pub streams: usize,
    /// Pieces of pinned host memory.
    pub pinned: usize,
}

impl Cuda {
    /// Opens device `ordinal` of NVIDIA's driver.
    ///
    /// ```no_run
    /// use tonnage_device::{Device, cuda::Cuda};
    ///
    /// let mut device = Cuda::open(0)?;
    /// let segment = device.acquire(20 << 20)?;
    /// device.write(segment, b"on the device")?;
    /// device.release(segment)?;
    /// # Ok::<(), tonnage_device::DeviceError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no driver, or no such device.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        Self::open_with(Driver::load()?, ordinal)
    }

    /// Opens device `ordinal` of a driver.
    ///
    /// # Errors
    ///
    /// If there is no such device, or if its context cannot be had.
    pub fn open_with(driver: Driver, ordinal: u32) -> Result<Self, DeviceError> {
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(DeviceError::misuse(
                "open",
                format!("there is no cuda:{ordinal}: the driver has {}", numbered(count)),
            ));
        }
        let device = driver.device_get(ordinal)?;
        let properties = driver.properties(ordinal, device)?;
        let context = Arc::new(Context::retain(driver, device)?);
        let granularity = if properties.virtual_memory {
            context.enter()?.allocation_granularity()?
        } else {
            NO_GRANULARITY
        };
        Ok(Self {
            properties,
            books: Books::new(granularity),
            readers: vec![device],
            queues: Arc::new(Queues::new(&context)),
            pinned: Pinned::new(&context),
            context,
        })
    }

    /// What the driver tells of the device.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// How many things were given and not got back.
    #[must_use]
    pub fn live(&self) -> Live {
        let [segments, ranges, pages, mappings] = self.books.counts();
        Live {
            segments,
            ranges,
            pages,
            mappings,
            events: self.queues.events().live(),
            streams: self.queues.streams().live(),
            pinned: self.pinned.live(),
        }
    }

    /// Lets another device read and write the pages of this one, those that are mapped and those that will be. Segments are
    /// within reach of the contexts that were told so (`cuCtxEnablePeerAccess`), which is for whoever works in these.
    ///
    /// # Errors
    ///
    /// If there is no such device, or if it cannot reach this one's memory: then pages that are mapped later are not shared.
    pub fn share_pages_with(&mut self, other: u32) -> Result<(), DeviceError> {
        let current = self.context.enter()?;
        let other = current.device_get(other)?;
        if self.readers.contains(&other) {
            return Ok(());
        }
        for mapping in self.books.mappings() {
            current.memory_set_access(mapping.address.0, mapping.size, &[other])?;
        }
        self.readers.push(other);
        Ok(())
    }

    /// Obtains `size` bytes from the driver's own pool (`cuMemAllocAsync`), to be used after what
    /// is queued on `stream` now.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`] if they are not to be had.
    pub fn acquire_from_pool(
        &mut self,
        size: u64,
        stream: StreamId,
    ) -> Result<Address, DeviceError> {
        let stream = self.queues.streams().get("acquire_from_pool", stream)?;
        self.check_segment("acquire_from_pool", size)?;
        let current = self.context.enter()?;
        // SAFETY: the stream is alive by the books; the context is current by type.
        let address = Address(unsafe { current.memory_alloc_async(size, stream) }?);
        self.books.add_segment(address, size, Source::Pool);
        Ok(address)
    }

    /// Gives a segment back to the driver's own pool (`cuMemFreeAsync`) once what is queued on
    /// `stream` is done. Every use of it must be ordered before that.
    ///
    /// # Errors
    ///
    /// If no segment from the driver's pool begins there.
    pub fn release_to_pool(
        &mut self,
        address: Address,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        const CALL: &str = "release_to_pool";
        let stream = self.queues.streams().get(CALL, stream)?;
        if self.books.segment(CALL, address)? != Source::Pool {
            return Err(DeviceError::misuse(CALL, "the segment is not from the driver's pool"));
        }
        let current = self.context.enter()?;
        // SAFETY:
        // - Stream: alive by the books; the context is current by type.
        // - Memory: ours by the books, which forget it next. A use that `stream` does not order
        //   before would fault on the device, not in the host.
        unsafe { current.memory_free_async(address.0, stream) }?;
        self.books.remove_segment(address);
        Ok(())
    }

    fn check_segment(&self, call: &'static str, size: u64) -> Result<(), DeviceError> {
        if size == 0 {
            return Err(DeviceError::misuse(call, "a segment has at least one byte"));
        }
        self.check_size(size)
    }

    /// More than the device has is out of memory, in whatever words the driver would say it.
    fn check_size(&self, size: u64) -> Result<(), DeviceError> {
        if size > self.properties.total {
            return Err(DeviceError::OutOfMemory { requested: size });
        }
        Ok(())
    }

    fn check_virtual_memory(&self, call: &'static str) -> Result<(), DeviceError> {
        if self.properties.virtual_memory {
            return Ok(());
        }
        Err(DeviceError::Driver {
            call,
            code: CUresult::NOT_SUPPORTED.0,
            message: format!("{} cannot map pages", self.properties.name),
        })
    }

    /// Tries again to take back the mappings that a failed `map` left behind.
    fn remove_strays(&mut self) -> Result<(), DeviceError> {
        while let Some(stray) = self.books.stray() {
            let current = self.context.enter()?;
            // SAFETY: the mapping is whole and ours by the books. No work uses it: its addresses
            // were never given out.
            unsafe { current.memory_unmap(stray.address.0, stray.size) }?;
            self.books.remove_stray();
        }
        Ok(())
    }
}

/// "no devices", "one device, cuda:0", "2 devices, cuda:0 to cuda:1".
fn numbered(count: u32) -> String {
    match count {
        0 => "no devices".into(),
        1 => "one device, cuda:0".into(),
        _ => format!("{count} devices, cuda:0 to cuda:{}", count - 1),
    }
}

impl Device for Cuda {
    fn id(&self) -> DeviceId {
        self.properties.id
    }

    fn total(&self) -> u64 {
        self.properties.total
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.context.enter()?.memory_info()
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.check_segment("acquire", size)?;
        let address = Address(self.context.enter()?.memory_alloc(size)?);
        self.books.add_segment(address, size, Source::Driver);
        Ok(address)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        // Whatever its source: `cuMemFree` takes memory of the driver's pool too.
        self.books.segment("release", address)?;
        let current = self.context.enter()?;
        // SAFETY: the segment is ours by the books, which forget it next. The driver waits for
        // work queued before; the context is current by type.
        unsafe { current.memory_free(address.0) }?;
        self.books.remove_segment(address);
        Ok(())
    }

    fn granularity(&self) -> u64 {
        self.books.granularity()
    }

    /// As the trait says; `size` is rounded up to whole granules.
    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.check_virtual_memory("reserve")?;
        let size = self.books.range_size(size)?;
        let address = Address(self.context.enter()?.address_reserve(size, 0)?);
        self.books.add_range(address, size);
        Ok(address)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.remove_strays()?;
        let size = self.books.empty_range(address)?;
        let current = self.context.enter()?;
        // SAFETY: the range is ours, whole and empty by the books, which forget it next; the
        // context is current by type.
        unsafe { current.address_free(address.0, size) }?;
        self.books.remove_range(address);
        Ok(())
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.check_virtual_memory("create_page")?;
        self.check_size(size)?;
        self.books.whole_granules(size)?;
        let handle = self.context.enter()?.memory_create(size)?;
        Ok(self.books.add_page(handle, size))
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.remove_strays()?;
        let handle = self.books.unmapped_page(page)?;
        let current = self.context.enter()?;
        // SAFETY: the page is ours and mapped nowhere by the books, which forget it next; the
        // context is current by type.
        unsafe { current.memory_release(handle) }?;
        self.books.remove_page(page);
        Ok(())
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.remove_strays()?;
        let mapping = self.books.possible_mapping(page, address)?;
        let current = self.context.enter()?;
        // SAFETY:
        // 1. The page is ours and of this size, by the books.
        // 2. The addresses are ours and nothing is mapped there, by the books.
        unsafe { current.memory_map(address.0, mapping.size, mapping.handle) }?;
        if let Err(error) = current.memory_set_access(address.0, mapping.size, &self.readers) {
            // SAFETY: the mapping is the one just made. No work uses it: its addresses cannot
            // be used without access, and were not given out.
            if unsafe { current.memory_unmap(address.0, mapping.size) }.is_err() {
                self.books.add_stray(mapping);
            }
            return Err(error);
        }
        self.books.add_mapping(mapping);
        Ok(())
    }

    /// As the trait says. The driver does not wait: work that uses the addresses must be done, or
    /// it faults, and the context is lost.
    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        let mapping = self.books.mapping(address)?;
        let current = self.context.enter()?;
        // SAFETY:
        // 1. The mapping is whole and ours by the books, which forget it next; the context is
        //    current by type.
        // 2. That work is done is for the allocator's events to see to. Work that is not done
        //    faults on the device, not in the host: no memory of Rust's is behind the addresses.
        unsafe { current.memory_unmap(address.0, mapping.size) }?;
        self.books.remove_mapping(&mapping);
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        // The book is held: no capture begins on the stream meanwhile.
        let streams = self.queues.streams();
        let stream = streams.get_or_idle("record_event", stream)?;
        let current = self.context.enter()?;
        // SAFETY: the stream is alive by the books: to end one takes the device, which is borrowed.
        unsafe { self.queues.record(&current, stream) }
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.queues.query(event)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.queues.wait(event)
    }

    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        Self::wait_on(self, stream, event)
    }

    /// As the trait says; the driver's event is kept for the next one.
    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.queues.forget(event)
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        let stream = self.queues.streams().get_or_idle("synchronize", stream)?;
        let current = self.context.enter()?;
        // SAFETY: the stream is alive by the books; the context is current by type.
        unsafe { current.stream_synchronize(stream) }
    }

    fn known_streams(&self) -> Vec<StreamId> {
        Self::known_streams(self)
    }
}
