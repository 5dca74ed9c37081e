//! Streams: the driver's own, ours, and those of others.
//!
//! A [`StreamId`] is the driver's handle as a number, as it is in PyTorch's recordings. The driver
//! follows a handle without looking, so only known ones are passed on: the default streams, those
//! that [`Cuda::create_stream`] made, and those that the caller vouches for
//! ([`Cuda::adopt_stream`]).

use std::collections::{BTreeMap, BTreeSet};

use tonnage_events::StreamId;

use super::Cuda;
use super::sys::CUstream;
use crate::{Device as _, DeviceError, EventId};

/// The default streams: legacy by its two names, and the thread's own.
const DEFAULTS: std::ops::RangeInclusive<u64> = 0..=2;

/// Who ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Device,
    Another,
}

/// The streams that may be named, besides the default ones.
#[derive(Debug, Default)]
pub(super) struct Streams {
    known: BTreeMap<StreamId, Owner>,
    /// Streams that have ended or were forgotten. Memory that was used on them may still be named by them.
    ended: BTreeSet<StreamId>,
    /// Streams of others that were left, whatever is still queued on them: a stream of ours waits for that in their place.
    left: BTreeSet<StreamId>,
    stand_in: Option<StreamId>,
    /// Streams whose work is written down for a graph.
    captured: BTreeSet<StreamId>,
}

impl Streams {
    /// The handle behind a known number.
    pub(super) fn get(
        &self,
        call: &'static str,
        stream: StreamId,
    ) -> Result<CUstream, DeviceError> {
        if !DEFAULTS.contains(&stream.0) && !self.known.contains_key(&stream) {
            return Err(DeviceError::misuse(call, format!("no stream {:#x}", stream.0)));
        }
        Ok(CUstream(std::ptr::with_exposed_provenance_mut(stream.0 as usize)))
    }

    /// The handle behind a known number, or for a stream that has ended the default stream: nothing
    /// is queued on it any more, so what waits for another waits for it, too. For a stream that was left, the one that
    /// waits for it.
    pub(super) fn get_or_ended(
        &self,
        call: &'static str,
        stream: StreamId,
    ) -> Result<CUstream, DeviceError> {
        if self.known.contains_key(&stream) {
            return self.get(call, stream);
        }
        let left = self.stand_in.filter(|_| self.left.contains(&stream));
        let ended = self.ended.contains(&stream).then_some(StreamId::DEFAULT);
        self.get(call, left.or(ended).unwrap_or(stream))
    }

    /// The same, and for a stream that is captured the default stream, too: what is queued there is not done, so there is
    /// nothing to wait for, and to mark it would be captured.
    pub(super) fn get_or_idle(
        &self,
        call: &'static str,
        stream: StreamId,
    ) -> Result<CUstream, DeviceError> {
        match self.captured.contains(&stream) {
            true => self.get(call, StreamId::DEFAULT),
            false => self.get_or_ended(call, stream),
        }
    }

    /// The default stream and every other that may be named, but for those that are captured: what is queued there is not
    /// done, and to wait for it ends the capture.
    pub(super) fn known(&self) -> Vec<StreamId> {
        let known = self.known.keys().filter(|it| !self.captured.contains(it));
        [StreamId::DEFAULT].into_iter().chain(known.copied()).collect()
    }

    /// The handles behind [`known`](Self::known).
    pub(super) fn handles(&self) -> Vec<CUstream> {
        let handle = |it: StreamId| CUstream(std::ptr::with_exposed_provenance_mut(it.0 as usize));
        self.known().into_iter().map(handle).collect()
    }

    /// Notes that a stream is captured from now on, or no longer.
    pub(super) fn set_captured(&mut self, stream: StreamId, captured: bool) {
        if captured {
            self.captured.insert(stream);
        } else {
            self.captured.remove(&stream);
        }
    }

    /// Streams that are captured.
    pub(super) fn captured(&self) -> &BTreeSet<StreamId> {
        &self.captured
    }

    /// Streams of ours.
    pub(super) fn live(&self) -> usize {
        self.known.values().filter(|owner| **owner == Owner::Device).count()
    }

    /// Takes out every stream of ours.
    pub(super) fn drain(&mut self) -> Vec<CUstream> {
        std::mem::take(&mut self.known)
            .into_iter()
            .filter(|(_, owner)| *owner == Owner::Device)
            .map(|(stream, _)| CUstream(std::ptr::with_exposed_provenance_mut(stream.0 as usize)))
            .collect()
    }

    fn remove(
        &mut self,
        call: &'static str,
        stream: StreamId,
        owner: Owner,
    ) -> Result<(), DeviceError> {
        self.owned(call, stream, owner)?;
        self.known.remove(&stream);
        Ok(())
    }

    fn owned(&self, call: &'static str, stream: StreamId, owner: Owner) -> Result<(), DeviceError> {
        if self.known.get(&stream) == Some(&owner) {
            return Ok(());
        }
        let kind = match owner {
            Owner::Device => "made",
            Owner::Another => "adopted",
        };
        Err(DeviceError::misuse(call, format!("no stream {:#x} was {kind} here", stream.0)))
    }
}

