//! What can go wrong, sorted by what the caller can do.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use tonnage_device::DeviceError;
use tonnage_events::{Address, Bytes, DeviceId, PoolId, PoolKind, StreamId};

use crate::oom_verdict::OomVerdict;

/// An allocation that could not be served. The allocator is as usable as before.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Nothing was asked for. PyTorch answers this with a null pointer, before its allocator.
    #[error("cannot allocate 0 bytes: an empty tensor needs no block")]
    ZeroBytes,
    /// No device is that large: the size is probably the result of an overflow.
    #[error("cannot allocate {0} bytes: more than 1 EB, no device is that large")]
    TooLarge(u64),
    /// The allocator has given its memory back for a while.
    #[error("the allocator is paused: resume it first")]
    Paused,
    /// It has given the memory of this pool back for a while.
    #[error("pool {0}, which serves this request, is paused: resume it first")]
    PoolPaused(PoolId),
    /// The same of a pool that holds what is allocated under a tag.
    #[error("the tag {0:?}, under which this request is made, is paused: resume it first")]
    TagPaused(Arc<str>),
    /// No room at this moment: freeing memory or other settings may help.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// Turned down before the device was asked, since `throw_on_cudamalloc_oom` is set.
    #[error("{0}")]
    Rejected(Box<Rejected>),
    /// Where the segments of this pool come from failed: it did not say that it has no memory.
    #[error("the allocator of pool {0} failed while it was asked for memory")]
    Source(PoolId),
    /// The device failed for a reason of its own.
    #[error("the device failed while memory was being allocated: {0}")]
    Device(#[from] DeviceError),
}

/// A request that a setting turned down: PyTorch's `OutOfMemoryError` of a preemptively rejected allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Bytes that the settings allow.
    pub allowed: u64,
    /// What was asked for, and who held the memory. The device itself was not asked.
    pub moment: OutOfMemory,
}

impl std::error::Error for Rejected {}

/// At most twelve lines.
impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { requested, segment_size, reserved, notes, .. } = &self.moment;
        write!(
            f,
            "out of memory: {} were asked for, and a segment of {} beside the {} reserved would be more than the {} \
             that `per_process_memory_fraction` allows; `throw_on_cudamalloc_oom` rejects that before anything cached \
             is given back. Free memory first, or unset it",
            Bytes(*requested),
            Bytes(*segment_size),
            Bytes(*reserved),
            Bytes(self.allowed)
        )?;
        notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

/// A block that could not be freed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FreeError {
    /// The block was freed before; its memory may belong to someone else by now.
    #[error("the block at {0} was freed already")]
    DoubleFree(Address),
    /// No live block begins at this address.
    #[error("no live block begins at {0}: it was freed already, or came from elsewhere")]
    NotAllocated(Address),
    /// The block belongs to another device's allocator.
    #[error("the block at {address} belongs to device {of}, not to device {here}")]
    WrongDevice {
        /// Where the block begins.
        address: Address,
        /// The device it lies on.
        of: DeviceId,
        /// The device that was asked.
        here: DeviceId,
    },
    /// The block is freed, but the device could not mark what still uses it. Its memory comes back
    /// when the device can.
    #[error("the block was freed, but the device failed to record an event for it: {0}")]
    Device(#[from] DeviceError),
}

/// Cached memory that could not be given back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Events cannot be waited for during a capture, which up to PyTorch 2.12 any open pool scope counts as.
    #[error(
        "the memory of pool {0} cannot be given back during a capture: end that first. Up to PyTorch 2.12 every \
         open pool scope is one"
    )]
    Capturing(PoolId),
    /// The device failed. What had been given back by then stays given back.
    #[error("the device failed while cached memory was being given back: {0}")]
    Device(#[from] DeviceError),
}

/// A memory fraction outside 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{0} is not a fraction of the device's memory: it must lie between 0 and 1")]
pub struct FractionError(pub f64);

