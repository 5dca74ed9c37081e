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
    turn: Mutex<Turn>,
}

#[derive(Default)]
struct Turn {
    /// The stream whose work is written down for a graph, if there is one. Such work is not done yet, so it is in nobody's
    /// notes; when the graph is replayed, it is ordered as a whole.
    captured: Option<StreamId>,
}

impl Turn {
    /// What is only written down is never done, and a driver would take who waits for it into the graph.
    fn refuse_wait(&self, other: StreamId) -> Result<(), DeviceError> {
        if self.captured != Some(other) {
            return Ok(());
        }
        let reason = "memory of a graph that is being captured cannot be used outside of the capture: \
                      replay the graph first";
        Err(DeviceError::Misuse { call: "wait", reason: reason.to_owned() })
    }
}

impl<S: Timeline> Order<S> {
    pub(super) fn new(streams: S) -> Self {
        Self { streams, turn: Mutex::default() }
    }

    /// Calls `queue` at the moment at which what it puts onto `stream` is behind everything it depends on.
    pub(super) fn queue<E: From<DeviceError>>(
        &self,
        stream: StreamId,
        written: &[Used<'_>],
        read: &[Used<'_>],
        queue: impl FnOnce(&S) -> Result<(), E>,
    ) -> Result<(), E> {
        let [written, read] = [written, read].map(|it| it.iter().map(|used| used.uses));
        self.queue_using(stream, written, read, queue)
    }

    /// The same, of memory that only the notes are known of.
    pub(super) fn queue_using<'a, E: From<DeviceError>>(
        &self,
        stream: StreamId,
        written: impl Iterator<Item = &'a Mutex<Uses>>,
        read: impl Iterator<Item = &'a Mutex<Uses>>,
        queue: impl FnOnce(&S) -> Result<(), E>,
    ) -> Result<(), E> {
        let turn = lock(&self.turn);
        if turn.captured != Some(stream) {
            for uses in read {
                self.order_read(&turn, stream, &mut lock(uses))?;
            }
            for uses in written {
                self.order_write(&turn, stream, &mut lock(uses))?;
            }
        }
        queue(&self.streams)
    }

    /// From now on, if `begin` works, work on `stream` is written down by whoever is told so.
    pub(super) fn begin_capture<T>(
        &self,
        stream: StreamId,
        begin: impl FnOnce(&S) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let mut turn = lock(&self.turn);
        let begun = begin(&self.streams)?;
        turn.captured = Some(stream);
        Ok(begun)
    }

    /// Work is done again, once `end` has told so whoever wrote it down.
    pub(super) fn end_capture<T>(&self, end: impl FnOnce() -> T) -> T {
        let mut turn = lock(&self.turn);
        let ended = end();
        turn.captured = None;
        ended
    }

    /// Before a read: behind the last write.
    fn order_read(
        &self,
        turn: &Turn,
        stream: StreamId,
        uses: &mut Uses,
    ) -> Result<(), DeviceError> {
        if uses.readers.contains(&stream) {
            return Ok(());
        }
        if let Some(writer) = uses.writer {
            self.wait_for(turn, stream, writer)?;
        }
        uses.readers.push(stream);
        Ok(())
    }

    /// Before a write: behind everything.
    fn order_write(
        &self,
        turn: &Turn,
        stream: StreamId,
        uses: &mut Uses,
    ) -> Result<(), DeviceError> {
        for other in uses.readers.iter().copied().chain(uses.writer) {
            self.wait_for(turn, stream, other)?;
        }
        uses.writer = Some(stream);
        uses.readers.clear();
        Ok(())
    }

    fn wait_for(&self, turn: &Turn, stream: StreamId, other: StreamId) -> Result<(), DeviceError> {
        if stream == other {
            return Ok(());
        }
        turn.refuse_wait(other)?;
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
            let mark = {
                let turn = lock(&self.turn);
                turn.refuse_wait(stream)?;
                self.streams.record(stream)?
            };
            let waited = self.streams.wait(mark);
            waited.and(self.streams.forget(mark))
        })
    }
}
