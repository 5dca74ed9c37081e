//! Streams whose work runs on threads: in order within a stream, at the same time across streams.
//!
//! In:  closures, marks and waits, from any thread that has a [`Streams`].
//! Out: the closures run, each stream's on a thread of its own, while the caller goes on.
//!
//! What is before what, and nothing else is: a closure comes after everything queued on its stream
//! before it; after [`wait_on`](Streams::wait_on), what is queued on the waiting stream comes after
//! everything before the event; and what a caller does after [`wait`](Streams::wait),
//! [`synchronize`](Streams::synchronize) or a [`query`](Streams::query) that said `true` comes after
//! everything before that mark. Memory written before is seen after.
//!
//! A closure that panics ends early; what is queued behind it runs all the same. The failure is
//! kept with its stream and reported once, by the first call that reaches a mark behind it. Such a
//! call fails only after everything before the mark is done, so an error never means "still
//! running".

use std::fmt;
use std::sync::Arc;

use tonnage_events::StreamId;

use super::memory;
use super::queue::{Mark, Step};
use super::worker::Shared;
use crate::{DeviceError, EventId};

/// The streams of a host device: a handle, cheap to clone, usable from any thread.
///
/// [`StreamId::DEFAULT`] always exists; any other exists from [`create`](Self::create) or its first
/// work on. Threads start with a stream's first work. Dropping the last handle (the device has one)
/// finishes what is queued and waits for the threads, except when work itself drops it: then the
/// threads finish on their own.
#[derive(Clone)]
pub struct Streams {
    handle: Arc<Handle>,
}

/// Closes the streams when the last clone is gone. Workers share what is inside, not this.
struct Handle(Arc<Shared>);

impl Streams {
    pub(super) fn new() -> Self {
        Self { handle: Arc::new(Handle(Arc::default())) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.0
    }

    /// Makes a stream. Handles grow and are not zero.
    #[must_use]
    pub fn create(&self) -> StreamId {
        self.shared().lock().create_stream()
    }

    /// Waits for a stream's work, then ends it. Its events count as complete.
    ///
    /// # Errors
    ///
    /// - If there is no such stream, or if it is the default stream.
    /// - If its work failed and nobody was told yet: the stream then stays, and the next call
    ///   destroys it.
    /// - From work of these streams: see [`wait`](Self::wait).
    pub fn destroy(&self, stream: StreamId) -> Result<(), DeviceError> {
        const CALL: &str = "destroy_stream";
        self.may_wait(CALL)?;
        if stream == StreamId::DEFAULT {
            return Err(DeviceError::misuse(CALL, "the default stream stays"));
        }
        let mut board = self.shared().lock();
        loop {
            if !board.exists(stream) {
                return Err(DeviceError::misuse(CALL, format!("no stream {stream}")));
            }
            let end = board.mark(stream);
            // While this waits, others may queue more.
            board = self.shared().wait_until_reached(board, end);
            if board.exists(stream) && board.mark(stream) == end {
                board.report(&[end])?;
                break;
            }
        }
        let worker = board.remove_stream(stream);
        drop(board);
        if let Some(worker) = worker {
            worker.wakeup.notify_one();
            // It ends by returning: panics of work are caught.
            let _ = worker.thread.join();
        }
        Ok(())
    }

    /// Lets a stream end when its work is done, and returns at once: what work can do where it cannot
    /// [`destroy`](Self::destroy). Failures that nobody was told of by then are forgotten. The default stream stays.
    pub fn retire(&self, stream: StreamId) {
        if stream != StreamId::DEFAULT {
            self.shared().lock().retire(stream);
        }
    }

    /// The streams there are, without the default stream.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared().lock().count()
    }

    pub(super) fn known(&self) -> Vec<StreamId> {
        self.shared().lock().known()
    }

    /// Queues `work` on a stream and returns at once.
    ///
    /// # Errors
    ///
    /// If the system gives no thread for the stream's first work. Nothing is queued then.
    pub fn launch(
        &self,
        stream: StreamId,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), DeviceError> {
        self.push(stream, Step::Run(Box::new(work)))
    }

    /// Marks the end of what is queued on `stream` now. On an idle stream the mark is reached.
    ///
    /// # Errors
    ///
    /// None today; a device may have some.
    pub fn record(&self, stream: StreamId) -> Result<EventId, DeviceError> {
        Ok(self.shared().lock().record(stream))
    }

    /// Whether everything before the mark is done.
    ///
    /// # Errors
    ///
    /// If there is no such event, or if work before it failed and nobody was told yet.
    pub fn query(&self, event: EventId) -> Result<bool, DeviceError> {
        let mut board = self.shared().lock();
        let mark = board.event("query_event", event)?;
        if !board.reached(mark) {
            return Ok(false);
        }
        board.report(&[mark])?;
        Ok(true)
    }