/// A failed request: what was asked, who holds the memory, and why what was cached did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The device.
    pub device: DeviceId,
    /// What the caller asked for.
    pub requested: u64,
    /// That, rounded: the block that was looked for.
    pub rounded: u64,
    /// Bytes that the device was asked for. PyTorch's message shows this one.
    pub segment_size: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The pool it was headed for.
    pub pool: PoolId,
    /// The half of that pool.
    pub kind: PoolKind,
    /// Whether segments grow in place for this request.
    pub expandable: bool,
    /// Bytes the device has.
    pub device_total: u64,
    /// Bytes the device has free, if it could tell.
    pub device_free: Option<u64>,
    /// The limit on reserved bytes, if one is set.
    pub limit: Option<u64>,
    /// Bytes of the blocks handed out.
    pub allocated: u64,
    /// Bytes freed, but perhaps in use by another stream.
    pub pending: u64,
    /// Bytes obtained from the device.
    pub reserved: u64,
    /// Free bytes inside private pools, which other requests cannot use.
    pub private_cached: u64,
    /// The largest free block of the request's own pool and stream.
    pub largest_own: Option<u64>,
    /// The largest free block of all.
    pub largest_cached: Option<CachedBlock>,
    /// The largest block that waits for events.
    pub largest_pending: Option<PendingBlock>,
    /// Need or waste, and whose, as far as the moment tells.
    pub verdict: OomVerdict,
    /// What layers above the engine know of it; an engine by itself has none.
    pub notes: OomNotes,
}

/// What a layer above the engine knows of a failed request: a line or two of its message.
pub trait OomNote: Any + fmt::Debug + fmt::Display + Send + Sync {
    /// Whether it takes the place of the engine's own verdict, which knows nothing but the moment.
    fn is_verdict(&self) -> bool {
        false
    }
}

/// The notes on a failed request, in the order of their lines. Equal if they say the same.
#[derive(Clone, Debug, Default)]
pub struct OomNotes(Vec<Arc<dyn OomNote>>);

impl OomNotes {
    /// Adds a note.
    pub fn push(&mut self, note: impl OomNote) {
        self.0.push(Arc::new(note));
    }

    /// The first note of this type.
    #[must_use]
    pub fn get<T: OomNote>(&self) -> Option<&T> {
        self.0.iter().find_map(|note| (&**note as &dyn Any).downcast_ref())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &dyn OomNote> {
        self.0.iter().map(|note| &**note)
    }

    fn texts(&self) -> impl Iterator<Item = String> {
        self.iter().map(ToString::to_string)
    }
}

impl PartialEq for OomNotes {
    fn eq(&self, other: &Self) -> bool {
        self.texts().eq(other.texts())
    }
}

impl Eq for OomNotes {}

/// A free block, and where it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedBlock {
    /// Its bytes.
    pub size: u64,
    /// Its pool.
    pub pool: PoolId,
    /// The half of that pool.
    pub kind: PoolKind,
    /// The stream it belongs to.
    pub stream: StreamId,
    /// Whether its segment grows in place.
    pub expandable: bool,
}

/// A freed block, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingBlock {
    /// Its bytes.
    pub size: u64,
    /// Its pool.
    pub pool: PoolId,
    /// The stream it belongs to.
    pub stream: StreamId,
    /// The streams whose work may still use it.
    pub waits_for: Vec<StreamId>,
}

