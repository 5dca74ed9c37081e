//! Streams and events: queues of marks that are reached in order, at once or when told.
//!
//! A piece of work is a mark in a queue. Recording an event names the newest mark; waiting for an
//! event puts a wait into another queue. A queue that is not held reaches everything up to a wait
//! for a mark that is not reached.

use std::collections::{BTreeMap, VecDeque};

use crate::codes::Code;

/// Names a queue: a stream's handle, or a device's default stream.
pub(crate) type Key = u64;

/// Handles of streams begin here, beyond the special ones.
const FIRST_STREAM: u64 = 0x5000_0000;

/// Handles of events begin here.
const FIRST_EVENT: u64 = 0x6000_0000;

/// Keys of default streams: beyond every handle.
const FIRST_DEFAULT: u64 = 1 << 48;

/// Handles 0 to 2 name the default stream of the current context.
const LAST_SPECIAL: u64 = 2;

#[derive(Clone, Copy, Debug)]
enum Entry {
    Mark(u64),
    Wait(Key, u64),
}

#[derive(Debug, Default)]
struct Queue {
    device: usize,
    entries: VecDeque<Entry>,
    /// The newest mark.
    queued: u64,
    /// The newest mark that was reached.
    reached: u64,
    held: bool,
    destroyed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    device: usize,
    mark: Option<(Key, u64)>,
    /// How much had been queued on any stream when it was recorded, for one with time.
    moment: Option<u64>,
    timed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Queues {
    queues: BTreeMap<Key, Queue>,
    events: BTreeMap<u64, Event>,
    /// Queues begin held.
    hold: bool,
    /// Waiting does not get there either.
    hold_waits: bool,
    /// Copies that their caller waits for do not end.
    hold_copies: bool,
    last: u64,
    /// Pieces of work so far, on all streams.
    work: u64,
}

impl Queues {
    /// Streams and events that were not destroyed.
    pub(crate) fn live(&self) -> [usize; 2] {
        let made = |(key, queue): &(&Key, &Queue)| **key < FIRST_DEFAULT && !queue.destroyed;
        [self.queues.iter().filter(made).count(), self.events.len()]
    }

    fn next_handle(&mut self, first: u64) -> u64 {
        self.last += 1;
        first + self.last * 0x10
    }

    // Streams.

    pub(crate) fn create_stream(&mut self, device: usize) -> u64 {
        let handle = self.next_handle(FIRST_STREAM);
        self.queues.insert(handle, Queue { device, held: self.hold, ..Queue::default() });
        handle
    }

    /// What is queued is still done.
    pub(crate) fn destroy_stream(&mut self, handle: u64) -> Result<(), Code> {
        let queue = self.queues.get_mut(&handle).filter(|queue| !queue.destroyed);
        queue.ok_or(Code::INVALID_HANDLE)?.destroyed = true;
        Ok(())
    }

    /// The queue behind a stream's handle, for a caller whose current context is `device`'s.
    pub(crate) fn key(&mut self, handle: u64, device: usize) -> Result<Key, Code> {
        if handle <= LAST_SPECIAL {
            let key = FIRST_DEFAULT + device as u64;
            let held = self.hold;
            self.queues.entry(key).or_insert_with(|| Queue { device, held, ..Queue::default() });
            return Ok(key);
        }
        match self.queues.get(&handle) {
            Some(queue) if !queue.destroyed => Ok(handle),
            _ => Err(Code::INVALID_HANDLE),
        }
    }

    /// Queues a piece of work.
    pub(crate) fn push(&mut self, key: Key) -> u64 {
        self.work += 1;
        let queue = self.queues.entry(key).or_default();
        queue.queued += 1;
        let mark = queue.queued;
        queue.entries.push_back(Entry::Mark(mark));
        self.advance();
        mark
    }

    pub(crate) fn is_done(&self, key: Key) -> bool {
        self.queues.get(&key).is_none_or(|queue| queue.entries.is_empty())
    }

    /// Waits for everything queued.
    pub(crate) fn finish(&mut self, key: Key) {
        self.force(key, u64::MAX);
        self.advance();
    }

    /// Waits for everything queued, unless waits are held; says whether it is done.
    pub(crate) fn try_finish(&mut self, key: Key) -> bool {
        if !self.hold_waits {
            self.finish(key);
        }
        self.is_done(key)
    }

