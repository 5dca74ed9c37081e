//! Queueing work without the device: whoever shares one behind a lock need not hold it for a launch.
//!
//! In:  work (kernels, copies, fills, marks) for a stream, from any thread.
//! Out: the same on the driver's stream, at once; order between streams by marks.
//!
//! What is launched where, and which memory it may use, is the caller's to know: nothing here looks at the books of
//! memory.

use std::ffi::c_void;
use std::sync::Arc;

use tonnage_events::{Address, StreamId};

use super::arguments::Arguments;
use super::calls::Extent;
use super::context::Current;
use super::module::Function;
use super::queues::Queues;
use super::sys::CUstream;
use super::{Cuda, Driver, Properties};
use crate::{DeviceError, EventId};

/// The streams of a CUDA device, for those who queue work on them. A handle: clones are of the same device.
///
/// ```no_run
/// use tonnage_device::Device;
/// use tonnage_device::cuda::{Arguments, Cuda, Extent};
///
/// let mut device = Cuda::open(0)?;
/// let (launcher, stream) = (device.launcher(), device.create_stream()?);
/// // SAFETY: PTX that a compiler has made.
/// let module = unsafe { launcher.load(b"...") }?;
/// let kernel = module.function("fill")?;
/// let memory = device.acquire(2 << 20)?;
/// let arguments = Arguments::new().with(memory).with(1.0f32).with(1000u64);
/// // SAFETY: the kernel writes 1000 numbers, and the segment has room for them.
/// unsafe { launcher.launch(&kernel, Extent::line(4, 256), stream, &arguments) }?;
/// launcher.synchronize(stream)?;
/// # Ok::<(), tonnage_device::DeviceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Launcher {
    pub(super) queues: Arc<Queues>,
    properties: Arc<Properties>,
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<Launcher>();
};

impl Cuda {
    /// The streams of this device, to queue work on them without the device. Streams that the device makes and ends
    /// are known there from then on.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        let properties = Arc::new(self.properties().clone());
        Launcher { queues: Arc::clone(&self.queues), properties }
    }
}

/// The device's context is current on this thread, as libraries over the CUDA runtime need it; what was current
/// before is so again when this is dropped.
pub struct Entered<'a> {
    _current: Current<'a>,
}

