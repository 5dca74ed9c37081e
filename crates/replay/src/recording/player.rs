//! Entries read as calls.
//!
//! A history shows changes, not calls. Most runs of entries can come from one call only; others from
//! several, and the engine tells which of these fits:
//!
//! - Memory given back before an allocation: inside the request, because a limit or the driver
//!   refused, or by age; or by `empty_cache` before it.
//! - A segment that is gone by the end: of which pool it was, only later entries tell. The
//!   player then goes on with one and comes back for the other if that fails.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonnage_engine::{AllocError, Engine, Start, StreamFilter};
use tonnage_events::{Action, Address, PoolId, SnapshotSegment, TraceEntry};

use super::reading::Reading;
use super::script::{Refusal, Script};
use super::timeline::Timeline;
use crate::outcome::Difference;

/// Where the engine and the recording part.
#[derive(Clone, Debug)]
pub(super) struct Parting {
    /// At the furthest point that any reading reached.
    pub(super) difference: Difference,
    /// What was recorded where the plainest reading stopped.
    pub(super) recorded: Option<Action>,
    /// What the engine did there.
    pub(super) got: Option<Action>,
}

impl Parting {
    /// Both stopped; this is the plainer reading.
    fn or_further(self, other: Self) -> Self {
        if other.difference.event > self.difference.event {
            return Self { difference: other.difference, ..self };
        }
        self
    }
}

/// What a recording is read with, the same for every reading.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) timeline: Arc<Timeline>,
    /// The segments at the end.
    pub(super) segments: Vec<SnapshotSegment>,
    /// Private pools that segments may belong to.
    pub(super) pools: Vec<PoolId>,
    /// Whether the limit in force is known, so that refusals need no other explanation.
    pub(super) limit_known: bool,
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
    /// Segments whose pool was concluded from what happened later.
    pub(super) pools_chosen: usize,
}

/// A way to play a request.
#[derive(Clone, Copy, Debug)]
struct Play {
    /// The pool it went to.
    pool: PoolId,
    /// Whether memory given back inside it, and its failure, are the driver's refusal.
    believes_refusals: bool,
}

/// An engine on its way through a recording.
#[derive(Clone)]
pub(super) struct Player {
    pub(super) engine: Engine<Script>,
    context: Arc<Context>,
    pub(super) notes: Notes,
    /// What was concluded, for another allocator to be asked for the same.
    pub(super) reading: Reading,
    /// Pools that were used and not released.
    used: BTreeSet<PoolId>,
    /// The pool for the request at this cursor: another try.
    forced: Option<(usize, PoolId)>,
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
        let fixed = start.segments.iter().filter(|it| !it.expandable).map(|it| (it.address, it));
        let first_run = |&base: &Address| {
            let run = start.segments.partition_point(|it| it.address < base);
            start.segments.get(run).map(|run| (base, run))
        };
        let mut places: Vec<_> = fixed.chain(start.ranges.iter().filter_map(first_run)).collect();
        places.sort_by_key(|&(address, _)| address);
        let places = places.into_iter().map(|(address, it)| (address, it.pool)).collect();
        let empty = engine.clone();
        engine.device_mut().restoring(places);
        if engine.restore(start).is_ok() {
            let private = start.segments.iter().map(|it| it.pool).filter(|pool| !pool.is_default());
            used.extend(private);
            reading.start.clone_from(&start.segments);
        } else {
            engine = empty;
        }
        let granted = engine.stats().memory_reserved();
        engine.device_mut().restored(from, granted);
        Self { engine, context, notes: Notes::default(), reading, used, forced: None }
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

    /// Plays the next call. Players that would read it otherwise are put on `others`.
    pub(super) fn step(&mut self, others: &mut Vec<Player>) -> Result<(), Parting> {
        let Some(&entry) = self.engine.device().next() else { return Ok(()) };
        match entry.action {
            Action::FreeRequested => self.free(&entry),
            Action::Snapshot => self.pass_snapshot(&entry),
            _ => self.request_or_empty_cache(others),
        }
    }

