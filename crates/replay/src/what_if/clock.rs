//! A dry device whose events complete where the recording found them complete.
//!
//! Its clock shows an entry of the recording, and an event is named by the entry where it completes:
//! nothing has to be looked up. Of events that the recorded allocator did not have, nothing is known: they are complete at once.

use tonnage_device::{Device, DeviceError, Dry, EventId, MemoryInfo, PageCalls, PageId, PagePart};
use tonnage_events::{Address, DeviceId, StreamId};

#[derive(Clone, Debug)]
pub(super) struct Clock {
    dry: Dry,
    /// The entry that the job has come to.
    pub(super) now: usize,
    /// Where the events recorded from now on complete, if the recording tells.
    pub(super) complete: Option<usize>,
}

impl Clock {
    pub(super) fn new(dry: Dry) -> Self {
        Self { dry, now: 0, complete: None }
    }

    /// The pages under these bytes.
    pub(super) fn pages_under(
        &self,
        address: Address,
        size: u64,
    ) -> impl Iterator<Item = PagePart> + '_ {
        self.dry.pages_under(address, size)
    }

    /// The calls about pages so far.
    pub(super) fn page_calls(&self) -> PageCalls {
        self.dry.page_calls()
    }
}

impl Device for Clock {
    fn id(&self) -> DeviceId {
        self.dry.id()
    }

    fn total(&self) -> u64 {
        self.dry.total()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.dry.memory_info()
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.dry.acquire(size)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.dry.release(address)
    }

    fn granularity(&self) -> u64 {
        self.dry.granularity()
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.dry.reserve(size)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.dry.unreserve(address)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.dry.create_page(size)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.dry.destroy_page(page)
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.dry.map(page, address)
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        self.dry.unmap(address)
    }

    fn record_event(&mut self, _stream: StreamId) -> Result<EventId, DeviceError> {
        Ok(EventId(self.complete.unwrap_or(0) as u64))
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        Ok(event.0 <= self.now as u64)
    }

    fn wait_event(&mut self, _event: EventId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn destroy_event(&mut self, _event: EventId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.dry.synchronize(stream)
    }
}