    /// Waits for everything queued on a device, unless waits are held; says whether it is done.
    pub(crate) fn try_finish_device(&mut self, device: usize) -> bool {
        let keys: Vec<Key> = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.device == device)
            .map(|(key, _)| *key)
            .collect();
        // Each of them, whatever became of those before.
        keys.into_iter().filter(|key| !self.try_finish(*key)).count() == 0
    }

    /// Waits for what a copy that its caller waits for comes after; says whether it can be done now.
    pub(crate) fn try_copy(&mut self, key: Key) -> bool {
        self.try_finish(key) && !self.hold_copies
    }

    // Events.

    pub(crate) fn create_event(&mut self, device: usize, timed: bool) -> u64 {
        let handle = self.next_handle(FIRST_EVENT);
        self.events.insert(handle, Event { device, mark: None, moment: None, timed });
        handle
    }

    pub(crate) fn destroy_event(&mut self, handle: u64) -> Result<(), Code> {
        self.events.remove(&handle).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    /// An event is recorded on a stream of its own context only.
    pub(crate) fn own_event(&self, handle: u64, key: Key) -> Result<(), Code> {
        let device = self.queues.get(&key).map(|queue| queue.device);
        let event = self.events.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        if device == Some(event.device) { Ok(()) } else { Err(Code::INVALID_HANDLE) }
    }

    pub(crate) fn record(&mut self, handle: u64, key: Key) -> Result<(), Code> {
        self.own_event(handle, key)?;
        let moment = self.work;
        let mark = self.push(key);
        if let Some(event) = self.events.get_mut(&handle) {
            event.mark = Some((key, mark));
            event.moment = event.timed.then_some(moment);
        }
        Ok(())
    }

    /// Pieces of work, and marks, between two events with time.
    pub(crate) fn elapsed(&self, from: u64, to: u64) -> Result<i64, Code> {
        let moment = |handle| {
            let event = self.events.get(&handle).ok_or(Code::INVALID_HANDLE)?;
            let moment = event.moment.ok_or(Code::INVALID_HANDLE)?;
            if self.is_reached(handle)? { Ok(moment as i64) } else { Err(Code::NOT_READY) }
        };
        Ok(moment(to)? - moment(from)?)
    }

    /// Whether the event's mark was reached. One that was never recorded counts as reached.
    pub(crate) fn is_reached(&self, handle: u64) -> Result<bool, Code> {
        let event = self.events.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        Ok(event.mark.is_none_or(|(key, mark)| self.reached(key, mark)))
    }

    /// Waits for the event's mark, unless waits are held; says whether it was reached.
    pub(crate) fn try_wait(&mut self, handle: u64) -> Result<bool, Code> {
        let event = self.events.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        if let Some((key, mark)) = event.mark
            && !self.hold_waits
        {
            self.force(key, mark);
            self.advance();
        }
        self.is_reached(handle)
    }

    /// Lets what is queued from now on wait for the event.
    pub(crate) fn wait_in_stream(&mut self, key: Key, handle: u64) -> Result<(), Code> {
        let event = self.events.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        if let Some((other, mark)) = event.mark {
            self.queues.entry(key).or_default().entries.push_back(Entry::Wait(other, mark));
            self.advance();
        }
        Ok(())
    }

    // Lateness.

    /// Nothing is reached any more until told; waiting still gets there.
    pub(crate) fn hold_all(&mut self) {
        self.hold = true;
        self.queues.values_mut().for_each(|queue| queue.held = true);
    }

    /// The same, and whoever waits for an event or a stream waits until told as well.
    pub(crate) fn hold_waits(&mut self) {
        self.hold_all();
        self.hold_waits = true;
    }

    /// Copies that their caller waits for take until told.
    pub(crate) fn hold_copies(&mut self) {
        self.hold_copies = true;
    }

    pub(crate) fn hold(&mut self, key: Key) {
        self.queues.entry(key).or_default().held = true;
    }

    /// Everything queued, now or later, is reached again.
    pub(crate) fn complete_all(&mut self) {
        self.hold = false;
        self.hold_waits = false;
        self.hold_copies = false;
        self.queues.values_mut().for_each(|queue| queue.held = false);
        self.advance();
    }

    pub(crate) fn complete(&mut self, key: Key) {
        self.queues.entry(key).or_default().held = false;
        self.advance();
    }

    fn reached(&self, key: Key, mark: u64) -> bool {
        self.queues.get(&key).is_none_or(|queue| queue.reached >= mark)
    }

    /// Runs every queue that is not held, as far as it goes.
    fn advance(&mut self) {
        let keys: Vec<Key> = self.queues.keys().copied().collect();
        loop {
            let steps = keys.iter().filter(|key| self.step(**key)).count();
            if steps == 0 {
                return;
            }
        }
    }

    /// Takes one entry off a queue, if it is not held and need not wait.
    fn step(&mut self, key: Key) -> bool {
        let Some(queue) = self.queues.get(&key).filter(|queue| !queue.held) else { return false };
        let passes = match queue.entries.front() {
            Some(Entry::Mark(_)) => true,
            Some(&Entry::Wait(other, mark)) => self.reached(other, mark),
            None => false,
        };
        if passes {
            self.pass(key);
        }
        passes
    }

    fn pass(&mut self, key: Key) -> Option<Entry> {
        let queue = self.queues.get_mut(&key)?;
        let entry = queue.entries.pop_front()?;
        if let Entry::Mark(mark) = entry {
            queue.reached = mark;
        }
        Some(entry)
    }

    /// Runs a queue up to a mark, held or not, and whatever it waits for. A wait names a mark that
    /// was queued earlier, so this ends.
    fn force(&mut self, key: Key, mark: u64) {
        while self.queues.get(&key).is_some_and(|queue| queue.reached < mark) {
            match self.pass(key) {
                Some(Entry::Wait(other, mark)) => self.force(other, mark),
                Some(Entry::Mark(_)) => {}
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_makes_one_stream_late_by_another() {
        let mut queues = Queues::default();
        let [one, two] = [0, 0].map(|device| queues.create_stream(device));
        let [first, second] = [0, 0].map(|device| queues.create_event(device, false));
        queues.hold(one);
        queues.record(first, one).unwrap();
        queues.wait_in_stream(two, first).unwrap();
        queues.record(second, two).unwrap();
        assert_eq!((queues.is_reached(first), queues.is_reached(second)), (Ok(false), Ok(false)));
        queues.complete(one);
        assert_eq!((queues.is_reached(first), queues.is_reached(second)), (Ok(true), Ok(true)));
    }

    #[test]
    fn waiting_reaches_what_was_queued_before_and_nothing_after() {
        let mut queues = Queues::default();
        let [one, two] = [0, 0].map(|device| queues.create_stream(device));
        let events = [0; 4].map(|device| queues.create_event(device, false));
        queues.hold_all();
        queues.record(events[0], one).unwrap();
        queues.record(events[1], one).unwrap();
        queues.wait_in_stream(two, events[0]).unwrap();
        queues.record(events[2], two).unwrap();
        queues.record(events[3], two).unwrap();
        assert_eq!(queues.try_wait(events[2]), Ok(true));
        let reached = events.map(|event| queues.is_reached(event).unwrap());
        assert_eq!(reached, [true, false, true, false]);
        assert!(!queues.is_done(two));
        queues.finish(two);
        assert!(queues.is_done(two));
        assert!(!queues.is_done(one));
    }

    #[test]
    fn waits_that_are_held_get_there_when_told() {
        let mut queues = Queues::default();
        let (stream, event) = (queues.create_stream(0), queues.create_event(0, false));
        queues.hold_waits();
        queues.record(event, stream).unwrap();
        assert_eq!((queues.try_wait(event), queues.try_finish(stream)), (Ok(false), false));
        queues.complete_all();
        assert_eq!((queues.try_wait(event), queues.try_finish(stream)), (Ok(true), true));
    }

    #[test]
    fn a_device_is_done_when_all_its_streams_are() {
        let mut queues = Queues::default();
        let [one, two, other] = [0, 0, 1].map(|device| queues.create_stream(device));
        queues.hold_waits();
        queues.push(one);
        queues.push(other);
        assert!(queues.try_finish(two) && !queues.try_finish_device(0));
        queues.complete(one);
        assert!(queues.try_finish_device(0) && !queues.try_finish_device(1));
    }

    #[test]
    fn a_copy_comes_after_its_stream_and_takes_until_told() {
        let mut queues = Queues::default();
        let stream = queues.create_stream(0);
        queues.hold_all();
        queues.push(stream);
        queues.hold_copies();
        assert!(!queues.try_copy(stream) && queues.is_done(stream));
        queues.complete_all();
        assert!(queues.try_copy(stream));
    }
}