    fn free(&mut self, entry: &TraceEntry) -> Result<(), Parting> {
        let at = self.cursor();
        let completion = self.context.timeline.completion(at);
        if completion != Some(at + 1) {
            let stream = Script::foreign_stream(completion, at);
            if self.engine.record_stream(entry.address, stream).is_ok() {
                self.notes.pending += 1;
            }
        }
        let result = self.engine.free_address(entry.address);
        self.agreed(at)?;
        result.map_err(|error| self.parting(at, error.to_string(), None))
    }

    fn pass_snapshot(&mut self, entry: &TraceEntry) -> Result<(), Parting> {
        let active = self.engine.stats().active_bytes.all.current;
        if Ok(entry.size) != u64::try_from(active) {
            let got = format!("snapshot with {active} active bytes");
            return Err(self.parting(self.cursor(), got, None));
        }
        self.engine.device_mut().pass_over();
        Ok(())
    }

    fn request_or_empty_cache(&mut self, others: &mut Vec<Player>) -> Result<(), Parting> {
        let from = self.cursor();
        let ahead = &self.entries()[from..];
        let length = ahead.iter().position(|entry| !belongs_to_a_call(entry.action));
        let length = length.unwrap_or(ahead.len());
        let gives_back = ahead[..length].iter().any(|entry| gives_back(entry.action));
        let end = ahead.get(length).copied();
        let to = from + length;
        if gives_back {
            self.release_pools_of(from, to);
        }
        let Some(request) = end.filter(|it| matches!(it.action, Action::Alloc | Action::Oom))
        else {
            return self.empty_cache(from);
        };
        let pool = self.pool_of(&request, from, to, others);
        // A request to a private pool finds no free complete: someone emptied the cache before it.
        let completes =
            self.entries()[from..to].iter().any(|it| it.action == Action::FreeCompleted);
        let emptied = completes && !pool.is_default();
        if !gives_back && !emptied && request.action == Action::Alloc {
            // Nothing to choose between: no need to keep the state before.
            self.play_request(&request, Play { pool, believes_refusals: false });
            return self.request_agreed(from, to);
        }
        self.choose_reading(&request, pool, from, to)
    }

    /// Finds the reading that fits a request which failed, or before which memory was given back.
    fn choose_reading(
        &mut self,
        request: &TraceEntry,
        pool: PoolId,
        from: usize,
        to: usize,
    ) -> Result<(), Parting> {
        let limit_known = self.context.limit_known;
        let by_request = |believes_refusals| {
            self.attempt_request(request, Play { pool, believes_refusals }, from, to)
        };
        let inside = by_request(!limit_known);
        let explained = inside.as_ref().is_ok_and(|player| player.refusals_since(self).is_empty());
        let chosen = if explained {
            inside
        } else {
            let emptied = self.attempt_empty_cache_before(request, pool, from, to);
            match (inside, emptied) {
                (Ok(refused), emptied) if emptied.is_err() || self.plausible(&refused) => {
                    Ok(refused.noting_refusal(emptied.is_ok()))
                }
                (_, Ok(emptied)) => Ok(emptied),
                (Err(inside), Err(emptied)) if limit_known => by_request(true)
                    .map(|refused| refused.noting_refusal(false))
                    .map_err(|refused| inside.or_further(emptied).or_further(refused)),
                (Err(inside), Err(emptied)) => Err(inside.or_further(emptied)),
                (Ok(_), Err(_)) => unreachable!("the first arm takes it"),
            }
        };
        *self = chosen?;
        Ok(())
    }

    /// Refusals that were believed since `before`.
    fn refusals_since(&self, before: &Self) -> &[Refusal] {
        &self.engine.device().refusals[before.engine.device().refusals.len()..]
    }

    /// Whether the driver can have refused as `refused` believes: one that gave more, before or
    /// later, did not refuse this for want of memory.
    fn plausible(&self, refused: &Self) -> bool {
        let most = self.context.timeline.granted_peak;
        refused.refusals_since(self).iter().all(|it| it.granted.saturating_add(it.asked) > most)
    }

    fn noting_refusal(mut self, or_emptied: bool) -> Self {
        self.notes.refused += 1;
        self.notes.or_emptied += usize::from(or_emptied);
        self
    }

