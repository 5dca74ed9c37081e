//! The order of queued work: who waits for whom.
//!
//! In:  the notes of who uses which memory, and streams that can be marked and made to wait.
//! Out: work queued behind everything it depends on; the notes, brought up to date.
//!
//! The same for every device whose streams run by themselves: see orders 1 to 3 of *exec*.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tonnage_device::cuda::Launcher;
use tonnage_device::host::Streams;
use tonnage_device::{DeviceError, EventId};
use tonnage_memory::StreamId;

use super::Used;
use crate::storage::Uses;

/// Streams whose work can be waited for: by one of them, or by the caller.
pub(super) trait Timeline {
    /// Marks the end of what is queued on a stream now.
    fn record(&self, stream: StreamId) -> Result<EventId, DeviceError>;
    /// Lets what is queued on a stream from now on wait for the mark. Does not wait itself.
    fn wait_on(&self, stream: StreamId, mark: EventId) -> Result<(), DeviceError>;
    /// Waits until everything before the mark is done.
    fn wait(&self, mark: EventId) -> Result<(), DeviceError>;
    /// Forgets a mark.
    fn forget(&self, mark: EventId) -> Result<(), DeviceError>;
}

macro_rules! timelines {
    ($($streams:ty),*) => {
        $(impl Timeline for $streams {
            fn record(&self, stream: StreamId) -> Result<EventId, DeviceError> {
                Self::record(self, stream)
            }

            fn wait_on(&self, stream: StreamId, mark: EventId) -> Result<(), DeviceError> {
                Self::wait_on(self, stream, mark)
            }

            fn wait(&self, mark: EventId) -> Result<(), DeviceError> {
                Self::wait(self, mark)
            }

            fn forget(&self, mark: EventId) -> Result<(), DeviceError> {
                self.destroy_event(mark)
            }
        })*
    };
}

timelines!(Streams, Launcher);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The order of one device's work.
pub(super) struct Order<S> {
    pub(super) streams: S,
    /// Held from looking who uses memory until the work is queued and noted.
    turn: Mutex<()>,
}

impl<S: Timeline> Order<S> {
    pub(super) fn new(streams: S) -> Self {
        Self { streams, turn: Mutex::new(()) }
    }

    /// Calls `queue` at the moment at which what it puts onto `stream` is behind everything it depends on.
    pub(super) fn queue<E: From<DeviceError>>(
        &self,
        stream: StreamId,
        written: &[Used<'_>],
        read: &[Used<'_>],
        queue: impl FnOnce(&S) -> Result<(), E>,
    ) -> Result<(), E> {
        let _turn = lock(&self.turn);
        for used in read {
            self.order_read(stream, &mut lock(used.uses))?;
        }
        for used in written {
            self.order_write(stream, &mut lock(used.uses))?;
        }
        queue(&self.streams)
    }

    /// Before a read: behind the last write.
    fn order_read(&self, stream: StreamId, uses: &mut Uses) -> Result<(), DeviceError> {
        if uses.readers.contains(&stream) {
            return Ok(());
        }
        if let Some(writer) = uses.writer {
            self.wait_for(stream, writer)?;
        }
        uses.readers.push(stream);
        Ok(())
    }

    /// Before a write: behind everything.
    fn order_write(&self, stream: StreamId, uses: &mut Uses) -> Result<(), DeviceError> {
        for other in uses.readers.iter().copied().chain(uses.writer) {
            self.wait_for(stream, other)?;
        }
        uses.writer = Some(stream);
        uses.readers.clear();
        Ok(())
    }

    fn wait_for(&self, stream: StreamId, other: StreamId) -> Result<(), DeviceError> {
        if stream == other {
            return Ok(());
        }
        let mark = self.streams.record(other)?;
        let waits = self.streams.wait_on(stream, mark);
        waits.and(self.streams.forget(mark))
    }

    /// Waits until no queued work uses some memory.
    pub(super) fn settle(&self, uses: &Mutex<Uses>) -> Result<(), DeviceError> {
        let streams: Vec<_> = {
            let uses = lock(uses);
            uses.readers.iter().copied().chain(uses.writer).collect()
        };
        streams.into_iter().try_for_each(|stream| {
            let mark = self.streams.record(stream)?;
            let waited = self.streams.wait(mark);
            waited.and(self.streams.forget(mark))
        })
    }
}
