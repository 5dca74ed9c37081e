//! The books of the streams: what is queued, how far each has come, what failed.
//!
//! Every piece of queued work has a number; the numbers grow over all streams together. A stream
//! works through its queue in order, so "everything up to number n is done" is one comparison, and
//! an event is no more than a [`Mark`]: a stream and a number.
//!
//! Nothing here waits or runs anything: [`streams`](super::streams) and [`worker`](super::worker)
//! do, with one lock around a [`Board`].

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;

use tonnage_events::StreamId;

use crate::{DeviceError, EventId};

/// What work that panicked is reported as: CUDA's number for a kernel that failed, so that callers
/// need not tell the devices apart.
const LAUNCH_FAILED: i32 = 719;

/// A closure that waits for its turn.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// One entry of a stream's queue.
pub(super) enum Step {
    Run(Work),
    /// Goes on when another stream has come this far.
    WaitFor(Mark),
}

/// The end of what was queued on a stream at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) stream: StreamId,
    pub(super) number: u64,
}

/// All streams and events of a device.
///
/// *A [`Step::WaitFor`] names a number smaller than its own. So the unfinished step with the
/// smallest number waits for nobody, and the streams cannot wait for one another in a circle.*
#[derive(Default)]
pub(super) struct Board {
    streams: HashMap<StreamId, Stream>,
    events: HashMap<EventId, Mark>,
    /// The last number given to a step.
    last_number: u64,
    last_event: u64,
    last_stream: u64,
    /// Threads that wait for some stream to come further. Without any, workers wake nobody.
    pub(super) waiting: usize,
    /// The last handle is gone: workers end when their queue is empty.
    pub(super) closing: bool,
}

/// *completed ≤ every number in the queue ≤ queued; equal when idle.*
#[derive(Default)]
pub(super) struct Stream {
    queue: VecDeque<(u64, Step)>,
    /// The number of the last step that was queued.
    queued: u64,
    /// The number of the last step that is done.
    completed: u64,
    /// Work that panicked and was not reported yet, in order.
    failures: VecDeque<Failure>,
    /// Started by the first step.
    pub(super) worker: Option<Worker>,
    /// Ends with its queue.
    retired: bool,
}

pub(super) struct Worker {
    pub(super) thread: JoinHandle<()>,
    /// Rung for new work, and when the worker shall end. Also tells this worker from another that
    /// served a stream of the same name before.
    pub(super) wakeup: Arc<Condvar>,
    /// Whether the worker waits to be woken.
    pub(super) asleep: bool,
}

struct Failure {
    number: u64,
    message: String,
}

impl Board {
    /// A stream nobody has used.
    pub(super) fn create_stream(&mut self) -> StreamId {
        loop {
            self.last_stream += 1;
            let id = StreamId(self.last_stream);
            if !self.streams.contains_key(&id) {
                self.stream(id);
                return id;
            }
        }
    }

    /// The stream of this name; it exists from its first work on.
    pub(super) fn stream(&mut self, id: StreamId) -> &mut Stream {
        let start = self.last_number;
        // A name may come back after its stream was destroyed. Starting at the last number, the new
        // stream is past every mark of the old one.
        self.streams.entry(id).or_insert_with(|| Stream {
            queued: start,
            completed: start,
            ..Stream::default()
        })
    }

    /// The streams there are, without the default stream.
    pub(super) fn count(&self) -> usize {
        self.streams.keys().filter(|id| **id != StreamId::DEFAULT).count()
    }

    /// Their names, with the default stream's.
    pub(super) fn known(&self) -> Vec<StreamId> {
        let others = self.streams.keys().copied().filter(|id| *id != StreamId::DEFAULT);
        let mut known: Vec<_> = [StreamId::DEFAULT].into_iter().chain(others).collect();
        known.sort_unstable();
        known
    }

