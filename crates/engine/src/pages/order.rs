//! Which streams are done with which memory.
//!
//! # Note \[Order between streams\]
//!
//! Under PyTorch's policy a free block serves only its own stream, whose order is enough. Under `pages` it serves any
//! other too, once its stream is known to be done with it. No stream is made to wait for another: what that one has queued may
//! itself wait for the first, by ways that no one sees here (a collective, a function of the host), and both would wait
//! for ever.
//!
//! *How.* Events that ask how far a stream is are *marks*, numbered over all streams in the order in which they were recorded. A
//! free block remembers the last number at its free, so that its stream is done with it once a mark of a higher number is reached
//! there. To free costs nothing for it; marks are recorded and asked when a request finds nothing on its own stream,
//! at most two of each stream at a time. Free neighbours of two streams become one when one of the streams is
//! done with its part, and never in a private pool, whose streams each need their own blocks again.
//!
//! *Captures.* An event on a stream that is being captured would become part of the graph, or end the capture; so while any
//! thread captures nothing is recorded or asked, and what was known before holds. *Waiting.* The host waits for streams
//! where the request would fail otherwise, and where memory goes back to the device.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tonnage_device::{Device, DeviceError, EventId};
use tonnage_events::{PoolKind, StreamId};

use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet};
use crate::request::Request;

/// Marks of a stream that may be outstanding: one that will be reached soon, and one for what was freed since.
const MOST_OPEN: usize = 2;

/// Streams that may be remembered besides twice as many as there are.
const SPARE_STREAMS: usize = 16;

/// How far streams are known to be.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    /// The number of the last mark.
    last: u64,
    of: BTreeMap<StreamId, OfStream>,
    /// Streams that were found to be further than before, until their blocks are merged.
    advanced: Vec<StreamId>,
    /// With so many streams those that have ended are forgotten.
    most_streams: usize,
}

/// The marks of one stream.
#[derive(Clone, Debug)]
struct OfStream {
    /// The highest that is reached.
    reached: u64,
    /// Those that are not known to be, oldest first.
    open: VecDeque<(u64, EventId)>,
}

/// Reached by every stream: new memory, which nobody has used, has 0.
const BEGINNING: u64 = 1;

impl Default for OfStream {
    fn default() -> Self {
        Self { reached: BEGINNING, open: VecDeque::new() }
    }
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            last: BEGINNING,
            of: BTreeMap::new(),
            advanced: Vec::new(),
            most_streams: SPARE_STREAMS,
        }
    }
}

impl Marks {
    /// The number of the last mark: what a block that is freed now remembers.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Whether a stream is known to be done with what was freed when `until` was the last mark.
    pub(crate) fn is_done(&self, stream: StreamId, until: u64) -> bool {
        until < self.of.get(&stream).map_or(BEGINNING, |of| of.reached)
    }

    fn reach(&mut self, stream: StreamId, number: u64) {
        self.of.entry(stream).or_default().reached = number;
        if !self.advanced.contains(&stream) {
            self.advanced.push(stream);
        }
    }
}

impl<D: Device> Engine<D> {
    /// Whether a free block of the default pool serves any stream: its own is done with it.
    pub(crate) fn is_anyones(&self, block: &Block) -> bool {
        block.pool.set == PoolSet::Default
            && self.store.marks.is_done(block.stream, block.used_until)
    }

    /// Whether a free block serves this stream.
    pub(crate) fn serves(&self, block: &Block, stream: StreamId) -> bool {
        block.stream == stream || self.is_anyones(block)
    }

    /// Finds out how far other streams are that have free memory which may help a request, and merges what no one uses
    /// any more.
    pub(crate) fn look_at_others(&mut self, request: &Request) -> Result<(), DeviceError> {
        self.store.marks.of.entry(request.stream).or_default();
        let smallest = request.size.min(self.granule());
        for (stream, until) in self.unknown_in(PoolSet::Default, smallest) {
            if stream != request.stream {
                self.find_done(stream, until)?;
            }
        }
        self.merge_anyones();
        Ok(())
    }

    /// The streams of free blocks of at least this size that may still be in use, and until when.
    pub(crate) fn unknown_in(&self, set: PoolSet, smallest: u64) -> Vec<(StreamId, u64)> {
        let mut unknown: BTreeMap<StreamId, u64> = BTreeMap::new();
        for kind in [PoolKind::Large, PoolKind::Small] {
            let half = self.pools.half(PoolRef { set, kind });
            for block in half.free().with_at_least(smallest).map(|id| &self.blocks[id]) {
                if !self.store.marks.is_done(block.stream, block.used_until) {
                    let until = unknown.entry(block.stream).or_default();
                    *until = block.used_until.max(*until);
                }
            }
        }
        unknown.into_iter().collect()
    }

