//! Blocks that their owner gave back while another stream may still use them.
//!
//! Each such use becomes an event on that stream at the moment of the free. A block is reused once
//! all its events are complete; streams complete in order, so each keeps its events in a queue.
//! While requests are diverted to a pool no events may be recorded (a capture forbids it), so blocks
//! freed then are deferred until the diversion ends.

use std::collections::{BTreeMap, VecDeque};

use tonnage_device::EventId;
use tonnage_events::StreamId;

use crate::block::{BlockId, Waiting};

/// What waits, and for what.
///
/// Streams are polled in the order of their handles. PyTorch walks a hash map there; the order
/// decides nothing but which stale requested size a merged block keeps, and the order of entries in
/// the history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    /// Never empty ones.
    queues: BTreeMap<StreamId, VecDeque<Waiting>>,
    pub(crate) deferred: Vec<BlockId>,
}

impl Pending {
    pub(crate) fn push(&mut self, stream: StreamId, event: EventId, block: BlockId) {
        self.queues.entry(stream).or_default().push_back(Waiting { event, block });
    }

    /// Whether nothing waits for anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.deferred.is_empty()
    }

    /// The first stream after `stream`, or the first of all, that has events outstanding.
    pub(crate) fn stream_after(&self, stream: Option<StreamId>) -> Option<StreamId> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = stream.map_or(Unbounded, Excluded);
        self.queues.range((from, Unbounded)).next().map(|(&stream, _)| stream)
    }

    /// The `index`-th oldest event of a stream.
    pub(crate) fn nth(&self, stream: StreamId, index: usize) -> Option<Waiting> {
        self.queues.get(&stream)?.get(index).copied()
    }

    /// Takes the `index`-th oldest event of a stream out of its queue.
    pub(crate) fn remove(&mut self, stream: StreamId, index: usize) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.remove(index);
            if queue.is_empty() {
                self.queues.remove(&stream);
            }
        }
    }

    /// Where a block's oldest event is queued: its stream, and its index there.
    pub(crate) fn place_of(&self, block: BlockId) -> Option<(StreamId, usize)> {
        self.queues.iter().find_map(|(&stream, queue)| {
            let index = queue.iter().position(|waiting| waiting.block == block)?;
            Some((stream, index))
        })
    }

    /// Everything that waits for an event, with the event's stream.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StreamId, Waiting)> + '_ {
        self.queues.iter().flat_map(|(&stream, queue)| queue.iter().map(move |&it| (stream, it)))
    }
}
