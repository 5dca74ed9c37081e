//! Perfetto's packets: tracks, slices, counters, instants, and names that are written once.
//!
//! In:  what is to be shown, in the order of time.
//! Out: the bytes of a trace. Field numbers are those of Perfetto's published protocol.
//!
//! Packets of one *sequence* share a table of names, and their times ascend. Times are nanoseconds and
//! never go back, so that entries of the same microsecond keep their order in every viewer.

use std::hash::Hash;
use std::io::Write;

use rustc_hash::FxHashMap;

use super::protobuf::Message;
use crate::error::ExportError;

/// `Trace.packet`.
const PACKET: u32 = 1;

/// Fields of `TracePacket`.
mod packet {
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED: u32 = 12;
    pub(super) const FLAGS: u32 = 13;
    pub(super) const TRACK: u32 = 60;
    /// The table of names begins anew; the packet needs the table.
    pub(super) const CLEARED: u64 = 1;
    pub(super) const NEEDS_NAMES: u64 = 2;
}

/// Fields of `TrackDescriptor`, and of the descriptors in it.
mod track {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const PARENT: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
    pub(super) const PROCESS_PID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const COUNTER_UNIT: u32 = 3;
    pub(super) const UNIT_BYTES: u64 = 3;
}

/// Fields of `TrackEvent` and `DebugAnnotation`.
mod event {
    pub(super) const ANNOTATIONS: u32 = 4;
    pub(super) const KIND: u32 = 9;
    pub(super) const NAME: u32 = 10;
    pub(super) const TRACK: u32 = 11;
    pub(super) const COUNTER: u32 = 30;
    pub(super) const ANNOTATION_NAME: u32 = 1;
    pub(super) const ANNOTATION_NUMBER: u32 = 3;
    pub(super) const ANNOTATION_POINTER: u32 = 7;
    pub(super) const ANNOTATION_TEXT: u32 = 17;
}

/// Fields of `InternedData`: tables of names.
mod interned {
    pub(super) const EVENT_NAMES: u32 = 2;
    pub(super) const ANNOTATION_NAMES: u32 = 3;
    pub(super) const ANNOTATION_TEXTS: u32 = 29;
    pub(super) const ID: u32 = 1;
    pub(super) const TEXT: u32 = 2;
}

/// Values of `TrackEvent.Type`.
#[derive(Clone, Copy)]
enum Kind {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// A track, by its number in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Track(u64);

/// What is said of a slice or an instant.
#[derive(Clone, Copy)]
pub(super) enum Argument {
    Bytes(u64),
    Number(u64),
    Address(u64),
}

/// Ids of a table of names.
struct Names<K>(FxHashMap<K, u64>);

impl<K: Eq + Hash> Names<K> {
    /// The id of a name, and whether it is new.
    fn id(&mut self, key: K) -> (u64, bool) {
        // Zero means none.
        let next = self.0.len() as u64 + 1;
        let id = *self.0.entry(key).or_insert(next);
        (id, id == next)
    }
}

/// Writes the packets of one sequence.
pub(super) struct Packets<W, N, T> {
    out: W,
    sequence: u64,
    tracks: u64,
    begun: bool,
    last_ns: u64,
    names: Names<N>,
    argument_names: Names<&'static str>,
    texts: Names<T>,
    /// New names, to go with the next packet.
    new_names: Message,
}

/// What a slice or an instant says besides its name.
pub(super) struct Said<'a, T> {
    pub(super) arguments: &'a [(&'static str, Argument)],
    /// A longer text, by its key, with how to make it when it is new.
    pub(super) text: Option<(&'static str, T, &'a dyn Fn() -> String)>,
}

impl<T> Said<'_, T> {
    pub(super) const NOTHING: Self = Self { arguments: &[], text: None };
}

impl<W: Write, N: Eq + Hash, T: Eq + Hash + Copy> Packets<W, N, T> {
    /// The sequence with this number, from 0.
    pub(super) fn new(out: W, sequence: u32) -> Self {
        Self {
            out,
            sequence: u64::from(sequence) + 1,
            tracks: 0,
            begun: false,
            last_ns: 0,
            names: Names(FxHashMap::default()),
            argument_names: Names(FxHashMap::default()),
            texts: Names(FxHashMap::default()),
            new_names: Message::default(),
        }
    }

    fn new_track(&mut self) -> Track {
        self.tracks += 1;
        Track(self.sequence << 32 | self.tracks)
    }

    /// A process: the group that other tracks belong to.
    pub(super) fn process(&mut self, name: &str) -> Result<Track, ExportError> {
        let track = self.new_track();
        let pid = self.sequence;
        self.describe(|it| {
            it.number(track::UUID, track.0).message(track::PROCESS, |process| {
                process.number(track::PROCESS_PID, pid).text(track::PROCESS_NAME, name);
            });
        })?;
        Ok(track)
    }