    /// Whether a stream is done with what was freed when `until` was the last mark. Asks the device; never waits.
    pub(crate) fn find_done(&mut self, stream: StreamId, until: u64) -> Result<bool, DeviceError> {
        if self.store.marks.is_done(stream, until) || self.capturing() {
            return Ok(self.store.marks.is_done(stream, until));
        }
        self.forget_ended_streams();
        self.ask_marks(stream)?;
        let OfStream { reached, open } = self.store.marks.of.entry(stream).or_default();
        let marked = open.back().is_some_and(|&(number, _)| until < number);
        if until < *reached || marked || open.len() >= MOST_OPEN {
            return Ok(until < *reached);
        }
        let event = self.device.record_event(stream)?;
        let marks = &mut self.store.marks;
        marks.last += 1;
        marks.of.entry(stream).or_default().open.push_back((marks.last, event));
        self.ask_marks(stream)?;
        Ok(self.store.marks.is_done(stream, until))
    }

    /// Forgets streams that the device has ended, now and then: their work is done. If memory is still in the name of one, a mark
    /// of it is recorded anew, and reached at once. A device that knows no streams cannot tell.
    fn forget_ended_streams(&mut self) {
        let marks = &mut self.store.marks;
        if marks.of.len() < marks.most_streams {
            return;
        }
        let known: BTreeSet<_> = self.device.known_streams().into_iter().collect();
        if !known.is_empty() {
            marks.of.retain(|stream, of| !of.open.is_empty() || known.contains(stream));
        }
        marks.most_streams = 2 * marks.of.len() + SPARE_STREAMS;
    }

    /// Asks which marks of a stream are reached, from the oldest to the first that is not.
    fn ask_marks(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        while let Some(&(number, event)) =
            self.store.marks.of.get(&stream).and_then(|of| of.open.front())
            && self.device.query_event(event)?
        {
            let marks = &mut self.store.marks;
            marks.of.entry(stream).or_default().open.pop_front();
            marks.reach(stream, number);
            self.device.destroy_event(event)?;
        }
        Ok(())
    }

    /// Waits until streams are done with what was freed when these were the last marks.
    pub(crate) fn wait_until_done(
        &mut self,
        of: impl IntoIterator<Item = (StreamId, u64)>,
    ) -> Result<(), DeviceError> {
        for (stream, until) in of {
            if !self.store.marks.is_done(stream, until) {
                self.wait_for_stream(stream)?;
            }
        }
        Ok(())
    }

    /// Waits for a stream, for which no mark is outstanding then.
    fn wait_for_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.device.synchronize(stream)?;
        let marks = &mut self.store.marks;
        marks.last += 1;
        marks.reach(stream, marks.last);
        let open = std::mem::take(&mut marks.of.entry(stream).or_default().open);
        let mut result = Ok(());
        for (_, event) in open {
            result = result.and(self.device.destroy_event(event));
        }
        result
    }

    /// Waits for every stream that a mark is outstanding for.
    pub(crate) fn settle_marks(&mut self) -> Result<(), DeviceError> {
        let of = self.store.marks.of.iter().filter(|(_, of)| !of.open.is_empty());
        let open: Vec<_> = of.map(|(&stream, _)| stream).collect();
        open.into_iter().try_for_each(|stream| self.wait_for_stream(stream))
    }

    /// Every stream on which work may be queued, as far as anyone here knows: the device's, and those that have used memory.
    /// Of these each has a block in its name, in whatever pool, or a mark: free memory becomes another's by way of one.
    pub(crate) fn all_streams(&self) -> Vec<StreamId> {
        let mut streams = self.device.known_streams();
        streams.extend(self.store.marks.of.keys());
        streams.extend(self.pending.iter().map(|(stream, _)| stream));
        for (_, block) in self.blocks.iter().filter(|(_, block)| block.mapped) {
            streams.push(block.stream);
            streams.extend(&block.foreign().streams);
        }
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Merges free blocks that their streams were found to be done with since the last time.
    pub(crate) fn merge_anyones(&mut self) {
        for stream in std::mem::take(&mut self.store.marks.advanced) {
            for kind in [PoolKind::Large, PoolKind::Small] {
                let half = self.pools.half(PoolRef { set: PoolSet::Default, kind });
                let of_stream: Vec<_> = half.free().at_least(stream, 0).collect();
                for id in of_stream {
                    self.merge_if_anyones(id);
                }
            }
        }
    }

    /// Merges a block with its neighbours, if it is free and serves any stream: with one that does not, it becomes
    /// part of that one's stream. The block may have been merged already, and its name be another's.
    fn merge_if_anyones(&mut self, id: BlockId) {
        let Some(block) = self.blocks.get(id) else { return };
        if !block.mapped || !block.is_idle() || !self.is_anyones(block) {
            return;
        }
        let free = |it: Option<BlockId>| {
            it.filter(|&it| self.blocks[it].mapped && self.blocks[it].is_idle())
        };
        let [before, behind] = [block.prev, block.next].map(free);
        let Some(beside) = before.or(behind) else { return };
        self.take(id);
        let used = |it: &BlockId| !self.is_anyones(&self.blocks[*it]);
        if let Some(used) = before.filter(used).or(behind.filter(used)) {
            let Block { stream, used_until, .. } = self.blocks[used];
            let block = &mut self.blocks[id];
            (block.stream, block.used_until) = (stream, used_until);
        } else {
            debug_assert!(self.mergeable(id, Some(beside)).is_some(), "both are anyone's");
        }
        self.merge_all(id);
        self.put(id);
        self.send_pages_home(id, None);
    }
}
