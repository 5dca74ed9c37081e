//! Entries read as calls.
//!
//! A history shows changes, not calls. Most runs of entries can come from one call only; others from
//! several, and the engine tells which of these fits:
//!
//! - Memory given back before an allocation: inside the request, because a limit or the driver
//!   refused, or by age; or by `empty_cache` before it.
//! - Memory given back otherwise: by `empty_cache`, or by pools that are gone, one after the other.
//!
//! The player reads each call as its [`Plan`] says, and stops where the engine does something else; what
//! to try instead is the search's business.

mod parting;

mod ties;

mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_engine::{Capture, Engine, Release, Start, StreamFilter};
use tonnage_events::{Action, Address, PoolId, TraceEntry};

pub(super) use self::parting::Parting;
use self::run::{Run, Way};
pub(super) use self::run::{belongs_to_a_call, gives_back};
use self::ties::Named;
use super::order::Order;
use super::pools::{Place, Pools};
use super::reading::Reading;
use super::script::Script;
use super::timeline::Timeline;

/// A call that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Played {
    /// The entry that it begins with.
    pub(super) call: usize,
    /// The end of the run of entries that it belongs to.
    pub(super) run_end: usize,
    /// In how many ways it can be read.
    pub(super) readings: usize,
}

/// A call that could not be played as planned.
pub(super) struct Stop {
    pub(super) parting: Box<Parting>,
    pub(super) played: Played,
}

/// What to read entries as.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The pools of segments.
    pub(super) pools: Pools,
    /// What came first, of what was there at the start.
    pub(super) order: Order,
    /// Calls that are not read in the first way: by their first entry, in which.
    pub(super) readings: FxHashMap<usize, usize>,
}

/// What a recording is read with, the same for every reading.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) timeline: Arc<Timeline>,
    /// Whether the limit in force is known, so that refusals need no other explanation.
    pub(super) limit_known: bool,
    /// The release whose rules are followed.
    pub(super) release: Release,
}

/// What was concluded on the way.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Requests during which the driver, or an unknown limit, is taken to have refused.
    pub(super) refused: usize,
    /// Of these, those that `empty_cache` before the request would explain as well.
    pub(super) or_emptied: usize,
    /// Calls of `empty_cache`.
    pub(super) emptied: usize,
    /// Blocks that waited for a stream the recording does not name.
    pub(super) pending: usize,
}

/// An engine on its way through a recording.
#[derive(Clone)]
pub(super) struct Player {
    pub(super) engine: Engine<Script>,
    context: Arc<Context>,
    /// The entry that it began with; those before it are not compared.
    pub(super) from: usize,
    pub(super) notes: Notes,
    /// What was concluded, for another allocator to be asked for the same.
    pub(super) reading: Reading,
    /// Pools that were used and not released.
    used: BTreeSet<PoolId>,
    /// Pools that were released, by the first segment of theirs that went back.
    released: BTreeMap<PoolId, Place>,
    /// What was there at the start, by what it is known by where it is tied.
    named: Arc<Named>,
}

impl Player {
    /// A player that goes on from the state before the entry at `from`. If that state contradicts
    /// itself it is left out, and the replay parts where it would have mattered.
    pub(super) fn new(
        mut engine: Engine<Script>,
        context: Arc<Context>,
        start: &Start,
        from: usize,
    ) -> Self {
        let mut used = BTreeSet::new();
        let mut reading = Reading::default();
        let empty = (!start.segments.is_empty()).then(|| engine.clone());
        let fixed = start.segments.iter().filter(|it| !it.expandable).map(|it| it.address);
        let mut places: Vec<_> = fixed.chain(start.ranges.iter().copied()).collect();
        places.sort_unstable();
        engine.device_mut().restoring(places.into());
        if engine.restore(start).is_ok() {
            let private = start.segments.iter().map(|it| it.pool).filter(|pool| !pool.is_default());
            used.extend(private);
            reading.start.clone_from(&start.segments);
        } else if let Some(empty) = empty {
            engine = empty;
        }
        let granted = engine.stats().memory_reserved();
        engine.device_mut().restored(from, granted);
        let (notes, released) = (Notes::default(), BTreeMap::new());
        let named = Arc::new(Named::of(&engine, context.release.tie()));
        Self { engine, context, from, notes, reading, used, released, named }
    }

    pub(super) fn cursor(&self) -> usize {
        self.engine.device().cursor()
    }

    fn entries(&self) -> &[TraceEntry] {
        self.engine.device().entries()
    }

    /// Most bytes that the driver had given at any time.
    pub(super) fn granted_peak(&self) -> u64 {
        self.context.timeline.granted_peak
    }