    /// The state after `empty_cache`, if the request fits behind it.
    fn attempt_empty_cache_before(
        &self,
        request: &TraceEntry,
        pool: PoolId,
        from: usize,
        to: usize,
    ) -> Result<Player, Parting> {
        let mut player = self.attempt_empty_cache(from)?;
        let at = player.cursor();
        let believes_refusals = !self.context.limit_known;
        player.attempt_request(request, Play { pool, believes_refusals }, at, to)?;
        player.forced = Some((at, pool));
        player.notes.emptied += 1;
        Ok(player)
    }

    /// A stretch that ends in no request: memory was given back because someone asked for it.
    fn empty_cache(&mut self, from: usize) -> Result<(), Parting> {
        if self.context.pools.is_empty() {
            // Nothing to choose between: no need to keep the state before.
            let _ = self.engine.empty_cache();
            self.notes.emptied += 1;
            self.reading.emptied.push((from, PoolId::DEFAULT));
            return self.agreed(from).map_err(|parting| self.without_late_free(from, parting));
        }
        let mut player = self
            .attempt_empty_cache(from)
            .map_err(|parting| self.without_late_free(from, parting))?;
        player.notes.emptied += 1;
        *self = player;
        Ok(())
    }

    /// Where memory could not be given back as recorded because of a free that came too late, blames
    /// the entry where it should have been: one that nothing could have found complete here was
    /// complete at once.
    fn without_late_free(&self, from: usize, parting: Parting) -> Parting {
        match self.context.timeline.request_of(from) {
            Some(free) if free + 1 < from => {
                let late = self.entries()[from].to_string();
                Parting { difference: self.parting(free + 1, late, None).difference, ..parting }
            }
            _ => parting,
        }
    }

    /// `empty_cache()`, or that of the one pool that the memory belongs to.
    fn attempt_empty_cache(&self, from: usize) -> Result<Player, Parting> {
        let all = self.attempt_empty_cache_of(PoolId::DEFAULT, from);
        let mut run = self.entries()[from..].iter().take_while(|it| belongs_to_a_call(it.action));
        let first = run.find(|entry| gives_back(entry.action));
        let pool = first.and_then(|entry| self.engine.device().owner(entry.address));
        match (all, pool.filter(|pool| !pool.is_default())) {
            (Err(parting), Some(pool)) => {
                self.attempt_empty_cache_of(pool, from).map_err(|other| parting.or_further(other))
            }
            (all, _) => all,
        }
    }

    fn attempt_empty_cache_of(&self, pool: PoolId, from: usize) -> Result<Player, Parting> {
        let mut player = self.clone();
        // A scripted device does not fail.
        let _ = player.engine.empty_cache_of(pool);
        player.reading.emptied.push((from, pool));
        player.agreed(from)?;
        Ok(player)
    }

    /// The state after a request, if the engine then did what was recorded.
    fn attempt_request(
        &self,
        request: &TraceEntry,
        play: Play,
        from: usize,
        to: usize,
    ) -> Result<Player, Parting> {
        let mut player = self.clone();
        player.play_request(request, play);
        player.request_agreed(from, to)?;
        Ok(player)
    }

    fn play_request(&mut self, request: &TraceEntry, play: Play) {
        let Play { pool, believes_refusals } = play;
        let device = self.engine.device_mut();
        device.believes_refusals = believes_refusals;
        device.request_size = request.size;
        device.pool = pool;
        let from = self.cursor();
        if !pool.is_default() {
            self.reading.pools.push((from, pool));
        }
        let diverted = !pool.is_default() && self.divert_to(pool);
        let result = self.engine.allocate(request.size, request.stream);
        if diverted {
            // Both began above.
            let _ = self.engine.end_allocate_to_pool(pool);
            let _ = self.engine.release_pool(pool);
        }
        debug_assert!(
            matches!(
                result,
                Ok(_)
                    | Err(AllocError::OutOfMemory(_)
                        | AllocError::TooLarge(_)
                        | AllocError::ZeroBytes)
            ),
            "a scripted device only runs out of memory"
        );
    }

