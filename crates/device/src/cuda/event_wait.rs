//! Waiting for an event without the device: whoever shares a device behind a lock need not hold it
//! meanwhile.

use std::sync::Arc;

use super::Cuda;
use super::queues::Queues;
use super::sys::CUevent;
use crate::{DeviceError, EventId};

/// An event of a device, to be waited for from any thread while the device is used by others.
#[derive(Debug)]
pub struct EventWait {
    event: CUevent,
    /// The event ends with them.
    queues: Arc<Queues>,
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<EventWait>();
};

impl Cuda {
    /// A recorded event, to be waited for without the device. If the event is destroyed meanwhile and
    /// its place is used for another, that one is waited for as well.
    ///
    /// # Errors
    ///
    /// If there is no such event.
    pub fn event_wait(&self, event: EventId) -> Result<EventWait, DeviceError> {
        let event = self.queues.events().get("wait_event", event)?;
        Ok(EventWait { event, queues: Arc::clone(&self.queues) })
    }
}

impl EventWait {
    /// Waits until everything before the mark is done.
    ///
    /// # Errors
    ///
    /// If work before it failed.
    pub fn wait(&self) -> Result<(), DeviceError> {
        let current = self.queues.context.enter()?;
        // SAFETY: made in this context by the device's books, and ended only with the queues, in which
        // `self` has a share; the context is current by type.
        unsafe { current.event_synchronize(self.event) }
    }
}