    pub(super) fn at_end(&self) -> bool {
        self.cursor() == self.entries().len()
    }

    /// Where the run of entries begins that the entry at `index` belongs to.
    pub(super) fn run_start(&self, index: usize) -> usize {
        let before = self.entries().get(..index).unwrap_or_default().iter().rev();
        index - before.take_while(|entry| belongs_to_a_call(entry.action)).count()
    }

    /// Whether the next call can be read in several ways, or obtains memory of a pool that may turn out
    /// to be another: points to come back to.
    pub(super) fn may_return_here(&self) -> bool {
        let next = self.engine.device().next();
        next.is_some_and(|entry| belongs_to_a_call(entry.action) || entry.action == Action::Oom)
    }

    /// Plays the next call.
    pub(super) fn step(&mut self, plan: &Plan) -> Result<Played, Stop> {
        let from = self.cursor();
        let played = Played { call: from, run_end: from, readings: 1 };
        let Some(&entry) = self.engine.device().next() else { return Ok(played) };
        let result = match entry.action {
            Action::FreeRequested => self.free(&entry),
            Action::Snapshot => self.pass_snapshot(&entry),
            Action::Annotate => {
                self.engine.device_mut().pass_over();
                Ok(())
            }
            _ => return self.play_run(plan),
        };
        result.map(|()| played).map_err(|parting| Stop { parting, played })
    }

    fn free(&mut self, entry: &TraceEntry) -> Result<(), Box<Parting>> {
        let at = self.cursor();
        let completion = self.context.timeline.completion(at);
        if completion != Some(at + 1) {
            let stream = Script::stream_of(completion, &self.context.timeline);
            if self.engine.record_stream(entry.address, stream).is_ok() {
                self.notes.pending += 1;
            }
        }
        let result = self.engine.free_address(entry.address);
        self.agreed(at)?;
        result.map_err(|error| self.parting(at, error.to_string(), None))
    }

    fn pass_snapshot(&mut self, entry: &TraceEntry) -> Result<(), Box<Parting>> {
        let active = self.engine.stats().active_bytes.all.current;
        if Ok(entry.size) != u64::try_from(active) {
            let got = format!("snapshot with {active} active bytes");
            return Err(self.parting(self.cursor(), got, None));
        }
        self.engine.device_mut().pass_over();
        Ok(())
    }

    /// Plays a run of entries, or its first call, in the way that the plan says.
    fn play_run(&mut self, plan: &Plan) -> Result<Played, Stop> {
        let run = self.run_ahead(&plan.pools);
        let (way, readings) = self.way(&run, plan);
        // To tell pools apart where what goes back is not what should.
        let given_back = if run.gives_back { self.given_back(&run) } else { Vec::new() };
        let result = match way {
            Way::Request { believes_refusals, capturing } => {
                self.while_capturing(capturing, run.from, |player| {
                    player.play_request(&run, believes_refusals, &plan.pools)
                })
            }
            Way::EmptyCache { capturing } => {
                self.release_pools(&run, &plan.pools);
                self.while_capturing(capturing, run.from, |player| {
                    player.empty(PoolId::DEFAULT, run.from)
                })
            }
            Way::EmptyOnePool => {
                let first = run.first;
                let pool = first.map_or(PoolId::DEFAULT, |place| plan.pools.pool(place));
                if let Some(place) = first {
                    self.release_pool(pool, place, run.from);
                }
                self.empty(pool, run.from)
            }
            Way::Complete => {
                self.complete_leading();
                self.agreed(run.from)
            }
        };
        let played = Played { call: run.from, run_end: run.to, readings };
        result.map(|()| played).map_err(|mut parting| {
            parting.plain = matches!(way, Way::Request { .. });
            parting.facts = self.facts(&run, &parting, &given_back, &plan.pools);
            Stop { parting, played }
        })
    }

    /// Makes a call inside a capture, or outside. A recording does not say when captures began and ended.
    fn while_capturing<T>(
        &mut self,
        capturing: bool,
        from: usize,
        call: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if !capturing {
            return call(self);
        }
        self.engine.begin_capture(Capture::Everywhere);
        let result = call(self);
        // It began above.
        let _ = self.engine.end_capture();
        self.reading.captured.push(from);
        result
    }

