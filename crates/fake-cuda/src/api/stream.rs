//! Streams and events.

use std::ffi::c_uint;

use super::{entry, put};
use crate::codes::Code;

entry! {
    /// Makes a stream. Every stream runs beside the default stream, whatever the flags.
    fn cuStreamCreate(stream: *mut u64, flags: c_uint) |state| {
        let device = state.current()?;
        if stream.is_null() || flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = state.queues.create_stream(device);
        // SAFETY: the caller's promise.
        unsafe { put(stream, handle) }
    }
}

entry! {
    /// Ends a stream.
    fn cuStreamDestroy_v2(stream: u64) |state| {
        state.current()?;
        state.queues.destroy_stream(stream)
    }
}

entry! {
    /// Waits for what is queued on a stream.
    fn cuStreamSynchronize(stream: u64) by wait |state| {
        let queue = state.current().and_then(|device| state.queues.key(stream, device))?;
        state.captures.refuse_wait(queue)?;
        Ok(state.queues.try_finish(queue))
    }
}

entry! {
    /// Whether everything queued on a stream is done.
    fn cuStreamQuery(stream: u64) |state| {
        let queue = state.current().and_then(|device| state.queues.key(stream, device))?;
        state.captures.refuse_wait(queue)?;
        if state.queues.is_done(queue) { Ok(()) } else { Err(Code::NOT_READY) }
    }
}

entry! {
    /// Lets a stream wait for an event.
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) |state| {
        let queue = state.current().and_then(|device| state.queues.key(stream, device))?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if state.captures.wait(queue, event)? {
            return Ok(());
        }
        state.queues.wait_in_stream(queue, event)
    }
}

entry! {
    /// Makes an event.
    fn cuEventCreate(event: *mut u64, flags: c_uint) |state| {
        let device = state.current()?;
        if event.is_null() || flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        // Flag 2: without time.
        let handle = state.queues.create_event(device, flags & 2 == 0);
        // SAFETY: the caller's promise.
        unsafe { put(event, handle) }
    }
}

entry! {
    /// Ends an event.
    fn cuEventDestroy_v2(event: u64) |state| {
        state.current()?;
        state.queues.destroy_event(event)
    }
}

entry! {
    /// Puts an event behind what is queued on a stream.
    fn cuEventRecord(event: u64, stream: u64) |state| {
        let queue = state.current().and_then(|device| state.queues.key(stream, device))?;
        state.queues.own_event(event, queue)?;
        if state.captures.record(event, queue) {
            return Ok(());
        }
        state.queues.record(event, queue)
    }
}

entry! {
    /// Whether everything before an event is done.
    fn cuEventQuery(event: u64) |state| {
        state.current()?;
        state.captures.refuse_event(event)?;
        if state.queues.is_reached(event)? { Ok(()) } else { Err(Code::NOT_READY) }
    }
}

entry! {
    /// Waits until everything before an event is done.
    fn cuEventSynchronize(event: u64) by wait |state| {
        state.current()?;
        state.captures.refuse_event(event)?;
        state.queues.try_wait(event)
    }
}

entry! {
    /// The time between two events: a microsecond for each piece of work that was queued between them.
    fn cuEventElapsedTime(milliseconds: *mut f32, from: u64, to: u64) |state| {
        let between = state.queues.elapsed(from, to)?;
        // SAFETY: the caller's promise.
        unsafe { put(milliseconds, between as f32 / 1000.0) }
    }
}
