//! Events of the runtime on those of the device.

use std::collections::BTreeMap;

use tonnage_cuda_codes::Code;
use tonnage_device::{Device, EventId};
use tonnage_events::StreamId;

use crate::captures::Place;
use crate::state::{State, code_of};

/// Events by handle.
#[derive(Debug, Default)]
pub(crate) struct Events {
    known: BTreeMap<u64, Mark>,
}

/// What an event was last recorded as.
#[derive(Clone, Debug, Default)]
struct Mark {
    on_device: Option<EventId>,
    /// Where its stream was in a capture.
    captured: Option<Place>,
}

impl State {
    pub(crate) fn create_event(&mut self) -> u64 {
        let handle = self.next_handle();
        self.events.known.insert(handle, Mark::default());
        handle
    }

    pub(crate) fn destroy_event(&mut self, handle: u64) -> Result<(), Code> {
        let mark = self.events.known.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.forget_mark(&mark)
    }

    /// Marks the end of what is queued; an earlier mark is forgotten.
    pub(crate) fn record_event(&mut self, handle: u64, stream: u64) -> Result<(), Code> {
        let known = self.events.known.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
        let on_device = Some(self.device.record_event(StreamId(stream)).map_err(code_of)?);
        let mark = Mark { on_device, captured: self.captures.at(stream).cloned() };
        let before = std::mem::replace(known, mark);
        self.forget_mark(&before)
    }

    fn forget_mark(&mut self, mark: &Mark) -> Result<(), Code> {
        match mark.on_device {
            Some(event) => self.device.destroy_event(event).map_err(code_of),
            None => Ok(()),
        }
    }

    /// Whether the mark was reached. An event that was never recorded counts as reached.
    pub(crate) fn is_reached(&mut self, handle: u64) -> Result<bool, Code> {
        let mark = self.events.known.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        mark.on_device.map_or(Ok(true), |event| self.device.query_event(event).map_err(code_of))
    }

    /// The stream goes on after the mark; if that is part of a capture, so is the stream from now on.
    pub(crate) fn wait_for_event(&mut self, stream: u64, handle: u64) {
        let captured = self.events.known.get(&handle).and_then(|mark| mark.captured.as_ref());
        if let Some(place) = captured {
            self.captures.join(stream, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_recorded_again_means_the_later_mark() {
        let mut state = State::new(1 << 30, 1 << 30);
        let event = state.create_event();
        assert_eq!(state.is_reached(event), Ok(true));
        state.device.hold_events();
        state.record_event(event, 1).unwrap();
        assert_eq!(state.is_reached(event), Ok(false));
        state.device.complete_events_of(StreamId(2));
        state.record_event(event, 2).unwrap();
        assert_eq!(state.is_reached(event), Ok(true));
        state.destroy_event(event).unwrap();
        assert_eq!(state.device.handles(), 0);
        assert_eq!(state.is_reached(event), Err(Code::INVALID_HANDLE));
    }

    #[test]
    fn a_stream_that_waits_for_a_captured_one_is_captured_with_it() {
        let mut state = State::new(1 << 30, 1 << 30);
        let (event, late) = (state.create_event(), state.create_event());
        state.captures.begin(1);
        state.record_event(event, 1).unwrap();
        state.wait_for_event(2, event);
        assert_eq!(state.captures.of(2), state.captures.of(1));
        assert_eq!(state.captures.of(3), None);
        state.captures.end(1);
        assert_eq!(state.captures.of(2), None);
        state.wait_for_event(3, event);
        assert_eq!(state.captures.of(3), None, "that capture has ended");
        state.wait_for_event(3, late);
        assert_eq!(state.captures.of(3), None);
    }
}
