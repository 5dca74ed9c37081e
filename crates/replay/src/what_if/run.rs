//! An engine on its way through a job.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use tonnage_device::PageCalls;
use tonnage_engine::{Allocation, Capture, Engine, PoolId, Snapshot, StreamFilter};
use tonnage_events::SnapshotSegment;

use super::clock::Clock;
use super::{FirstOom, LargeBlocks, Peak, Prediction};
use crate::job::{Call, Job, Request, Step};

pub(super) struct Run {
    engine: Engine<Clock>,
    /// The blocks served so far, by number.
    blocks: Vec<Allocation>,
    /// A request that failed when it was recorded, served now: its owner is not known, so it goes
    /// back before the next call.
    ownerless: Option<Allocation>,
    /// Private pools that were used and not released.
    pools: BTreeSet<PoolId>,
    served: u64,
    served_after_all: usize,
    oom: Option<FirstOom>,
    stopped_at: Option<usize>,
    reserved_peak: i64,
    peak: Option<Peak>,
    steps: usize,
    /// Times that the job was played before.
    pass: u64,
    /// Entries of the job, and so of each pass.
    entries: usize,
    large_blocks: LargeBlocks,
}

impl Run {
    pub(super) fn new(engine: Engine<Clock>, job: &Job) -> Self {
        Self {
            engine,
            blocks: Vec::with_capacity(job.blocks()),
            ownerless: None,
            pools: BTreeSet::new(),
            served: 0,
            served_after_all: 0,
            oom: None,
            stopped_at: None,
            reserved_peak: 0,
            peak: None,
            steps: 0,
            pass: 0,
            entries: job.events(),
            large_blocks: LargeBlocks::default(),
        }
    }

    /// Makes the next call. Breaks where the job stops.
    ///
    /// Results are passed over where nothing can go wrong: a dry device runs out of memory and does not
    /// fail otherwise, and what the job frees it has.
    pub(super) fn step(&mut self, step: &Step) -> ControlFlow<()> {
        if let Some(block) = self.ownerless.take() {
            let _ = self.engine.free(&block);
        }
        match step.call {
            Call::Allocate(request) => match self.request(step, &request) {
                Some(block) => self.blocks.push(block),
                None => {
                    self.note_oom(step, &request, false);
                    self.stopped_at = Some(step.entry);
                    return ControlFlow::Break(());
                }
            },
            Call::FailedAllocate { request, fatal } => match self.request(step, &request) {
                Some(block) => {
                    self.served_after_all += 1;
                    self.ownerless = (!fatal).then_some(block);
                }
                None => {
                    self.note_oom(step, &request, true);
                    self.stopped_at = fatal.then_some(step.entry);
                }
            },
            Call::RecordStream { block, stream } => {
                let _ = self.engine.record_stream_of(&self.blocks[block], stream);
            }
            Call::Free { block, complete } => {
                let complete = complete.map_or(usize::MAX, |entry| self.time_of(entry));
                self.free(block, complete);
            }
            Call::EmptyCache(pool) => {
                let _ = self.engine.empty_cache_of(self.pool_of_pass(pool));
            }
            Call::ReleasePool(pool) => {
                let pool = self.pool_of_pass(pool);
                if self.pools.remove(&pool) {
                    let _ = self.engine.release_pool(pool);
                }
            }
            Call::BeginCapture => self.engine.begin_capture(Capture::Everywhere),
            Call::EndCapture => {
                let _ = self.engine.end_capture();
            }
        }
        self.steps += 1;
        ControlFlow::Continue(())
    }

    fn request(&mut self, step: &Step, request: &Request) -> Option<Allocation> {
        let &Request { bytes, stream, pool } = request;
        self.engine.device_mut().now = self.time_of(step.entry);
        let served = if pool.is_default() {
            self.engine.allocate(bytes, stream).ok()
        } else {
            self.request_to_pool(&Request { pool: self.pool_of_pass(pool), ..*request })
        };
        self.served += u64::from(served.is_some());
        if let Some(block) = &served
            && block.size >= LargeBlocks::FROM
        {
            let pages = self.engine.device().pages_under(block.address, block.size);
            self.large_blocks.add(block.size, pages);
        }
        let reserved_peak = self.engine.stats().reserved_bytes.all.peak;
        if reserved_peak > self.reserved_peak {
            self.reserved_peak = reserved_peak;
            self.peak = Some(Peak { step: self.steps, entry: step.entry, stream });
        }
        served
    }

    /// Each request is diverted by itself: a history does not say when diversions began and ended.
    fn request_to_pool(&mut self, request: &Request) -> Option<Allocation> {
        let &Request { bytes, stream, pool } = request;
        if !self.pools.contains(&pool) {
            self.engine.create_or_use_pool(pool).ok()?;
            self.pools.insert(pool);
        }
        self.engine.begin_allocate_to_pool(pool, StreamFilter::Any).ok()?;
        let served = self.engine.allocate(bytes, stream).ok();
        // Both began above.
        let _ = self.engine.end_allocate_to_pool(pool);
        let _ = self.engine.release_pool(pool);
        served
    }

    fn note_oom(&mut self, step: &Step, request: &Request, recorded: bool) {
        let &Request { bytes, stream, .. } = request;
        let (event, request) = (step.entry, self.served);
        self.oom.get_or_insert(FirstOom { event, request, bytes, stream, recorded });
    }

    /// Frees a block, which other streams are done with by then.
    fn free(&mut self, block: usize, complete: usize) {
        self.engine.device_mut().complete = Some(complete);
        let _ = self.engine.free(&self.blocks[block]);
        self.engine.device_mut().complete = None;
    }

    /// When an entry is, over all passes.
    fn time_of(&self, entry: usize) -> usize {
        self.pass as usize * (self.entries + 1) + entry
    }

    /// The pool that stands for one of the recording in this pass: a graph that is captured again has a pool of its own.
    fn pool_of_pass(&self, pool: PoolId) -> PoolId {
        if pool.is_default() {
            return pool;
        }
        PoolId(pool.0.wrapping_add(self.pass << 40), pool.1)
    }

    /// Frees all that is left, so that the job can begin again on what the allocator holds by now.
    pub(super) fn begin_again(&mut self) {
        while self.engine.end_capture().is_ok() {}
        if let Some(block) = self.ownerless.take() {
            let _ = self.engine.free(&block);
        }
        for block in 0..self.blocks.len() {
            // Most are freed already; some of these wait for what the recording does not have.
            self.free(block, 0);
            let _ = self.engine.complete_pending(self.blocks[block].address);
        }
        self.blocks.clear();
        for pool in std::mem::take(&mut self.pools) {
            let _ = self.engine.release_pool(pool);
        }
        self.pass += 1;
        self.steps = 0;
    }

    /// The calls about pages so far.
    pub(super) fn page_calls(&self) -> PageCalls {
        self.engine.device().page_calls()
    }

    pub(super) fn segments(&self) -> Vec<SnapshotSegment> {
        self.engine.segments()
    }

    /// Entries of its history.
    pub(super) fn recorded(&self) -> usize {
        self.engine.history().map_or(0, |history| history.entries().len())
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.engine.snapshot()
    }

    pub(super) fn prediction(self, job: &Job) -> Prediction {
        Prediction {
            stats: self.engine.stats().clone(),
            floor: job.floor(),
            limit: self.engine.limit(),
            oom: self.oom,
            stopped_at: self.stopped_at,
            served_after_all: self.served_after_all,
            peak: self.peak,
            page_calls: self.engine.device().page_calls(),
            large_blocks: self.large_blocks,
        }
    }
}