impl OutOfMemory {
    /// Free bytes of the pools: reserved, and neither handed out nor pending.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved - self.allocated - self.pending
    }

    /// The most that can be reserved: what is, and what the device has left, within the limit.
    #[must_use]
    pub fn room(&self) -> u64 {
        let left = self.device_free.unwrap_or(self.device_total);
        let room = self.reserved.saturating_add(left);
        self.limit.map_or(room, |limit| room.min(limit))
    }

    /// The message in PyTorch's form, for tools that look for it.
    #[must_use]
    pub fn pytorch_message(&self) -> String {
        let shown = |bytes| Bytes(bytes).in_pytorch_message();
        let mut text = format!(
            "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
            shown(self.segment_size),
            self.device,
            shown(self.device_total),
            shown(self.device_free.unwrap_or(0)),
        );
        if let Some(limit) = self.limit {
            text += &format!("{} allowed; ", shown(limit));
        }
        text += &format!(
            "Of the allocated memory {} is allocated by PyTorch",
            shown(self.allocated + self.private_cached)
        );
        if self.private_cached > 0 {
            text += &format!(
                ", with {} allocated in private pools (e.g., CUDA Graphs)",
                shown(self.private_cached)
            );
        }
        text += &format!(
            ", and {} is reserved by PyTorch but unallocated.",
            shown(self.reserved - self.allocated - self.private_cached)
        );
        text
    }

    /// Why the memory that is cached did not serve.
    fn why(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.largest_cached {
            None => write!(f, " No memory is cached.")?,
            Some(largest) => {
                let CachedBlock { size, pool, kind, stream, .. } = largest;
                write!(
                    f,
                    " The largest free block has {} ({kind} pool {pool}, stream {stream}): ",
                    Bytes(*size)
                )?;
                self.why_not(largest, f)?;
            }
        }
        if let Some(PendingBlock { size, stream, waits_for, .. }) = &self.largest_pending {
            let streams: Vec<_> = waits_for.iter().map(ToString::to_string).collect();
            write!(
                f,
                " A freed block of {} of stream {stream} still waits for stream {}.",
                Bytes(*size),
                streams.join(", ")
            )?;
        }
        Ok(())
    }
}

impl OutOfMemory {
    /// Why this block did not serve.
    fn why_not(&self, block: &CachedBlock, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if block.size < self.rounded {
            let needed = Bytes(self.rounded);
            write!(f, "what is free lies in pieces too small for {needed}.")
        } else if block.pool != self.pool || block.kind != self.kind {
            write!(f, "it belongs to another pool than {} pool {}.", self.kind, self.pool)
        } else if block.stream != self.stream {
            write!(f, "it belongs to another stream than {}.", self.stream)
        } else if block.expandable && !self.expandable {
            write!(f, "it is part of an expandable segment, and `expandable_segments` is off now.")
        } else {
            write!(f, "`max_split_size_mb` keeps it for larger requests.")
        }
    }

    /// Whether the pieces that are free for this stream would serve together, if only they were one.
    fn is_fragmented(&self) -> bool {
        let largest = self.largest_cached.as_ref().map_or(0, |block| block.size);
        let pieces = self.verdict.free_in_pieces();
        self.verdict.lacking == 0 && largest < self.rounded && self.rounded <= pieces
    }
}

impl std::error::Error for OutOfMemory {}

/// At most twelve lines.
impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: {} were asked for on stream {} of device {}, {} with rounding to a segment. ",
            Bytes(self.requested),
            self.stream,
            self.device,
            Bytes(self.segment_size),
        )?;
        write!(f, "The device has {}", Bytes(self.device_total))?;
        if let Some(free) = self.device_free {
            write!(f, ", {} free", Bytes(free))?;
        }
        if let Some(limit) = self.limit {
            write!(f, "; {} are allowed", Bytes(limit))?;
        }
        write!(
            f,
            ". Reserved are {}: {} in use, {} pending, {} cached.",
            Bytes(self.reserved),
            Bytes(self.allocated),
            Bytes(self.pending),
            Bytes(self.cached()),
        )?;
        self.why(f)?;
        let verdict = self.notes.iter().find(|note| note.is_verdict());
        // Whoever has looked into the history knows which settings serve.
        if verdict.is_none() && self.is_fragmented() && !self.expandable {
            write!(
                f,
                " Enough is free for this stream in all, only not in one piece: `expandable_segments:True` may help, which was not \
                 tried."
            )?;
        }
        match verdict {
            Some(verdict) => {
                write!(f, "\n{verdict}")?;
                self.verdict.holders(f)?;
            }
            None => write!(f, "\n{}", self.verdict)?,
        }
        self.notes.iter().filter(|note| !note.is_verdict()).try_for_each(|it| write!(f, "\n{it}"))
    }
}

/// A stream that could not be recorded for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no live block begins at {0}: a stream can only be recorded before the block is freed")]
pub struct RecordStreamError(pub Address);
