//! Marks that know when they were reached, to measure how long work takes on the device.

use std::sync::Arc;
use std::time::Duration;

use tonnage_events::StreamId;

use super::context::Context;
use super::launcher::Launcher;
use super::sys::CUevent;
use crate::DeviceError;

/// A moment of a stream.
#[derive(Debug)]
pub struct TimedEvent {
    event: CUevent,
    context: Arc<Context>,
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<TimedEvent>();
};

impl Launcher {
    /// The moment when what is queued on `stream` now is done.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or if the driver refuses.
    pub fn moment(&self, stream: StreamId) -> Result<TimedEvent, DeviceError> {
        self.on("moment", stream, |current, stream| {
            let event = current.timed_event_create()?;
            let moment = TimedEvent { event, context: Arc::clone(&self.queues.context) };
            // SAFETY: the event is the one just made; the stream is alive by the book that is held.
            unsafe { current.event_record(event, stream) }?;
            Ok(moment)
        })
    }
}

impl TimedEvent {
    /// How long after `earlier` this was; waits until both have come.
    ///
    /// # Errors
    ///
    /// If work before either failed.
    pub fn since(&self, earlier: &Self) -> Result<Duration, DeviceError> {
        let current = self.context.enter()?;
        for moment in [earlier, self] {
            // SAFETY: events live as long as their owners, which are borrowed.
            unsafe { current.event_synchronize(moment.event) }?;
        }
        // SAFETY: as above; both have time.
        let milliseconds = unsafe { current.event_elapsed(earlier.event, self.event) }?;
        Ok(Duration::try_from_secs_f32(milliseconds / 1000.0).unwrap_or_default())
    }
}

impl Drop for TimedEvent {
    fn drop(&mut self) {
        // The first try may return an error that an earlier call has parked.
        let Ok(current) = self.context.enter().or_else(|_| self.context.enter()) else { return };
        // SAFETY: ours, destroyed once; the driver keeps what it needs of one that is still to come.
        let destroy = || unsafe { current.event_destroy(self.event) };
        // Once more if it failed; nobody is left to hear of an error.
        drop(destroy().or_else(|_| destroy()));
    }
}
