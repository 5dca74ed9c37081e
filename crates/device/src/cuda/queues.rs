//! The streams and events of a device, shared by the device and those who queue work without it.
//!
//! A stream may be named while it is known; who queues on one without the device holds the book meanwhile, so that
//! none is destroyed under a call. Events of the driver live as long as anyone has a share in this.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tonnage_events::StreamId;

use super::context::{Context, Current};
use super::events::Events;
use super::streams::Streams;
use super::sys::{CUevent, CUstream};
use crate::{DeviceError, EventId};

#[derive(Debug)]
pub(super) struct Queues {
    streams: RwLock<Streams>,
    events: Mutex<Events>,
    /// Goes after the events that were made in it.
    pub(super) context: Arc<Context>,
}

impl Queues {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        let context = Arc::clone(context);
        Self { streams: RwLock::default(), events: Mutex::default(), context }
    }

    /// The streams that may be named: none of them ends while the answer is held.
    pub(super) fn streams(&self) -> RwLockReadGuard<'_, Streams> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn streams_mut(&self) -> RwLockWriteGuard<'_, Streams> {
        self.streams.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the end of what is queued on a stream now.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of the context, not destroyed.
    pub(super) unsafe fn record(
        &self,
        current: &Current<'_>,
        stream: CUstream,
    ) -> Result<EventId, DeviceError> {
        let (id, event) = self.lend(current)?;
        // SAFETY: the stream by promise, the event by the books; the context is current by type.
        let recorded = unsafe { current.event_record(event, stream) };
        if let Err(error) = recorded {
            self.events().take_back("record_event", id)?;
            return Err(error);
        }
        Ok(id)
    }

    fn lend(&self, current: &Current<'_>) -> Result<(EventId, CUevent), DeviceError> {
        if let Some(lent) = self.events().lend() {
            return Ok(lent);
        }
        let event = current.event_create()?;
        Ok((self.events().add_lent(event), event))
    }

    /// Lets what is queued on `stream` from now on wait for `event`.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of the context, not destroyed.
    pub(super) unsafe fn wait_on(
        &self,
        current: &Current<'_>,
        stream: CUstream,
        event: EventId,
    ) -> Result<(), DeviceError> {
        let event = self.events().get("wait_on", event)?;
        // SAFETY: the stream by promise; events live as long as `self`. The context is current by type.
        unsafe { current.stream_wait_event(stream, event) }
    }

    /// Whether everything before the mark is done.
    pub(super) fn query(&self, event: EventId) -> Result<bool, DeviceError> {
        let event = self.events().get("query_event", event)?;
        let current = self.context.enter()?;
        // SAFETY: events live as long as `self`; the context is current by type.
        unsafe { current.event_query(event) }
    }

    /// Waits until everything before the mark is done.
    pub(super) fn wait(&self, event: EventId) -> Result<(), DeviceError> {
        let event = self.events().get("wait_event", event)?;
        let current = self.context.enter()?;
        // SAFETY: events live as long as `self`; the context is current by type.
        unsafe { current.event_synchronize(event) }
    }

    /// Forgets a mark; the driver's event is kept for the next one.
    pub(super) fn forget(&self, event: EventId) -> Result<(), DeviceError> {
        self.events().take_back("destroy_event", event)
    }

    /// The stream of a number, and the book that keeps it alive.
    pub(super) fn stream(
        &self,
        call: &'static str,
        stream: StreamId,
    ) -> Result<(RwLockReadGuard<'_, Streams>, CUstream), DeviceError> {
        let streams = self.streams();
        let handle = streams.get(call, stream)?;
        Ok((streams, handle))
    }

    /// The same; the default stream for one that has ended.
    pub(super) fn stream_or_ended(
        &self,
        call: &'static str,
        stream: StreamId,
    ) -> Result<(RwLockReadGuard<'_, Streams>, CUstream), DeviceError> {
        let streams = self.streams();
        let handle = streams.get_or_ended(call, stream)?;
        Ok((streams, handle))
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let events = self.events().drain();
        if events.is_empty() {
            return;
        }
        // The first try may return an error that an earlier call has parked. If there is no second,
        // the driver is going, as it does while the process ends, and takes the events along.
        let Ok(current) = self.context.enter().or_else(|_| self.context.enter()) else { return };
        for event in events {
            // SAFETY: ours by the books, which no longer name it, and whoever waits for one has a share in
            // `self`, so nobody does. The context is current by type.
            let destroyed = unsafe { current.event_destroy(event) };
            // Nobody is left to hear of an error.
            drop(destroyed);
        }
    }
}
