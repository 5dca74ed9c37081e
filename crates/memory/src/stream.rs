//! A stream of work on a device.

use tonnage_device::{Device as _, DeviceError};
use tonnage_events::StreamId;

use crate::any_device::AnyDevice;
use crate::device::Device;
use crate::sync::lock;

/// Work on a device that runs in order. Destroyed when dropped, after what is queued.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    id: StreamId,
}

/// The number of the first stream that `dry` names; later ones count up.
#[cfg(not(feature = "shuttle"))]
static NEXT_DRY_STREAM: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

#[cfg(not(feature = "shuttle"))]
fn next_number() -> u64 {
    NEXT_DRY_STREAM.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(feature = "shuttle")]
fn next_number() -> u64 {
    1
}

impl Stream {
    pub(crate) fn create(device: &Device) -> Result<Self, DeviceError> {
        let id = lock(&device.shared.engine).device_mut().create_stream(next_number())?;
        Ok(Self { device: device.clone(), id })
    }

    /// Its handle.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The device it runs on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Queues work. On `host` it runs on the stream's own thread, after what is queued before; on `dry`
    /// it does not run at all.
    ///
    /// The work must not allocate or free on this device: whoever waits for the stream may hold the
    /// allocator meanwhile.
    ///
    /// # Errors
    ///
    /// On `cuda`, whose work is kernels and copies; or if the stream is gone.
    pub fn launch(&self, work: impl FnOnce() + Send + 'static) -> Result<(), DeviceError> {
        let streams = match lock(&self.device.shared.engine).device() {
            AnyDevice::Dry(_) => return Ok(()),
            AnyDevice::Host(host) => host.streams(),
            AnyDevice::Cuda(_) | AnyDevice::Other(_) => {
                let reason = "closures run on the host device; a GPU runs kernels".to_owned();
                return Err(DeviceError::Misuse { call: "launch", reason });
            }
        };
        streams.launch(self.id, work)
    }

    /// Lets what is queued here from now on wait for what is queued on `other` by now.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn wait_for(&self, other: StreamId) -> Result<(), DeviceError> {
        let mut engine = lock(&self.device.shared.engine);
        let device = engine.device_mut();
        let event = device.record_event(other)?;
        let waits = device.wait_on(self.id, event);
        let forgotten = device.destroy_event(event);
        waits.and(forgotten)
    }

    /// Waits for everything queued.
    ///
    /// # Errors
    ///
    /// If some of it failed.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let streams = match lock(&self.device.shared.engine).device() {
            // Waits without the allocator, so that others can go on.
            AnyDevice::Host(host) => Some(host.streams()),
            _ => None,
        };
        match streams {
            Some(streams) => streams.synchronize(self.id),
            None => self.device.synchronize(self.id),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Nobody is left to tell; a stream that cannot be destroyed is gone already.
        let _ = lock(&self.device.shared.engine).device_mut().destroy_stream(self.id);
    }
}
