//! The thread's current device, and its current stream of each device.

use std::cell::RefCell;
use std::collections::HashMap;

use tonnage_events::StreamId;

use crate::device::Device;
use crate::stream::Stream;
use crate::sync::Arc;

#[derive(Default)]
struct Current {
    device: Option<Device>,
    /// By the address of what a device's handles share; an entry lives while `with_stream` runs.
    streams: HashMap<usize, StreamId>,
}

thread_local! {
    static CURRENT: RefCell<Current> = RefCell::default();
}

/// Makes a device this thread's current one.
pub fn set_current_device(device: &Device) {
    let before = CURRENT.with_borrow_mut(|current| current.device.replace(device.clone()));
    // Not while it is borrowed: what goes with the last handle to a device may ask for the current one.
    drop(before);
}

/// This thread's current device, if one was set.
#[must_use]
pub fn current_device() -> Option<Device> {
    CURRENT.with_borrow(|current| current.device.clone())
}

/// This thread's current stream of a device: the default stream, unless within
/// [`with_stream`].
#[must_use]
pub fn current_stream(device: &Device) -> StreamId {
    current_stream_of(device)
}

/// Runs `work` with `stream` as the current one of its device, on this thread.
///
/// ```
/// # use tonnage_memory::{Device, with_stream};
/// let device = Device::dry("1 GiB")?;
/// let side = device.create_stream()?;
/// let block = with_stream(&side, || device.allocate(512))?;
/// assert_eq!(block.stream(), side.id());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn with_stream<T>(stream: &Stream, work: impl FnOnce() -> T) -> T {
    let key = key(stream.device());
    let before = CURRENT.with_borrow_mut(|current| current.streams.insert(key, stream.id()));
    let _restore = Restore { key, before };
    work()
}

/// Puts the stream back that was current before, also if the work panics.
struct Restore {
    key: usize,
    before: Option<StreamId>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| match self.before {
            Some(stream) => drop(current.streams.insert(self.key, stream)),
            None => drop(current.streams.remove(&self.key)),
        });
    }
}

#[inline]
pub(crate) fn current_stream_of(device: &Device) -> StreamId {
    current_stream_by_key(key(device))
}

/// The same by the [`key`] of the device; of a thread that ends, the default stream.
#[inline]
pub(crate) fn current_stream_by_key(key: usize) -> StreamId {
    let current = CURRENT.try_with(|current| {
        let current = current.borrow();
        if current.streams.is_empty() {
            return StreamId::DEFAULT;
        }
        current.streams.get(&key).copied().unwrap_or(StreamId::DEFAULT)
    });
    current.unwrap_or(StreamId::DEFAULT)
}

/// What tells a device from others while it is there.
#[inline]
pub(crate) fn key(device: &Device) -> usize {
    Arc::as_ptr(&device.shared).addr()
}
