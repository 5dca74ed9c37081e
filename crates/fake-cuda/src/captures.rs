//! Captured work: graphs.
//!
//! A capture begins on a stream; streams that wait for a mark of it join, and come back when one in the capture waits
//! for their newest mark.

use std::collections::{BTreeMap, BTreeSet};

use crate::codes::Code;
use crate::queues::Key;
use crate::work::Work;

/// Handles of graphs begin here.
const FIRST_GRAPH: u64 = 0x9000_0000;

#[derive(Debug)]
struct Capture {
    origin: Key,
    streams: BTreeSet<Key>,
    /// Streams with work that nobody has waited for.
    apart: BTreeSet<Key>,
    work: Vec<Work>,
    /// Someone waited for what is only written down.
    is_broken: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Captures {
    open: BTreeMap<u64, Capture>,
    /// Events that were recorded in a capture, and on which stream.
    events: BTreeMap<u64, (u64, Key)>,
    graphs: BTreeMap<u64, Vec<Work>>,
    execs: BTreeMap<u64, Vec<Work>>,
    last: u64,
}

impl Captures {
    /// Graphs, of both kinds, that were not destroyed.
    pub(crate) fn live(&self) -> usize {
        self.graphs.len() + self.execs.len()
    }

    /// The capture that a stream is part of.
    fn of(&self, stream: Key) -> Option<u64> {
        self.open.iter().find(|(_, it)| it.streams.contains(&stream)).map(|(id, _)| *id)
    }

    pub(crate) fn is_captured(&self, stream: Key) -> bool {
        self.of(stream).is_some()
    }

    /// Waiting for what is only written down is refused, and breaks the capture.
    pub(crate) fn refuse_wait(&mut self, stream: Key) -> Result<(), Code> {
        match self.of(stream) {
            Some(id) => Err(self.broken(id, Code::CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// The same for an event.
    pub(crate) fn refuse_event(&mut self, event: u64) -> Result<(), Code> {
        match self.events.get(&event) {
            Some(&(id, _)) => Err(self.broken(id, Code::CAPTURED_EVENT)),
            None => Ok(()),
        }
    }

    /// The same for everything.
    pub(crate) fn refuse_context(&mut self) -> Result<(), Code> {
        if self.open.is_empty() {
            return Ok(());
        }
        self.open.values_mut().for_each(|it| it.is_broken = true);
        Err(Code::CAPTURE_UNSUPPORTED)
    }

    fn broken(&mut self, id: u64, code: Code) -> Code {
        if let Some(capture) = self.open.get_mut(&id) {
            capture.is_broken = true;
        }
        code
    }

    pub(crate) fn begin(&mut self, stream: Key) -> Result<(), Code> {
        if self.is_captured(stream) {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        self.last += 1;
        let streams = BTreeSet::from([stream]);
        let (apart, work) = (BTreeSet::new(), Vec::new());
        let capture = Capture { origin: stream, streams, apart, work, is_broken: false };
        self.open.insert(self.last, capture);
        Ok(())
    }

    /// Writes work down, if the stream is captured; otherwise it comes back.
    pub(crate) fn take(&mut self, stream: Key, work: Work) -> Option<Work> {
        let Some(capture) = self.of(stream).and_then(|id| self.open.get_mut(&id)) else {
            return Some(work);
        };
        capture.work.push(work);
        if stream != capture.origin {
            capture.apart.insert(stream);
        }
        None
    }

    /// Notes a mark; whether it is one of a capture.
    pub(crate) fn record(&mut self, event: u64, stream: Key) -> bool {
        let capture = self.of(stream);
        match capture {
            Some(id) => self.events.insert(event, (id, stream)),
            None => self.events.remove(&event),
        };
        capture.is_some()
    }

    /// Lets a stream wait for a mark of a capture, which it joins; whether the mark is one.
    pub(crate) fn wait(&mut self, stream: Key, event: u64) -> Result<bool, Code> {
        let Some(&(id, from)) = self.events.get(&event) else {
            // A mark from outside is no part of what is written down.
            return if self.is_captured(stream) { Err(Code::CAPTURE_ISOLATION) } else { Ok(false) };
        };
        if self.of(stream).is_some_and(|other| other != id) {
            return Err(Code::CAPTURE_MERGE);
        }
        let capture = self.open.get_mut(&id).ok_or(Code::CAPTURED_EVENT)?;
        if capture.streams.insert(stream) {
            capture.apart.insert(stream);
        }
        capture.apart.remove(&from);
        Ok(true)
    }

    pub(crate) fn end(&mut self, stream: Key) -> Result<u64, Code> {
        let id = self.of(stream).ok_or(Code::CAPTURE_UNMATCHED)?;
        if self.open.get(&id).is_some_and(|capture| capture.origin != stream) {
            return Err(Code::CAPTURE_UNMATCHED);
        }
        let capture = self.open.remove(&id).ok_or(Code::CAPTURE_UNMATCHED)?;
        if capture.is_broken {
            return Err(Code::CAPTURE_INVALIDATED);
        }
        if !capture.apart.is_empty() {
            return Err(Code::CAPTURE_UNJOINED);
        }
        self.last += 1;
        let handle = FIRST_GRAPH + self.last * 0x10;
        self.graphs.insert(handle, capture.work);
        Ok(handle)
    }

    /// The number of pieces of work of a graph.
    pub(crate) fn nodes(&self, graph: u64) -> Result<usize, Code> {
        self.graphs.get(&graph).map(Vec::len).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn instantiate(&mut self, graph: u64) -> Result<u64, Code> {
        let work = self.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.clone();
        self.last += 1;
        let handle = FIRST_GRAPH + self.last * 0x10;
        self.execs.insert(handle, work);
        Ok(handle)
    }

    pub(crate) fn work(&self, exec: u64) -> Result<Vec<Work>, Code> {
        self.execs.get(&exec).cloned().ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn destroy(&mut self, graph: u64) -> Result<(), Code> {
        self.graphs.remove(&graph).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn destroy_exec(&mut self, exec: u64) -> Result<(), Code> {
        self.execs.remove(&exec).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }
}
