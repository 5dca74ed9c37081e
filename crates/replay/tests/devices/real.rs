//! What a device with memory offers beyond the trait, in the same words for all.

use tonnage_device::cuda::{Cuda, Live};
use tonnage_device::host::Host;
use tonnage_device::{Device, DeviceError, Dry};
use tonnage_events::{Address, StreamId};

/// Bytes that tell one block from all others.
pub(crate) type Mark = [u8; 16];

/// A device whose memory can be looked at.
pub(crate) trait Real: Device {
    fn make_stream(&mut self) -> Result<StreamId, DeviceError>;

    fn end_stream(&mut self, stream: StreamId) -> Result<(), DeviceError>;

    fn put(&mut self, address: Address, mark: Mark) -> Result<(), DeviceError>;

    /// Whether the bytes at `address` are still those of `mark`.
    fn has(&mut self, address: Address, mark: Mark) -> Result<bool, DeviceError>;

    /// Queues the filling of memory with a byte on a stream.
    fn queue_fill(
        &mut self,
        at: Address,
        size: u64,
        byte: u8,
        on: StreamId,
    ) -> Result<(), DeviceError>;

    /// Whether everything was given back.
    fn holds_nothing(&self) -> bool;
}

/// Has no memory, so nothing there contradicts.
impl Real for Dry {
    fn make_stream(&mut self) -> Result<StreamId, DeviceError> {
        Ok(StreamId(1))
    }

    fn end_stream(&mut self, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn put(&mut self, _address: Address, _mark: Mark) -> Result<(), DeviceError> {
        Ok(())
    }

    fn has(&mut self, _address: Address, _mark: Mark) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn queue_fill(
        &mut self,
        _at: Address,
        _size: u64,
        _byte: u8,
        _on: StreamId,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn holds_nothing(&self) -> bool {
        (self.used(), self.handles()) == (0, 0)
    }
}

impl Real for Host {
    fn make_stream(&mut self) -> Result<StreamId, DeviceError> {
        Ok(self.streams().create())
    }

    fn end_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.streams().destroy(stream)
    }

    fn put(&mut self, address: Address, mark: Mark) -> Result<(), DeviceError> {
        self.write(address, &mark)
    }

    fn has(&mut self, address: Address, mark: Mark) -> Result<bool, DeviceError> {
        let mut bytes = Mark::default();
        self.read(address, &mut bytes)?;
        Ok(bytes == mark)
    }

    fn queue_fill(
        &mut self,
        at: Address,
        size: u64,
        byte: u8,
        on: StreamId,
    ) -> Result<(), DeviceError> {
        let memory = self.pointer(at, size)?.expose_provenance();
        self.streams().launch(on, move || {
            // SAFETY: the memory was mapped when this was queued, and goes back to the system only after
            // what is queued is done. That nobody else uses it meanwhile is what the test shows.
            unsafe {
                std::ptr::with_exposed_provenance_mut::<u8>(memory).write_bytes(byte, size as usize)
            };
        })
    }

    fn holds_nothing(&self) -> bool {
        (self.used(), self.handles()) == (0, 0)
    }
}

impl Real for Cuda {
    fn make_stream(&mut self) -> Result<StreamId, DeviceError> {
        self.create_stream()
    }

    fn end_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.destroy_stream(stream)
    }

    fn put(&mut self, address: Address, mark: Mark) -> Result<(), DeviceError> {
        self.write(address, &mark)
    }

    fn has(&mut self, address: Address, mark: Mark) -> Result<bool, DeviceError> {
        let mut bytes = Mark::default();
        self.read(address, &mut bytes)?;
        Ok(bytes == mark)
    }

    fn queue_fill(
        &mut self,
        at: Address,
        size: u64,
        byte: u8,
        on: StreamId,
    ) -> Result<(), DeviceError> {
        self.fill(at, byte, size, on)
    }

    fn holds_nothing(&self) -> bool {
        self.live() == Live::default()
    }
}
