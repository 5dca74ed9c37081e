//! A device whose n-th call fails.
//!
//! Failure is swept, not sampled: a test runs its work once for every n and looks at what is left
//! each time.

use tonnage_events::{Address, DeviceId, Event, StreamId};

use crate::{Device, DeviceError, EventId, MemoryInfo, PageId};

/// Passes calls on to `inner`, except one, which fails without reaching it.
///
/// A memory call (acquire, create_page) fails for want of memory, every other call with a
/// driver error, as on a real device.
#[derive(Clone, Debug)]
pub struct FailNth<D> {
    /// The device behind.
    pub inner: D,
    calls_left: u64,
    failed: bool,
}

impl<D> FailNth<D> {
    /// The call after `calls_left` others fails.
    pub fn new(inner: D, calls_left: u64) -> Self {
        Self { inner, calls_left, failed: false }
    }

    /// Whether the failure has happened. If it has not by the end, every call was swept.
    pub fn failed(&self) -> bool {
        self.failed
    }

    fn strikes(&mut self) -> bool {
        if self.failed {
            return false;
        }
        self.failed = self.calls_left == 0;
        self.calls_left = self.calls_left.saturating_sub(1);
        self.failed
    }

    fn driver(&mut self, call: &'static str) -> Result<(), DeviceError> {
        if self.strikes() {
            return Err(DeviceError::Driver { call, code: 999, message: "made to fail".into() });
        }
        Ok(())
    }

    fn memory(&mut self, requested: u64) -> Result<(), DeviceError> {
        if self.strikes() {
            return Err(DeviceError::OutOfMemory { requested });
        }
        Ok(())
    }
}

impl<D: Device> Device for FailNth<D> {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn total(&self) -> u64 {
        self.inner.total()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.driver("memory_info")?;
        self.inner.memory_info()
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.memory(size)?;
        self.inner.acquire(size)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.driver("release")?;
        self.inner.release(address)
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.driver("reserve")?;
        self.inner.reserve(size)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.driver("unreserve")?;
        self.inner.unreserve(address)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.memory(size)?;
        self.inner.create_page(size)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.driver("destroy_page")?;
        self.inner.destroy_page(page)
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.driver("map")?;
        self.inner.map(page, address)
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        self.driver("unmap")?;
        self.inner.unmap(address)
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        self.driver("record_event")?;
        self.inner.record_event(stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.driver("query_event")?;
        self.inner.query_event(event)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.driver("wait_event")?;
        self.inner.wait_event(event)
    }

    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.driver("wait_on")?;
        self.inner.wait_on(stream, event)
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.driver("destroy_event")?;
        self.inner.destroy_event(event)
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.driver("synchronize")?;
        self.inner.synchronize(stream)
    }

    fn known_streams(&self) -> Vec<StreamId> {
        self.inner.known_streams()
    }

    fn observe(&mut self, event: &Event) {
        self.inner.observe(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dry;

    #[test]
    fn only_the_chosen_call_fails_and_it_does_not_reach_the_device() {
        let mut device = FailNth::new(Dry::new(1 << 30), 1);
        device.acquire(1 << 21).expect("the first call passes");
        assert!(!device.failed());
        assert_eq!(device.acquire(1 << 21), Err(DeviceError::OutOfMemory { requested: 1 << 21 }));
        assert!(device.failed());
        assert_eq!(device.inner.used(), 1 << 21);
        device.acquire(1 << 21).expect("only one call fails");
    }
}