    pub(super) fn exists(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// Takes an idle stream out. Its marks count as reached from now on.
    pub(super) fn remove_stream(&mut self, id: StreamId) -> Option<Worker> {
        self.streams.remove(&id)?.worker
    }

    /// Lets a stream end when its queue is empty: its worker takes it out, and ends. Without one there is nothing
    /// to end but the entry.
    pub(super) fn retire(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.retired = true;
        match &mut stream.worker {
            Some(worker) => {
                worker.asleep = false;
                worker.wakeup.notify_one();
            }
            None => drop(self.streams.remove(&id)),
        }
    }

    /// Takes the workers of all streams, to wait for their ends.
    pub(super) fn take_workers(&mut self) -> Vec<Worker> {
        self.streams.values_mut().filter_map(|stream| stream.worker.take()).collect()
    }

    /// Queues a step. The stream's worker must have been started.
    pub(super) fn push(&mut self, id: StreamId, step: Step) {
        let number = self.last_number + 1;
        // A stream that begins here begins before its first step.
        let stream = self.stream(id);
        stream.queue.push_back((number, step));
        stream.queued = number;
        if let Some(worker) = &mut stream.worker
            && worker.asleep
        {
            worker.asleep = false;
            worker.wakeup.notify_one();
        }
        self.last_number = number;
    }

    /// The next step of the stream that the worker that this wakes serves.
    pub(super) fn next_step(&mut self, id: StreamId, wakeup: &Arc<Condvar>) -> Next {
        let closing = self.closing;
        match self.streams.get_mut(&id) {
            // The last handle took the workers away: each still finishes its queue.
            Some(stream) if closing => stream.queue.pop_front().map_or(Next::End, Next::Step),
            Some(Stream { queue, worker: Some(worker), retired, .. })
                if Arc::ptr_eq(&worker.wakeup, wakeup) =>
            {
                match queue.pop_front() {
                    Some(step) => Next::Step(step),
                    None if *retired => {
                        self.streams.remove(&id);
                        Next::End
                    }
                    None => {
                        worker.asleep = true;
                        Next::Sleep
                    }
                }
            }
            _ => Next::End,
        }
    }

    /// Notes that a step is done, and how it failed if it did.
    pub(super) fn complete(&mut self, id: StreamId, number: u64, panic: Option<String>) {
        let stream = self.stream(id);
        stream.completed = number;
        stream.failures.extend(panic.map(|message| Failure { number, message }));
    }

    /// The end of what is queued on a stream now. Of one that is not there nothing is: the mark is reached, and stays
    /// so when the name comes into use. Naming a stream does not make it.
    pub(super) fn mark(&self, id: StreamId) -> Mark {
        Mark { stream: id, number: self.streams.get(&id).map_or(0, |stream| stream.queued) }
    }

    /// The ends of all streams.
    pub(super) fn marks(&self) -> Vec<Mark> {
        let mark = |(&stream, entry): (&StreamId, &Stream)| Mark { stream, number: entry.queued };
        self.streams.iter().map(mark).collect()
    }

    /// Whether everything before the mark is done.
    pub(super) fn reached(&self, mark: Mark) -> bool {
        self.streams.get(&mark.stream).is_none_or(|stream| stream.completed >= mark.number)
    }

    /// Reports the failures before the marks, once: they are forgotten then.
    pub(super) fn report(&mut self, marks: &[Mark]) -> Result<(), DeviceError> {
        let mut reports = Vec::new();
        for mark in marks {
            let Some(stream) = self.streams.get_mut(&mark.stream) else { continue };
            if stream.failures.is_empty() {
                continue;
            }
            let before = stream.failures.partition_point(|failure| failure.number <= mark.number);
            let failures = stream.failures.drain(..before);
            reports.extend(failures.map(|failure| (failure.number, mark.stream, failure.message)));
        }
        reports.sort_unstable();
        let Some((_, stream, message)) = reports.first() else { return Ok(()) };
        let more = match reports.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more failed)"),
        };
        Err(DeviceError::Driver {
            call: "launch",
            code: LAUNCH_FAILED,
            message: format!("work on stream {stream} panicked: {message}{more}"),
        })
    }

    pub(super) fn record(&mut self, id: StreamId) -> EventId {
        let mark = self.mark(id);
        self.last_event += 1;
        let event = EventId(self.last_event);
        self.events.insert(event, mark);
        event
    }

    pub(super) fn event(&self, call: &'static str, event: EventId) -> Result<Mark, DeviceError> {
        self.events.get(&event).copied().ok_or_else(|| no_event(call, event))
    }

    pub(super) fn forget(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.events.remove(&event).map(|_| ()).ok_or_else(|| no_event("destroy_event", event))
    }

    /// Events that were not destroyed.
    pub(super) fn events(&self) -> usize {
        self.events.len()
    }
}

/// What a worker does next.
pub(super) enum Next {
    Step((u64, Step)),
    Sleep,
    End,
}

fn no_event(call: &'static str, event: EventId) -> DeviceError {
    DeviceError::misuse(call, format!("no event {}", event.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(7);

    #[test]
    fn a_mark_of_an_idle_stream_is_reached() {
        let board = Board::default();
        let mark = board.mark(A);
        assert!(board.reached(mark));
    }

    #[test]
    fn naming_a_stream_that_is_gone_does_not_bring_it_back() {
        let mut board = Board::default();
        board.push(A, Step::Run(Box::new(|| ())));
        board.complete(A, 1, None);
        assert!(board.remove_stream(A).is_none());
        let (mark, event) = (board.mark(A), board.record(A));
        assert_eq!(board.event("query_event", event), Ok(mark));
        assert!(board.reached(mark) && !board.exists(A));
        // Nor does the mark wait for a later stream of that name.
        board.push(A, Step::Run(Box::new(|| ())));
        assert!(board.reached(mark) && board.exists(A));
    }

    #[test]
    fn a_retired_stream_ends_with_its_queue() {
        let mut board = Board::default();
        board.stream(A);
        board.retire(A);
        assert!(!board.exists(A), "it had no thread to end it");
        board.retire(A);
        assert!(!board.exists(A));
    }

    #[test]
    fn marks_of_a_destroyed_stream_stay_reached_when_its_name_comes_back() {
        let mut board = Board::default();
        board.push(A, Step::Run(Box::new(|| ())));
        let mark = board.mark(A);
        assert!(!board.reached(mark));
        board.complete(A, mark.number, None);
        assert!(board.remove_stream(A).is_none());
        assert!(board.reached(mark));
        board.push(A, Step::Run(Box::new(|| ())));
        assert!(board.reached(mark));
        let fresh = board.mark(A);
        assert!(!board.reached(fresh));
    }

    #[test]
    fn a_failure_is_reported_once_and_only_by_marks_behind_it() {
        let mut board = Board::default();
        let before = board.mark(A);
        board.push(A, Step::Run(Box::new(|| ())));
        let between = board.mark(A);
        board.push(A, Step::Run(Box::new(|| ())));
        board.complete(A, 1, Some("first".into()));
        board.complete(A, 2, Some("second".into()));
        assert_eq!(board.report(&[before]), Ok(()));
        let error = board.report(&[between]).unwrap_err().to_string();
        assert!(error.contains("first") && !error.contains("more"), "{error}");
        assert_eq!(board.report(&[between]), Ok(()));
        let end = board.mark(A);
        assert!(board.report(&[end]).unwrap_err().to_string().contains("second"));
    }

    #[test]
    fn created_streams_are_new() {
        let mut board = Board::default();
        board.stream(StreamId(2));
        assert_eq!([board.create_stream(), board.create_stream()], [StreamId(1), StreamId(3)]);
    }
}