    fn play_request(
        &mut self,
        run: &Run,
        believes_refusals: bool,
        pools: &Pools,
    ) -> Result<(), Box<Parting>> {
        let Some(request) = run.request else { return Ok(()) };
        if run.gives_back {
            self.release_pools(run, pools);
        }
        self.complete_leading();
        let retries = self.engine.stats().num_alloc_retries;
        let refusals = self.engine.device().refusals.len();
        let device = self.engine.device_mut();
        device.believes_refusals = believes_refusals;
        device.request_size = request.size;
        device.request_stream = request.stream;
        if !run.pool.is_default() {
            self.reading.pools.push((run.from, run.pool));
        }
        let diverted = !run.pool.is_default() && self.divert_to(run.pool);
        // The device has watched what came of it, a failure too.
        let _ = self.engine.allocate(request.size, request.stream);
        if diverted {
            // Both began above.
            let _ = self.engine.end_allocate_to_pool(run.pool);
            let _ = self.engine.release_pool(run.pool);
        }
        if self.engine.device().refusals.len() > refusals {
            self.notes.refused += 1;
            // What the retry gave back, empty_cache would have given back before.
            let retried = self.engine.stats().num_alloc_retries > retries;
            self.notes.or_emptied += usize::from(retried && run.gives_back);
        }
        self.agreed(run.from)?;
        let cursor = self.cursor();
        if cursor == run.to + 1 {
            return Ok(());
        }
        Err(self.parting(cursor, "nothing".to_owned(), None))
    }

    /// Takes back the blocks that are found complete before anything else.
    fn complete_leading(&mut self) {
        while let Some(&entry) = self.engine.device().next()
            && entry.action == Action::FreeCompleted
            && self.engine.device().mismatch().is_none()
        {
            // A scripted device does not fail.
            if !self.engine.complete_pending(entry.address).unwrap_or(false) {
                break;
            }
        }
    }

    /// Sends the next request to a private pool; each request on its own, since the recording does
    /// not say when diversions began and ended.
    fn divert_to(&mut self, pool: PoolId) -> bool {
        if !self.used.contains(&pool) && self.engine.create_or_use_pool(pool).is_err() {
            return false;
        }
        self.used.insert(pool);
        self.engine.begin_allocate_to_pool(pool, StreamFilter::Any).is_ok()
    }

    /// Memory of a private pool goes back only once the pool has no uses left.
    fn release_pools(&mut self, run: &Run, pools: &Pools) {
        if pools.only_default() {
            return;
        }
        for (_, place) in self.given_back(run) {
            self.release_pool(pools.pool(place), place, run.from);
        }
    }

    fn release_pool(&mut self, pool: PoolId, because_of: Place, from: usize) {
        if self.used.contains(&pool) && self.engine.release_pool(pool).is_ok() {
            self.used.remove(&pool);
            self.released.insert(pool, because_of);
            self.reading.released.push((from, pool));
        }
    }

    fn empty(&mut self, pool: PoolId, from: usize) -> Result<(), Box<Parting>> {
        self.complete_leading();
        // A scripted device does not fail.
        let _ = self.engine.empty_cache_of(pool);
        self.notes.emptied += 1;
        self.reading.emptied.push((from, pool));
        self.agreed(from).map_err(|parting| self.without_late_free(from, parting))
    }

    /// Where memory could not be given back as recorded because of a free that came too late, blames
    /// the entry where it should have been: one that nothing could have found complete here was
    /// complete at once.
    fn without_late_free(&self, from: usize, parting: Box<Parting>) -> Box<Parting> {
        let ends_a_request = self.entries()[from..]
            .iter()
            .find(|entry| !belongs_to_a_call(entry.action))
            .is_some_and(|entry| matches!(entry.action, Action::Alloc | Action::Oom));
        match self.context.timeline.request_of(from) {
            Some(free) if free + 1 < from && !ends_a_request => {
                let late = self.entries()[from].to_string();
                let difference = self.parting(free + 1, late, None).difference;
                Box::new(Parting { difference, ..*parting })
            }
            _ => parting,
        }
    }

    /// Whether what the engine did since `from` is what was recorded, and something at all.
    fn agreed(&self, from: usize) -> Result<(), Box<Parting>> {
        let device = self.engine.device();
        if let Some(mismatch) = device.mismatch() {
            let (event, got) = (mismatch.event, mismatch.got);
            return Err(self.parting(event, got.to_string(), Some(got)));
        }
        if device.cursor() == from {
            return Err(self.parting(from, "nothing".to_owned(), None));
        }
        Ok(())
    }

    /// Bytes of the free memory from which a block at this address was just cut, wrongly.
    pub(super) fn free_before_cut(&self, address: Address) -> Option<u64> {
        let segments = self.engine.segments();
        let below = segments.partition_point(|segment| segment.address <= address);
        let blocks = &segments[below.checked_sub(1)?].blocks;
        let index = blocks.iter().position(|block| block.address == address)?;
        let rest = blocks.get(index + 1);
        let rest = rest.filter(|it| it.state == tonnage_events::BlockState::Inactive);
        Some(blocks[index].size + rest.map_or(0, |rest| rest.size))
    }
}
