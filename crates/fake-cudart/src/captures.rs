//! Which streams are being captured into which graph.

use std::collections::BTreeMap;

/// The number of a capture in which a test has put every stream.
const TOLD: u64 = 7;

/// Captures that are under way.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    /// Whether a test has said that every stream is being captured.
    pub(crate) everything: bool,
    /// The capture of each stream.
    streams: BTreeMap<u64, u64>,
    last: u64,
}

impl Captures {
    /// The capture that a stream is part of.
    pub(crate) fn of(&self, stream: u64) -> Option<u64> {
        if self.everything { Some(TOLD) } else { self.streams.get(&stream).copied() }
    }

    /// A capture begins on this stream.
    pub(crate) fn begin(&mut self, stream: u64) {
        self.last += 1;
        self.streams.insert(stream, TOLD + self.last);
    }

    /// The stream joins a capture, if that is still under way.
    pub(crate) fn join(&mut self, stream: u64, capture: u64) {
        if self.streams.values().any(|&other| other == capture) {
            self.streams.insert(stream, capture);
        }
    }

    /// The capture of this stream ends, for all of its streams; its number.
    pub(crate) fn end(&mut self, stream: u64) -> Option<u64> {
        let ended = self.streams.get(&stream).copied()?;
        self.streams.retain(|_, capture| *capture != ended);
        Some(ended)
    }
}
