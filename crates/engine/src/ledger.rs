//! Stage 7: the one place where a state change becomes an event.
//!
//! Statistics, history and the device learn of a change here and nowhere else. A change that does
//! not pass through here did not happen.

use std::fmt;
use std::sync::Arc;

use tonnage_device::Device;
use tonnage_events::{BlockEvent, Event, PoolId, SplitChange, StackId, TraceEntry};

use crate::block::BlockId;
use crate::engine::Engine;
use crate::history::{Caller, Context, History};
use crate::stats::Stats;

/// What the allocator knows about its past.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) stats: Stats,
    pub(crate) history: Option<Box<History>>,
    /// Who is told of each change that a history shows, whether one is kept or not.
    pub(crate) tracker: Option<Tracker>,
}

/// Is told of each change that a history shows, and of its pool.
pub type ChangeTracker = Arc<dyn Fn(&TraceEntry, PoolId) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Tracker(pub(crate) ChangeTracker);

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tracker(..)")
    }
}

impl Tracker {
    #[cold]
    fn tell(&self, event: &Event, stack: Option<StackId>) {
        if let Some(entry) = TraceEntry::of(event) {
            (self.0)(&TraceEntry { stack, ..entry }, event.pool());
        }
    }
}

impl Ledger {
    pub(crate) fn new(stats: Stats) -> Self {
        Self { stats, history: None, tracker: None }
    }

    /// Counts, keeps and passes on one change.
    #[inline(always)]
    pub(crate) fn emit<D: Device>(
        &mut self,
        device: &mut D,
        event: &Event,
        stack: Option<StackId>,
    ) {
        self.stats.apply(event);
        self.keep(event, stack);
        device.observe(event);
    }

    /// The same for pages that move, which are neither obtained nor given back.
    pub(crate) fn emit_move<D: Device>(
        &mut self,
        device: &mut D,
        event: &Event,
        stack: Option<StackId>,
    ) {
        self.stats.apply_move(event);
        self.keep(event, stack);
        device.observe(event);
    }

    /// Tells history and tracker of a change that is about to be made. Once it is, it is [counted](Self::count_announced).
    pub(crate) fn announce(&mut self, event: &Event, stack: Option<StackId>) {
        self.keep(event, stack);
    }

    /// Counts a change that was [announced](Self::announce) before it was made.
    pub(crate) fn count_announced<D: Device>(&mut self, device: &mut D, event: &Event) {
        self.stats.apply(event);
        device.observe(event);
    }

    #[inline(always)]
    fn keep(&mut self, event: &Event, stack: Option<StackId>) {
        if let Some(history) = &mut self.history {
            history.push(event, stack);
        }
        if let Some(tracker) = &self.tracker {
            tracker.tell(event, stack);
        }
    }

    /// The stack of a change, if history is on and wants one for changes of this level.
    #[inline]
    pub(crate) fn stack(&mut self, wanted_from: Context, caller: Caller) -> Option<StackId> {
        self.history.as_mut()?.stack(wanted_from, caller)
    }
}

impl<D: Device> Engine<D> {
    #[inline(always)]
    pub(crate) fn emit(&mut self, event: &Event, stack: Option<StackId>) {
        self.ledger.emit(&mut self.device, event, stack);
    }

    pub(crate) fn block_event(&self, id: BlockId) -> BlockEvent {
        let block = &self.blocks[id];
        BlockEvent {
            address: block.address,
            size: block.size,
            requested: block.requested,
            stream: block.stream,
            pool: self.pools.id(block.pool.set),
            kind: block.pool.kind,
            oversize: self.is_oversize(block.size),
            split: SplitChange::default(),
        }
    }

    pub(crate) fn is_oversize(&self, size: u64) -> bool {
        size >= self.config.max_split_size()
    }
}
