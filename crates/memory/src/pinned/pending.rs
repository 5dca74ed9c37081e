//! Memory of dropped blocks that streams may still use, and what it waits for.

use std::mem::ManuallyDrop;

use tonnage_device::{DeviceError, EventId};
use tonnage_events::StreamId;

use crate::pinned::span::Span;
use crate::waiting::Events;

/// Memory that streams may still use. Lost on the way, by a panic or because nobody can wait, it
/// leaks rather than goes.
pub(super) struct Pending {
    pub(super) span: ManuallyDrop<Span>,
    /// What is not known to be done.
    pub(super) marks: Vec<Mark>,
}

impl Pending {
    pub(super) fn new(span: Span, streams: Vec<StreamId>) -> Self {
        let marks = streams.into_iter().map(Mark::Stream).collect();
        Self { span: ManuallyDrop::new(span), marks }
    }

    /// Marks the end of every stream's work. A stream that cannot be marked now is marked later,
    /// which is never too early.
    pub(super) fn record(&mut self, events: &mut Events<'_>) -> Result<(), DeviceError> {
        let recorded = self.marks.iter_mut().map(|mark| mark.record(events).map(drop));
        recorded.fold(Ok(()), Result::and)
    }

    /// Strikes out the marks that are reached.
    pub(super) fn poll(&mut self, events: &mut Events<'_>, failure: &mut Option<DeviceError>) {
        self.marks.retain_mut(|mark| match mark.is_reached(events) {
            Ok(reached) => !reached,
            Err(error) => {
                failure.get_or_insert(error);
                true
            }
        });
    }

    /// Waits for every mark; says whether that could be done.
    pub(super) fn wait(&mut self, events: &mut Events<'_>) -> bool {
        self.marks.iter_mut().all(|mark| {
            // The first try may return an error of work that is done.
            mark.wait(events).or_else(|_| mark.wait(events)).is_ok()
        })
    }
}

/// The end of a stream's work at some moment.
pub(super) enum Mark {
    /// Not recorded yet.
    Stream(StreamId),
    Event(EventId),
}

impl Mark {
    fn record(&mut self, events: &mut Events<'_>) -> Result<EventId, DeviceError> {
        let event = match *self {
            Self::Stream(stream) => events.record(stream)?,
            Self::Event(event) => event,
        };
        *self = Self::Event(event);
        Ok(event)
    }

    /// Whether the work is done; the event is forgotten then.
    fn is_reached(&mut self, events: &mut Events<'_>) -> Result<bool, DeviceError> {
        let event = self.record(events)?;
        let reached = events.query(event)?;
        if reached {
            events.destroy(event)?;
        }
        Ok(reached)
    }

    fn wait(&mut self, events: &mut Events<'_>) -> Result<(), DeviceError> {
        let event = self.record(events)?;
        events.wait(event)
    }
}