impl Cuda {
    /// Makes a stream that runs beside the default stream, as PyTorch's do.
    ///
    /// # Errors
    ///
    /// If the driver refuses.
    pub fn create_stream(&mut self) -> Result<StreamId, DeviceError> {
        let current = self.context.enter()?;
        let stream = StreamId(current.stream_create()?.0.expose_provenance() as u64);
        let mut streams = self.queues.streams_mut();
        streams.known.insert(stream, Owner::Device);
        streams.ended.remove(&stream);
        Ok(stream)
    }

    /// Ends a stream that [`create_stream`](Self::create_stream) made, after what is queued on it.
    /// Memory that was used on it may still be given back.
    ///
    /// # Errors
    ///
    /// If no such stream was made here, or if work on it failed: it is still there then.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.queues.streams().owned("destroy_stream", stream, Owner::Device)?;
        let handle = self.queues.streams().get("destroy_stream", stream)?;
        let current = self.context.enter()?;
        // SAFETY: the stream is alive by the books; the context is current by type.
        unsafe { current.stream_synchronize(handle) }?;
        let mut streams = self.queues.streams_mut();
        // SAFETY: the stream is ours and alive by the books, which are held and forget it next, so that
        // it is not named again. The context is current by type.
        unsafe { current.stream_destroy(handle) }?;
        streams.ended.insert(stream);
        streams.remove("destroy_stream", stream, Owner::Device)
    }

    /// Lets a stream of another library be named here: PyTorch's, for instance.
    ///
    /// # Safety
    ///
    /// The number is the handle of a stream of this device's primary context, and it stays alive
    /// until [`forget_stream`](Self::forget_stream) or [`leave_stream`](Self::leave_stream), or until the device is gone.
    pub unsafe fn adopt_stream(&mut self, stream: StreamId) {
        let mut streams = self.queues.streams_mut();
        streams.known.entry(stream).or_insert(Owner::Another);
        streams.ended.remove(&stream);
        streams.left.remove(&stream);
    }

    /// Ends what [`adopt_stream`](Self::adopt_stream) began, after what is queued on the stream. It is left alone itself. Memory
    /// that was used on it may still be given back.
    ///
    /// # Errors
    ///
    /// If the stream was not adopted, or if work on it failed: it is still known then.
    pub fn forget_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.queues.streams().owned("forget_stream", stream, Owner::Another)?;
        let handle = self.queues.streams().get("forget_stream", stream)?;
        let current = self.context.enter()?;
        // SAFETY: who adopted the stream keeps it alive until it is forgotten, which comes next; the context is current by
        // type.
        unsafe { current.stream_synchronize(handle) }?;
        let mut streams = self.queues.streams_mut();
        streams.ended.insert(stream);
        streams.remove("forget_stream", stream, Owner::Another)
    }

    /// Ends what [`adopt_stream`](Self::adopt_stream) began, and waits for nothing: from here on the owner may destroy the
    /// stream. Memory that was used on it may still be given back; who asks whether its work is done asks a stream of ours,
    /// which waits for it.
    ///
    /// # Errors
    ///
    /// If the stream was not adopted, or if the driver refuses: it is still known then.
    pub fn leave_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.queues.streams().owned("leave_stream", stream, Owner::Another)?;
        let known = self.queues.streams().stand_in;
        let stand_in = known.map_or_else(|| self.create_stream(), Ok)?;
        self.queues.streams_mut().stand_in = Some(stand_in);
        let event = self.record_event(stream)?;
        let waits = self.wait_on(stand_in, event);
        self.queues.forget(event)?;
        waits?;
        let mut streams = self.queues.streams_mut();
        streams.remove("leave_stream", stream, Owner::Another)?;
        streams.left.insert(stream);
        Ok(())
    }

    /// The default stream and every other that may be named and waited for: none that is captured.
    #[must_use]
    pub fn known_streams(&self) -> Vec<StreamId> {
        self.queues.streams().known()
    }

    /// Lets what is queued on `stream` from now on wait for `event`. Does not wait itself.
    ///
    /// # Errors
    ///
    /// If there is no such stream or event.
    pub fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let stream = self.queues.streams().get("wait_on", stream)?;
        let current = self.context.enter()?;
        // SAFETY: the stream is alive by the books: to end one takes the device, which is borrowed.
        unsafe { self.queues.wait_on(&current, stream, event) }
    }

    /// Whether everything queued on `stream` is done.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or if work on it failed.
    pub fn query_stream(&mut self, stream: StreamId) -> Result<bool, DeviceError> {
        let stream = self.queues.streams().get("query_stream", stream)?;
        let current = self.context.enter()?;
        // SAFETY: the stream is alive by the books; the context is current by type.
        unsafe { current.stream_query(stream) }
    }
}