impl Launcher {
    /// What the driver tells of the device.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.queues.context.driver()
    }

    /// Makes the device's context current on this thread. Every function here does so by itself; a thread that stays
    /// in it spares them two calls of the driver each.
    ///
    /// # Errors
    ///
    /// If the driver refuses.
    pub fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        Ok(Entered { _current: self.queues.context.enter()? })
    }

    /// Calls `body` with the driver's handle of a stream (`CUstream`), in the device's context. The stream does not
    /// end meanwhile.
    ///
    /// # Errors
    ///
    /// If there is no such stream, and what `body` returns.
    pub fn with_stream<T, E: From<DeviceError>>(
        &self,
        stream: StreamId,
        body: impl FnOnce(*mut c_void) -> Result<T, E>,
    ) -> Result<T, E> {
        self.on("with_stream", stream, |_, handle| Ok(body(handle.0))).map_err(E::from)?
    }

    /// Queues a kernel on `stream`.
    ///
    /// # Errors
    ///
    /// If there is no such stream, if the arguments are not as many or as large as the kernel's parameters (drivers
    /// from CUDA 12.4 on tell them), or if the driver refuses the extent.
    ///
    /// # Safety
    ///
    /// 1. The function is of a module of this device.
    /// 2. The arguments are those of the kernel, in number and type.
    /// 3. What the kernel reads and writes with them stays the caller's until the kernel is done, and nobody else
    ///    uses it meanwhile in a way that the stream does not order.
    /// 4. The function's module is not dropped before the kernel is done.
    pub unsafe fn launch(
        &self,
        function: &Function,
        extent: Extent,
        stream: StreamId,
        arguments: &Arguments,
    ) -> Result<(), DeviceError> {
        function.check_arguments(arguments)?;
        let mut pointers = arguments.pointers();
        self.on("launch", stream, |current, stream| {
            // SAFETY: promises 1 to 4; the stream is alive by the book that is held.
            unsafe { current.launch(function.handle(), extent, stream, &mut pointers) }
        })
    }

    /// Queues a copy of `size` bytes of host memory to the device. From memory that is not pinned the copy may be
    /// done before this returns, and other work waits for it.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or if the driver refuses the memory.
    ///
    /// # Safety
    ///
    /// Until what is queued on `stream` is done, `from` can be read and does not change, and `to` is device memory of
    /// the caller's that nobody uses in a way that the stream does not order.
    pub unsafe fn copy_to_device(
        &self,
        to: Address,
        from: *const u8,
        size: usize,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if size == 0 {
            return Ok(());
        }
        self.on("copy_to_device", stream, |current, stream| {
            // SAFETY: the caller's promise; the stream is alive by the book that is held.
            unsafe { current.copy_to_device_async(to.0, from, size, stream) }
        })
    }

    /// Queues a copy of `size` bytes of the device to host memory.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Safety
    ///
    /// Until what is queued on `stream` is done, `to` can be written and nobody uses it, and `from` is device memory of
    /// the caller's that nobody writes in a way that the stream does not order.
    pub unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: Address,
        size: usize,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if size == 0 {
            return Ok(());
        }
        self.on("copy_to_host", stream, |current, stream| {
            // SAFETY: the caller's promise; the stream is alive by the book that is held.
            unsafe { current.copy_to_host_async(to, from.0, size, stream) }
        })
    }

    /// Queues a copy of `size` bytes inside the device.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Safety
    ///
    /// Until what is queued on `stream` is done, both are device memory of the caller's, do not overlap, and nobody uses
    /// them in a way that the stream does not order.
    pub unsafe fn copy_within(
        &self,
        to: Address,
        from: Address,
        size: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if size == 0 {
            return Ok(());
        }
        self.on("copy_within", stream, |current, stream| {
            // SAFETY: the caller's promise; the stream is alive by the book that is held.
            unsafe { current.copy_within_async(to.0, from.0, size, stream) }
        })
    }

    /// Queues a copy of `size` bytes from memory of `other`, which may be the same device.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Safety
    ///
    /// As for [`copy_within`](Self::copy_within), where `from` is memory of the other device, which is not dropped
    /// before the copy is done.
    pub unsafe fn copy_from(
        &self,
        to: Address,
        (other, from): (&Self, Address),
        size: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let theirs = other.queues.context.handle();
        if theirs == self.queues.context.handle() {
            // SAFETY: one context is one device; the caller's promise is that of `copy_within`.
            return unsafe { self.copy_within(to, from, size, stream) };
        }
        if size == 0 {
            return Ok(());
        }
        self.on("copy_from", stream, |current, stream| {
            // SAFETY: the caller's promise; the stream is alive by the book that is held, the other context by `other`.
            unsafe { current.copy_peer_async(to.0, (theirs, from.0), size, stream) }
        })
    }

    /// Queues the filling of `size` bytes with `value`.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Safety
    ///
    /// Until what is queued on `stream` is done, `to` is device memory of the caller's that nobody uses in a way that the
    /// stream does not order.
    pub unsafe fn fill(
        &self,
        to: Address,
        value: u8,
        size: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if size == 0 {
            return Ok(());
        }
        self.on("fill", stream, |current, stream| {
            // SAFETY: the caller's promise; the stream is alive by the book that is held.
            unsafe { current.fill_async(to.0, value, size, stream) }
        })
    }

    /// Queues the filling of `count` words of four bytes with `value`.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device), and if `to` is no multiple of four.
    ///
    /// # Safety
    ///
    /// As for [`fill`](Self::fill), for `4 * count` bytes.
    pub unsafe fn fill_words(
        &self,
        to: Address,
        value: u32,
        count: u64,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        if count == 0 {
            return Ok(());
        }
        self.on("fill_words", stream, |current, stream| {
            // SAFETY: the caller's promise; the stream is alive by the book that is held.
            unsafe { current.fill_words_async(to.0, value, count, stream) }
        })
    }

    /// Marks the end of what is queued on `stream` now; on a stream that has ended, nothing is. The mark is kept until
    /// [`destroy_event`](Self::destroy_event); the device knows it by the same number.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or if the driver refuses.
    pub fn record(&self, stream: StreamId) -> Result<EventId, DeviceError> {
        let (_streams, stream) = self.queues.stream_or_ended("record", stream)?;
        let current = self.queues.context.enter()?;
        // SAFETY: the stream is alive by the book that is held.
        unsafe { self.queues.record(&current, stream) }
    }

    /// Lets what is queued on `stream` from now on wait for `event`. Does not wait itself.
    ///
    /// # Errors
    ///
    /// If there is no such stream or event.
    pub fn wait_on(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.on("wait_on", stream, |current, stream| {
            // SAFETY: the stream is alive by the book that is held.
            unsafe { self.queues.wait_on(current, stream, event) }
        })
    }

    /// Lets what is queued on `stream` from now on wait for what is queued on `other` now.
    ///
    /// # Errors
    ///
    /// If there is no such stream.
    pub fn order_behind(&self, stream: StreamId, other: StreamId) -> Result<(), DeviceError> {
        if stream == other {
            return Ok(());
        }
        let event = self.record(other)?;
        let waits = self.wait_on(stream, event);
        waits.and(self.destroy_event(event))
    }

    /// The same for a stream of `other`, which may be another device.
    ///
    /// # Errors
    ///
    /// If there is no such stream.
    pub fn order_behind_of(
        &self,
        stream: StreamId,
        (other, theirs): (&Self, StreamId),
    ) -> Result<(), DeviceError> {
        let event = other.record(theirs)?;
        let handle = other.queues.events().get("order_behind_of", event);
        let waits = handle.and_then(|handle| {
            self.on("order_behind_of", stream, |current, stream| {
                // SAFETY: the stream is alive by the book that is held, the event by `other`, which has not taken it back.
                // Streams wait for events of other devices as for those of their own.
                unsafe { current.stream_wait_event(stream, handle) }
            })
        });
        waits.and(other.destroy_event(event))
    }

    /// Whether everything before the mark is done.
    ///
    /// # Errors
    ///
    /// If there is no such event, or if work before it failed.
    pub fn query(&self, event: EventId) -> Result<bool, DeviceError> {
        self.queues.query(event)
    }

    /// Waits until everything before the mark is done.
    ///
    /// # Errors
    ///
    /// If there is no such event, or if work before it failed.
    pub fn wait(&self, event: EventId) -> Result<(), DeviceError> {
        self.queues.wait(event)
    }

    /// Forgets a mark.
    ///
    /// # Errors
    ///
    /// If there is no such event.
    pub fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.queues.forget(event)
    }

    /// Waits for what is queued on `stream` now.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or if work on it failed.
    pub fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        // The book is not held for the wait: a stream that is made or ended meanwhile need not wait too.
        let event = self.record(stream)?;
        let waited = self.wait(event);
        waited.and(self.destroy_event(event))
    }

    /// Waits for what is queued on any stream that may be named.
    ///
    /// # Errors
    ///
    /// If work failed.
    pub fn synchronize_all(&self) -> Result<(), DeviceError> {
        self.known_streams().into_iter().try_for_each(|stream| {
            // A capture may have begun since they were listed, or the stream have ended.
            let Some(event) = self.record_unless_captured(stream)? else { return Ok(()) };
            let waited = self.wait(event);
            waited.and(self.destroy_event(event))
        })
    }

    fn record_unless_captured(&self, stream: StreamId) -> Result<Option<EventId>, DeviceError> {
        let (streams, handle) = self.queues.stream_or_ended("synchronize", stream)?;
        if streams.captured().contains(&stream) {
            return Ok(None);
        }
        let current = self.queues.context.enter()?;
        // SAFETY: the stream is alive by the book that is held, and no capture begins on it meanwhile.
        unsafe { self.queues.record(&current, handle) }.map(Some)
    }

    /// Waits for everything that is queued in the device's context, by whomever. Needs no book of streams.
    ///
    /// # Errors
    ///
    /// If work failed, or if work of anyone in the context is being captured.
    pub fn synchronize_context(&self) -> Result<(), DeviceError> {
        self.queues.context.enter()?.synchronize_context()
    }

    /// The default stream and every other that may be named and waited for: none that is captured.
    #[must_use]
    pub fn known_streams(&self) -> Vec<StreamId> {
        self.queues.streams().known()
    }

    /// Runs `body` in the context, on a stream that does not end meanwhile.
    pub(super) fn on<T>(
        &self,
        call: &'static str,
        stream: StreamId,
        body: impl FnOnce(&Current<'_>, CUstream) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let (_streams, stream) = self.queues.stream(call, stream)?;
        let current = self.queues.context.enter()?;
        body(&current, stream)
    }
}