    /// Sends the next request to a private pool; each request on its own, since the recording does
    /// not say when diversions began and ended.
    fn divert_to(&mut self, pool: PoolId) -> bool {
        if self.used.insert(pool) && self.engine.create_or_use_pool(pool).is_err() {
            return false;
        }
        self.engine.begin_allocate_to_pool(pool, StreamFilter::Any).is_ok()
    }

    /// Memory of a private pool goes back only once the pool has no uses left.
    fn release_pools_of(&mut self, from: usize, to: usize) {
        for index in from..to {
            let entry = self.entries()[index];
            let owner = self.engine.device().owner(entry.address);
            if let Some(pool) = owner.filter(|pool| gives_back(entry.action) && !pool.is_default())
                && self.used.contains(&pool)
                && self.engine.release_pool(pool).is_ok()
            {
                self.used.remove(&pool);
                self.reading.released.push((from, pool));
            }
        }
    }

    /// The pool of the request: that of the segment it was served from, if it is known.
    fn pool_of(
        &mut self,
        request: &TraceEntry,
        from: usize,
        to: usize,
        others: &mut Vec<Player>,
    ) -> PoolId {
        if self.context.pools.is_empty() {
            return PoolId::DEFAULT;
        }
        if let Some((at, pool)) = self.forced.take()
            && at == from
        {
            return pool;
        }
        if request.action == Action::Alloc {
            // What lies at the address now may be given back before a new segment takes its place.
            let new = self.entries()[from..to].iter().any(|it| it.action == Action::SegmentAlloc);
            let owner = self.engine.device().owner(request.address).filter(|_| !new);
            if let Some(pool) = owner.or_else(|| self.pool_at_end(request, from, to)) {
                return pool;
            }
        }
        for &pool in &self.context.pools {
            let mut other = self.clone();
            other.forced = Some((from, pool));
            other.notes.pools_chosen += 1;
            others.push(other);
        }
        PoolId::DEFAULT
    }

    /// The pool of a segment that is still there at the end.
    fn pool_at_end(&self, request: &TraceEntry, from: usize, to: usize) -> Option<PoolId> {
        let segments = &self.context.segments;
        let below = segments.partition_point(|segment| segment.address <= request.address);
        let segment = &segments[below.checked_sub(1)?];
        let inside = request.address.distance_from(segment.address) < segment.total_size;
        // Another segment may have lain there before: this one must be obtained now, and kept.
        let obtained =
            |it: &TraceEntry| it.action == Action::SegmentAlloc && it.address == segment.address;
        let is_it = segment.expandable
            || (self.entries()[from..to].iter().any(obtained)
                && !self.context.timeline.is_released_after(segment.address, to));
        (inside && segment.stream == request.stream && is_it).then_some(segment.pool)
    }

    /// Whether what the engine did since `from` is what was recorded, and something at all.
    fn agreed(&self, from: usize) -> Result<(), Parting> {
        let device = self.engine.device();
        if let Some(mismatch) = device.mismatch() {
            let (event, got) = (mismatch.event, mismatch.got);
            return Err(self.parting(event, got.to_string(), Some(got.action)));
        }
        if device.cursor() == from {
            return Err(self.parting(from, "nothing".to_owned(), None));
        }
        Ok(())
    }

    /// Whether a request that ends with the entry at `to` was played as recorded.
    fn request_agreed(&self, from: usize, to: usize) -> Result<(), Parting> {
        self.agreed(from)?;
        let cursor = self.cursor();
        if cursor == to + 1 {
            return Ok(());
        }
        Err(self.parting(cursor, "nothing".to_owned(), None))
    }

    fn parting(&self, event: usize, got: String, action: Option<Action>) -> Parting {
        let entry = self.entries().get(event);
        let expected = entry.map_or_else(|| "the end".to_owned(), ToString::to_string);
        Parting {
            difference: Difference { event, expected, got },
            recorded: entry.map(|entry| entry.action),
            got: action,
        }
    }
}

/// Entries inside a request, or of `empty_cache`.
pub(super) fn belongs_to_a_call(action: Action) -> bool {
    gives_back(action)
        || matches!(action, Action::FreeCompleted | Action::SegmentAlloc | Action::SegmentMap)
}

fn gives_back(action: Action) -> bool {
    matches!(action, Action::SegmentFree | Action::SegmentUnmap)
}
