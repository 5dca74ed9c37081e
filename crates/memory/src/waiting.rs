//! Streams and events of a device, and waiting for them: never with the engine's lock.
//!
//! | device | its streams and events | who waits |
//! | --- | --- | --- |
//! | `host` | behind a lock of their own | does not touch the engine's |
//! | `cuda` | in the device, behind the engine's lock | records an event with the lock, waits for it without, forgets it with it |
//! | `dry` | names and numbers | takes the same steps, and never waits |
//! | made elsewhere | in the device, behind the engine's lock | does so with the lock: there is no other way |
//!
//! So threads allocate while others wait. Whoever empties the cache waits in the same way first, for the work that
//! uses what goes back; the engine then finds it done.
//!
//! What still waits with the lock is memory that goes back to the device because a request found no room; and of what
//! empties the cache, for the work that others queued during the first wait: to wait for that in the same way could go
//! on for ever. A request is then between two rungs of its ladder: what it gives back, and whether that is enough,
//! follows from the books as they are. Were the lock let go there, another thread could take what was just given back,
//! and the request would fail or not by chance; PyTorch holds its mutex there too. Nor can the device give back without
//! waiting and let someone else wait: pages are unmapped where others may be mapped next, and addresses of the host's
//! segments are used again.
//!
//! Blocks that are dropped meanwhile do not wait for the lock ([`shared_engine`](crate::shared_engine)); what else
//! takes it does, and work must leave it alone: see [`Stream::launch`](crate::Stream::launch).

use tonnage_device::cuda::EventWait;
use tonnage_device::host::Streams;
use tonnage_device::{Device as _, DeviceError, EventId};
use tonnage_events::StreamId;

use crate::any_device::AnyDevice;
use crate::device::Shared;
use crate::shared_engine::{EngineGuard, SharedEngine};
use crate::sync::lock;

impl Shared {
    /// A new stream; `number` names it where nothing else does.
    pub(crate) fn create_stream(&self, number: u64) -> Result<StreamId, DeviceError> {
        match &self.streams {
            Some(streams) => Ok(streams.create()),
            None => self.engine.lock().device_mut().create_stream(number),
        }
    }

    /// Waits for a stream's work, then ends it.
    pub(crate) fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        if let Some(streams) = &self.streams {
            return streams.destroy(stream);
        }
        // The device waits once more, for nothing: the stream is its owner's, who is here.
        self.synchronize(stream)?;
        self.engine.lock().device_mut().destroy_stream(stream)
    }

    /// Ends a stream that its owner dropped. Nobody is there to be told of a failure: it is kept for who asks next.
    pub(crate) fn end_stream(&self, stream: StreamId) {
        let Err(error) = self.destroy_stream(stream) else { return };
        if !matches!(error, DeviceError::Misuse { .. }) {
            // Its work failed, or a driver's call: that will be told, and the stream is still there.
            self.engine.keep_untold(error);
            if self.destroy_stream(stream).is_ok() {
                return;
            }
        }
        // Work of the host cannot wait for streams. A driver's stream that does not end now ends with the device.
        if let Some(streams) = &self.streams {
            streams.retire(stream);
        }
    }

    /// Tells whoever keeps something for a stream that it has ended.
    pub(crate) fn tell_stream_end(&self, stream: StreamId) {
        let told = lock(&self.stream_ends).clone();
        told.iter().for_each(|tell| tell(stream));
    }

    /// Waits until everything queued on `stream` is done.
    pub(crate) fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        if let Some(streams) = &self.streams {
            return streams.synchronize(stream);
        }
        let (event, wait) = {
            let mut engine = self.engine.lock();
            let event = engine.device_mut().record_event(stream)?;
            (event, engine.device().event_wait(event))
        };
        let waited = wait.and_then(|wait| wait.map(|event| event.wait()).transpose());
        let mut engine = self.engine.lock();
        // Where there is nothing to wait with but the device, on `dry` at once.
        let waited = waited.and_then(|done| match done {
            Some(()) => Ok(()),
            None => engine.device_mut().wait_event(event),
        });
        let forgotten = engine.device_mut().destroy_event(event);
        waited.and(forgotten)
    }

    /// Waits for the work that emptying the cache would wait for with the engine's lock: without it. What goes back is
    /// decided afterwards, with the lock; by then there is nothing to wait for but what others queued meanwhile. If
    /// nothing can go back, nothing is waited for.
    pub(crate) fn wait_before_emptying(&self) -> Result<(), DeviceError> {
        let known = {
            let mut engine = self.engine.lock();
            if !engine.empty_cache_waits() {
                return Ok(());
            }
            engine.device().known_streams()
        };
        match &self.streams {
            // Which work uses a segment is not known: the device waits for all of it. Failures are not this call's.
            Some(streams) => streams.settle_all(),
            None => known.into_iter().try_for_each(|stream| self.synchronize(stream)),
        }
    }

    /// Lets what is queued on `stream` from now on wait for what is queued on `other` by now.
    pub(crate) fn order_behind(
        &self,
        stream: StreamId,
        other: StreamId,
    ) -> Result<(), DeviceError> {
        let mut events = self.events();
        let event = events.record(other)?;
        let waits = events.wait_on(stream, event);
        let forgotten = events.destroy(event);
        waits.and(forgotten)
    }

    /// The events, with the lock that guards them.
    pub(crate) fn events(&self) -> Events<'_> {
        Events::of(self.streams.as_ref(), &self.engine)
    }
}

/// The events of a device, for a few calls in a row.
pub(crate) enum Events<'a> {
    Host(&'a Streams),
    Device(EngineGuard<'a>),
}

impl<'a> Events<'a> {
    pub(crate) fn of(streams: Option<&'a Streams>, engine: &'a SharedEngine) -> Self {
        streams.map_or_else(|| Self::Device(engine.lock()), Self::Host)
    }

    /// Marks the end of what is queued on a stream.
    pub(crate) fn record(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        match self {
            Self::Host(streams) => streams.record(stream),
            Self::Device(engine) => engine.device_mut().record_event(stream),
        }
    }

    /// Whether everything before the mark is done.
    pub(crate) fn query(&mut self, event: EventId) -> Result<bool, DeviceError> {
        match self {
            Self::Host(streams) => streams.query(event),
            Self::Device(engine) => engine.device_mut().query_event(event),
        }
    }

    /// Waits until everything before the mark is done: with the lock, so at the device's end only.
    pub(crate) fn wait(&mut self, event: EventId) -> Result<(), DeviceError> {
        match self {
            Self::Host(streams) => streams.wait(event),
            Self::Device(engine) => engine.device_mut().wait_event(event),
        }
    }

    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        match self {
            Self::Host(streams) => streams.wait_on(stream, event),
            Self::Device(engine) => engine.device_mut().wait_on(stream, event),
        }
    }

    /// Forgets a mark.
    pub(crate) fn destroy(&mut self, event: EventId) -> Result<(), DeviceError> {
        match self {
            Self::Host(streams) => streams.destroy_event(event),
            Self::Device(engine) => engine.device_mut().destroy_event(event),
        }
    }
}

impl AnyDevice {
    /// A recorded event, to be waited for without the device; none where that cannot be done.
    fn event_wait(&self, event: EventId) -> Result<Option<EventWait>, DeviceError> {
        match self {
            Self::Cuda(cuda) => cuda.event_wait(event).map(Some),
            Self::Dry(_) | Self::Host(_) | Self::Other(_) => Ok(None),
        }
    }
}
