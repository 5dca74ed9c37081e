//! Calls about streams and events, in the current context.
//!
//! Handles are pointers that the driver follows without looking: every function that takes one
//! asks for the promise that it is alive.

use crate::DeviceError;
use crate::cuda::context::Current;
use crate::cuda::graph::NoCapture;
use crate::cuda::sys::*;

impl Current<'_> {
    /// Waits for all work of the context, that of others in this process included. Refused while work of anyone is captured
    /// there.
    pub(in crate::cuda) fn synchronize_context(&self) -> Result<(), DeviceError> {
        let Some(_none) = NoCapture::in_context(self.context()) else {
            let what =
                "a graph is being captured: what is captured is not done, and waiting breaks it";
            return Err(DeviceError::misuse("synchronize_context", what));
        };
        // SAFETY: takes nothing; the device's context is current.
        let code = unsafe { (self.table().context_synchronize)() };
        self.check("cuCtxSynchronize", code)
    }

    /// A stream that does not wait for the legacy default stream, the caller's until
    /// `stream_destroy`.
    pub(in crate::cuda) fn stream_create(&self) -> Result<CUstream, DeviceError> {
        let mut stream = CUstream::NULL;
        // SAFETY: `stream` is a place for one handle. The caller destroys it.
        let code = unsafe { (self.table().stream_create)(&mut stream, STREAM_NON_BLOCKING) };
        self.check("cuStreamCreate", code)?;
        Ok(stream)
    }

    /// Ends a stream; what is queued on it is still done.
    ///
    /// # Safety
    ///
    /// The stream is the caller's, from `stream_create`, and is not used from now on.
    pub(in crate::cuda) unsafe fn stream_destroy(
        &self,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().stream_destroy)(stream) };
        self.check("cuStreamDestroy", code)
    }

    /// Waits for what is queued on `stream`.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context, not destroyed.
    pub(in crate::cuda) unsafe fn stream_synchronize(
        &self,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().stream_synchronize)(stream) };
        self.check("cuStreamSynchronize", code)
    }

    /// Whether everything queued on `stream` is done.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context, not destroyed.
    pub(in crate::cuda) unsafe fn stream_query(
        &self,
        stream: CUstream,
    ) -> Result<bool, DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().stream_query)(stream) };
        self.check_ready("cuStreamQuery", code)
    }

    /// Lets what is queued on `stream` from now on wait for `event`.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context, and `event` an event; neither is destroyed.
    pub(in crate::cuda) unsafe fn stream_wait_event(
        &self,
        stream: CUstream,
        event: CUevent,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().stream_wait_event)(stream, event, 0) };
        self.check("cuStreamWaitEvent", code)
    }

    /// An event without time, the caller's until `event_destroy`.
    pub(in crate::cuda) fn event_create(&self) -> Result<CUevent, DeviceError> {
        let mut event = CUevent::NULL;
        // SAFETY: `event` is a place for one handle. The caller destroys it.
        let code = unsafe { (self.table().event_create)(&mut event, EVENT_DISABLE_TIMING) };
        self.check("cuEventCreate", code)?;
        Ok(event)
    }

    /// An event that knows when it was reached, the caller's until `event_destroy`.
    pub(in crate::cuda) fn timed_event_create(&self) -> Result<CUevent, DeviceError> {
        let mut event = CUevent::NULL;
        // SAFETY: `event` is a place for one handle. The caller destroys it.
        let code = unsafe { (self.table().event_create)(&mut event, EVENT_DEFAULT) };
        self.check("cuEventCreate", code)?;
        Ok(event)
    }

    /// Milliseconds from one event to another.
    ///
    /// # Safety
    ///
    /// Both are events with time, not destroyed.
    pub(in crate::cuda) unsafe fn event_elapsed(
        &self,
        from: CUevent,
        to: CUevent,
    ) -> Result<f32, DeviceError> {
        let mut milliseconds = 0.0;
        // SAFETY: `milliseconds` is a place for one number; the events are good by promise.
        let code = unsafe { (self.table().event_elapsed)(&mut milliseconds, from, to) };
        self.check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }

    /// Ends an event; if it is still to come, the driver keeps what it needs.
    ///
    /// # Safety
    ///
    /// The event is the caller's, from `event_create`, and is not used from now on.
    pub(in crate::cuda) unsafe fn event_destroy(&self, event: CUevent) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().event_destroy)(event) };
        self.check("cuEventDestroy", code)
    }

    /// Puts the mark behind what is queued on `stream` now.
    ///
    /// # Safety
    ///
    /// `event` is an event and `stream` a stream of this context; neither is destroyed.
    pub(in crate::cuda) unsafe fn event_record(
        &self,
        event: CUevent,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().event_record)(event, stream) };
        self.check("cuEventRecord", code)
    }

    /// Whether everything before the mark is done.
    ///
    /// # Safety
    ///
    /// `event` is an event, not destroyed.
    pub(in crate::cuda) unsafe fn event_query(&self, event: CUevent) -> Result<bool, DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().event_query)(event) };
        self.check_ready("cuEventQuery", code)
    }

    /// Waits until everything before the mark is done.
    ///
    /// # Safety
    ///
    /// `event` is an event, not destroyed.
    pub(in crate::cuda) unsafe fn event_synchronize(
        &self,
        event: CUevent,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().event_synchronize)(event) };
        self.check("cuEventSynchronize", code)
    }
}