    /// Blocks the caller until everything before the mark is done.
    ///
    /// # Errors
    ///
    /// If there is no such event, or if work before it failed and nobody was told yet. Also when
    /// work of these streams calls it: its stream would stand still meanwhile, and two that wait for
    /// each other would never end. [`wait_on`](Self::wait_on) is what work can use.
    pub fn wait(&self, event: EventId) -> Result<(), DeviceError> {
        self.may_wait("wait_event")?;
        let board = self.shared().lock();
        let mark = board.event("wait_event", event)?;
        self.shared().wait_until_reached(board, mark).report(&[mark])
    }

    /// Makes `stream` wait, before what is queued on it from now on, until everything before the
    /// mark is done. The caller goes on. A failure before the mark stays with the event's stream;
    /// this one goes on as well.
    ///
    /// # Errors
    ///
    /// If there is no such event, or no thread: see [`launch`](Self::launch).
    pub fn wait_on(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let mark = {
            let board = self.shared().lock();
            let mark = board.event("wait_on", event)?;
            if mark.stream == stream || board.reached(mark) {
                return Ok(());
            }
            mark
        };
        self.push(stream, Step::WaitFor(mark))
    }

    /// Forgets an event. Streams that were told to wait for it still do.
    ///
    /// # Errors
    ///
    /// If there is no such event.
    pub fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.shared().lock().forget(event)
    }

    /// Blocks the caller until everything queued on `stream` is done.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.may_wait("synchronize")?;
        let board = self.shared().lock();
        let mark = board.mark(stream);
        self.shared().wait_until_reached(board, mark).report(&[mark])
    }

    /// Blocks the caller until everything queued on any stream is done.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn synchronize_all(&self) -> Result<(), DeviceError> {
        let marks = self.drain("synchronize")?;
        self.shared().lock().report(&marks)
    }

    /// Blocks the caller until everything queued on any stream by now is done. Failures are left to who
    /// asks for them.
    ///
    /// # Errors
    ///
    /// From work of these streams: see [`wait`](Self::wait).
    pub fn settle_all(&self) -> Result<(), DeviceError> {
        self.drain("synchronize").map(drop)
    }

    /// Waits for everything queued on any stream, without reporting failures.
    pub(super) fn drain(&self, call: &'static str) -> Result<Vec<Mark>, DeviceError> {
        self.may_wait(call)?;
        let mut board = self.shared().lock();
        let marks = board.marks();
        for mark in &marks {
            board = self.shared().wait_until_reached(board, *mark);
        }
        Ok(marks)
    }

    /// Waits for a mark, without reporting failures.
    pub(super) fn settle(&self, call: &'static str, mark: Mark) -> Result<(), DeviceError> {
        if !self.shared().lock().reached(mark) {
            self.may_wait(call)?;
            drop(self.shared().wait_until_reached(self.shared().lock(), mark));
        }
        Ok(())
    }

    /// Whether everything before the mark is done.
    pub(super) fn reached(&self, mark: Mark) -> bool {
        self.shared().lock().reached(mark)
    }

    /// The end of what is queued on `stream` now, and whether it is reached.
    pub(super) fn mark(&self, stream: StreamId) -> (Mark, bool) {
        let board = self.shared().lock();
        let mark = board.mark(stream);
        (mark, board.reached(mark))
    }

    /// Events that were not destroyed.
    pub(super) fn events(&self) -> usize {
        self.shared().lock().events()
    }

    /// Whether work of these streams is what calls.
    pub(super) fn called_from_work(&self) -> bool {
        self.shared().is_served_by_this_thread()
    }

    fn may_wait(&self, call: &'static str) -> Result<(), DeviceError> {
        if self.called_from_work() {
            return Err(DeviceError::misuse(call, "work on a stream cannot wait for streams"));
        }
        Ok(())
    }

    fn push(&self, stream: StreamId, step: Step) -> Result<(), DeviceError> {
        // `step` is dropped after the lock if there is no thread: dropping what a closure holds may
        // come back here.
        let mut board = self.shared().lock();
        self.shared()
            .start_worker(&mut board, stream)
            .map_err(|error| memory::driver("pthread_create", &error))?;
        board.push(stream, step);
        Ok(())
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let workers = {
            let mut board = self.0.lock();
            board.closing = true;
            board.take_workers()
        };
        for worker in &workers {
            worker.wakeup.notify_one();
        }
        // A worker cannot wait for its own end, nor for others that may wait for its stream.
        if !self.0.is_served_by_this_thread() {
            for worker in workers {
                // It ends by returning: panics of work are caught.
                let _ = worker.thread.join();
            }
        }
    }
}
