//! The memory of a graph capture: a private pool, open while it is captured.
//!
//! In:  the stream that is captured.
//! Out: every request on that stream from memory that nobody else is given, until the pool is closed. What was given back
//!      meanwhile stays in the pool, so that the graph may use it whenever it is replayed; when the pool is dropped, its
//!      memory goes the way of cached memory.

use std::sync::atomic::{AtomicU64, Ordering};

use tonnage_engine::{Capture, PoolError, StreamFilter};
use tonnage_events::PoolId;

use crate::current::{current_stream_by_key, key};
use crate::device::Device;
use crate::stream::Stream;
use crate::sync::lock;

/// A private pool for the capture of a graph, as PyTorch's `torch.cuda.graph` has one.
///
/// ```
/// use tonnage_memory::{CapturePool, Device, with_stream};
///
/// let device = Device::dry("1 GiB")?;
/// let side = device.create_stream()?;
/// let mut pool = CapturePool::open(&side)?;
/// let block = with_stream(&side, || device.allocate(8 << 20))?;
/// pool.close();
/// drop(block);
/// // Free, and yet nobody else's.
/// let other = device.allocate(8 << 20)?;
/// assert_eq!(device.memory().reserved(), 40 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CapturePool {
    device: Device,
    id: PoolId,
    is_open: bool,
    is_leaked: bool,
}

/// The number of the next capture, from 1 on.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl CapturePool {
    /// A new pool, to which the requests on `stream` go from now on. Until it is closed the allocator takes a capture to
    /// be under way: it neither looks whether other streams are done with memory nor waits for any.
    ///
    /// # Errors
    ///
    /// If another one of the device is open.
    pub fn open(stream: &Stream) -> Result<Self, PoolError> {
        let (device, captured) = (stream.device().clone(), stream.id());
        // As PyTorch numbers the pools of captures; those of users have 0 first.
        let id = PoolId(NEXT.fetch_add(1, Ordering::Relaxed), 0);
        let mut open = lock(&device.shared.capture);
        if let Some(other) = *open {
            return Err(PoolError::Diverting(other));
        }
        // Not the device itself, which would then keep itself.
        let key = key(&device);
        let concerns = move || current_stream_by_key(key) == captured;
        let mut engine = device.shared.engine.lock();
        engine.begin_allocate_to_pool(id, StreamFilter::Only(vec![captured]))?;
        engine.set_pool_keeps_memory(id);
        engine.begin_capture(Capture::When(std::sync::Arc::new(concerns)));
        drop(engine);
        *open = Some(id);
        drop(open);
        Ok(Self { device, id, is_open: true, is_leaked: false })
    }

    /// Its number, as snapshots have it.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// The pool keeps its memory for good: for work on it of which nobody knows when it ends.
    pub fn leak(&mut self) {
        self.is_leaked = true;
    }

    /// The capture has ended: requests go where they went before. Once is enough.
    pub fn close(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        // Held until it has ended: whoever begins another one is behind.
        let mut open = lock(&self.device.shared.capture);
        let mut engine = self.device.shared.engine.lock();
        let ended = engine.end_allocate_to_pool(self.id);
        debug_assert!(ended.is_ok(), "{ended:?}: it was begun by `open`, and ends once");
        let ended = engine.end_capture();
        debug_assert!(ended.is_ok(), "{ended:?}: as above");
        *open = None;
    }
}

impl Drop for CapturePool {
    fn drop(&mut self) {
        self.close();
        if self.is_leaked {
            return;
        }
        let released = self.device.shared.engine.lock().release_pool(self.id);
        debug_assert!(released.is_ok(), "{released:?}: used once, by `open`");
    }
}