    /// A track of slices and instants. Those of one parent with the same name are shown as one.
    pub(super) fn slices(&mut self, parent: Track, name: &str) -> Result<Track, ExportError> {
        let track = self.new_track();
        self.describe(|it| {
            it.number(track::UUID, track.0).text(track::NAME, name).number(track::PARENT, parent.0);
        })?;
        Ok(track)
    }

    /// A track with a level in bytes.
    pub(super) fn counter(&mut self, parent: Track, name: &str) -> Result<Track, ExportError> {
        let track = self.new_track();
        self.describe(|it| {
            it.number(track::UUID, track.0).text(track::NAME, name).number(track::PARENT, parent.0);
            it.message(track::COUNTER, |counter| {
                counter.number(track::COUNTER_UNIT, track::UNIT_BYTES);
            });
        })?;
        Ok(track)
    }

    /// Goes on to this time, or just behind the last one if that is later.
    pub(super) fn advance(&mut self, time_us: u64) {
        self.last_ns = time_us.saturating_mul(1_000).max(self.last_ns.saturating_add(1));
    }

    pub(super) fn begin(
        &mut self,
        track: Track,
        name: N,
        text: &dyn Fn() -> String,
        said: &Said<'_, T>,
    ) -> Result<(), ExportError> {
        self.named(Kind::SliceBegin, track, name, text, said)
    }

    pub(super) fn instant(
        &mut self,
        track: Track,
        name: N,
        text: &dyn Fn() -> String,
        said: &Said<'_, T>,
    ) -> Result<(), ExportError> {
        self.named(Kind::Instant, track, name, text, said)
    }

    pub(super) fn end(&mut self, track: Track) -> Result<(), ExportError> {
        self.event(Kind::SliceEnd, track, &Message::default())
    }

    pub(super) fn level(&mut self, track: Track, bytes: u64) -> Result<(), ExportError> {
        let mut more = Message::default();
        // The field is signed; no device has as much as would not fit.
        more.number(event::COUNTER, bytes.min(i64::MAX.cast_unsigned()));
        self.event(Kind::Counter, track, &more)
    }

    fn named(
        &mut self,
        kind: Kind,
        track: Track,
        name: N,
        text: &dyn Fn() -> String,
        said: &Said<'_, T>,
    ) -> Result<(), ExportError> {
        let (name, new) = self.names.id(name);
        if new {
            self.new_name(interned::EVENT_NAMES, name, &text());
        }
        let mut more = Message::default();
        more.number(event::NAME, name);
        for &(name, argument) in said.arguments {
            let name = self.argument_name(name);
            more.message(event::ANNOTATIONS, |it| {
                it.number(event::ANNOTATION_NAME, name);
                match argument {
                    Argument::Bytes(value) | Argument::Number(value) => {
                        it.number(event::ANNOTATION_NUMBER, value)
                    }
                    Argument::Address(value) => it.number(event::ANNOTATION_POINTER, value),
                };
            });
        }
        if let Some((name, key, text)) = said.text {
            let name = self.argument_name(name);
            let (id, new) = self.texts.id(key);
            if new {
                self.new_name(interned::ANNOTATION_TEXTS, id, &text());
            }
            more.message(event::ANNOTATIONS, |it| {
                it.number(event::ANNOTATION_NAME, name).number(event::ANNOTATION_TEXT, id);
            });
        }
        self.event(kind, track, &more)
    }

    fn argument_name(&mut self, name: &'static str) -> u64 {
        let (id, new) = self.argument_names.id(name);
        if new {
            self.new_name(interned::ANNOTATION_NAMES, id, name);
        }
        id
    }

    fn new_name(&mut self, table: u32, id: u64, text: &str) {
        self.new_names.message(table, |it| {
            it.number(interned::ID, id).text(interned::TEXT, text);
        });
    }

    fn event(&mut self, kind: Kind, track: Track, more: &Message) -> Result<(), ExportError> {
        let mut message = Message::default();
        message.number(packet::TIMESTAMP, self.last_ns);
        if !self.new_names.is_empty() {
            let names = std::mem::take(&mut self.new_names);
            message.message(packet::INTERNED, |it| it.append(&names));
        }
        message.message(packet::TRACK_EVENT, |it| {
            it.number(event::KIND, kind as u64).number(event::TRACK, track.0).append(more);
        });
        self.write(message)
    }

    fn describe(&mut self, fill: impl FnOnce(&mut Message)) -> Result<(), ExportError> {
        let mut message = Message::default();
        message.message(packet::TRACK, fill);
        self.write(message)
    }

    fn write(&mut self, mut message: Message) -> Result<(), ExportError> {
        let flags = if self.begun { packet::NEEDS_NAMES } else { packet::CLEARED };
        self.begun = true;
        message.number(packet::SEQUENCE, self.sequence).number(packet::FLAGS, flags);
        let mut trace = Message::default();
        trace.message(PACKET, |it| it.append(&message));
        self.out.write_all(trace.as_bytes())?;
        Ok(())
    }
}
