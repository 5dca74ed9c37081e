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

    fn holds_nothing(&self) -> bool {
        self.live() == Live::default()
    }
}
