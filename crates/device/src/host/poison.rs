//! Patterns in memory that holds no data, so that reading it shows.
//!
//! In:  blocks that the allocator handed out or took back, from its events.
//! Out: their bytes filled, in the order of their stream.
//!
//! A block goes back to its pool while work on *its own* stream may still be queued: the next owner
//! is on the same stream, so the stream orders the two. Filling must be ordered the same way. On an
//! idle stream it is done at once, otherwise it is queued behind the work.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tonnage_events::{Address, BlockEvent};

use super::memory;
use super::queue::Mark;
use super::streams::Streams;
use crate::DeviceError;

/// What a block is filled with when it is handed out: nothing was written to it yet.
pub const FRESH: u8 = 0xA5;

/// What a block is filled with when it went back to its pool.
pub const FREED: u8 = 0xDB;

/// Fills that are under way.
#[derive(Debug, Default)]
pub(super) struct Poison {
    /// Held by whoever fills: two fills never race, whatever the events say.
    turn: Arc<Mutex<()>>,
    /// Fills that were queued and not seen done: which bytes, and where in their stream.
    queued: Vec<(Range<u64>, Mark)>,
}

impl Poison {
    /// Fills a block, when its stream gets there.
    ///
    /// # Safety
    ///
    /// 1. The block is mapped, and stays so until [`settle`](Self::settle) or a drain of the streams
    ///    has returned.
    /// 2. Work that uses the block is ordered by the block's stream, and so is its next owner's.
    ///    Reads and writes by the device itself come after `settle`.
    pub(super) unsafe fn fill(&mut self, streams: &Streams, block: &BlockEvent, byte: u8) {
        let (address, size) = (block.address.0, block.size);
        let turn = Arc::clone(&self.turn);
        let work = move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY:
            // - Mapped, writable: promise 1.
            // - Not touched meanwhile: work is before or behind this in the stream, and the device
            //   waits (promise 2); another fill waits for its turn.
            unsafe { memory::fill(address, byte, size) }
        };
        if streams.mark(block.stream).1 {
            work();
        } else if streams.launch(block.stream, work).is_ok() {
            self.queued.retain(|(_, mark)| !streams.reached(*mark));
            self.queued.push((address..address + size, streams.mark(block.stream).0));
        }
    }

    /// Waits until no fill of these bytes is under way. Whoever has waited for the stream of a block
    /// that is not given back finds none: its fills are all queued there.
    pub(super) fn settle(
        &self,
        call: &'static str,
        streams: &Streams,
        address: Address,
        size: u64,
    ) -> Result<(), DeviceError> {
        let end = address.0.saturating_add(size);
        let touches = |fill: &Range<u64>| fill.start < end && address.0 < fill.end;
        let fills = self.queued.iter().filter(|(fill, _)| touches(fill));
        fills.map(|(_, mark)| *mark).try_for_each(|mark| streams.settle(call, mark))
    }
}
