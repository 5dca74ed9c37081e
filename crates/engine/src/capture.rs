//! Graph captures: while one is under way no events are polled and nothing is flushed, and blocks that other
//! streams use are not given back until it ends.
//!
//! Up to PyTorch 2.12 the allocator cannot tell a capture from a user's pool in use, and takes every open pool
//! scope for one, on the whole device. From 2.13 on a capture is what was begun as one, and only for threads
//! whose current stream is part of it. A [tag](Engine::set_pool_tag) is a capture under no release: PyTorch has none.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use tonnage_device::Device;

use crate::config::Release;
use crate::engine::Engine;

/// Whose calls a capture concerns.
#[derive(Clone)]
pub enum Capture {
    /// All of them, as in a program of one thread.
    Everywhere,
    /// Those for which the function says so at the time: whether the current stream of the thread that calls
    /// is capturing.
    When(Arc<dyn Fn() -> bool + Send + Sync>),
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Everywhere => "Everywhere",
            Self::When(_) => "When(..)",
        })
    }
}

/// A capture that was ended and had not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no capture is under way: begin one first")]
pub struct CaptureError;

/// The captures under way.
#[derive(Clone, Debug)]
pub(crate) struct Captures {
    begun: Vec<Capture>,
    /// Whether the release takes open pool scopes for captures, but for those of tags, and nothing else.
    pool_scopes_count: bool,
}

impl Captures {
    pub(crate) fn new(release: Release) -> Self {
        Self { begun: Vec::new(), pool_scopes_count: release.pool_scope_is_capture() }
    }

    #[cold]
    fn concern_this_call(&self) -> bool {
        self.begun.iter().any(|capture| match capture {
            Capture::Everywhere => true,
            Capture::When(concerns) => concerns(),
        })
    }
}

impl<D: Device> Engine<D> {
    /// Notes that a graph capture begins: PyTorch's `markCaptureBegin`. Where its requests go is the business of
    /// [`begin_allocate_to_pool`](Self::begin_allocate_to_pool), which a capture calls too. Before 2.13 this
    /// changes nothing.
    pub fn begin_capture(&mut self, capture: Capture) {
        self.captures.begun.push(capture);
    }

    /// Notes that the capture that began last has ended: PyTorch's `markCaptureEnd`.
    ///
    /// # Errors
    ///
    /// If none is under way.
    pub fn end_capture(&mut self) -> Result<(), CaptureError> {
        self.captures.begun.pop().map(drop).ok_or(CaptureError)
    }

    /// Whether events must be left alone now, and nothing be given back. Under PyTorch's rules, if this call is part of a
    /// capture. Where pages move, blocks of all streams are marked, and which of them a capture has reached no one knows:
    /// there a capture of any thread is enough.
    #[inline]
    pub(crate) fn capturing(&self) -> bool {
        self.is_captured() || self.policy.moves_pages() && !self.captures.begun.is_empty()
    }

    /// Whether a capture is under way, of any thread: what waits for all streams, or copies on the default one, would end it.
    pub(crate) fn any_capture(&self) -> bool {
        self.is_captured() || !self.captures.begun.is_empty()
    }

    /// Whether this call is part of a capture, by the rules of the release.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        if self.captures.pool_scopes_count {
            return self.pools.diverting_untagged();
        }
        !self.captures.begun.is_empty() && self.captures.concern_this_call()
    }
}
