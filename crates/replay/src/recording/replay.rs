//! A recording from its file to its outcome.

use std::sync::Arc;

use thiserror::Error;
use tonnage_engine::{Config, Engine, Release, Start};
use tonnage_events::{Action, Bytes, DeviceId, SnapshotSegment, TraceEntry, counted};
use tonnage_snapshot::{AllocatorSettings, EntryPools, SnapshotFile};

use super::budget::Budget;
use super::final_state::segments_difference;
use super::inferred::{describe, describe_start};
use super::limit::{find_limits, has_to_do_with_limit};
use super::missing::{Missing, behind_obtained};
use super::order::Order;
use super::player::{Context, Parting, Player, belongs_to_a_call, gives_back};
use super::pools::{Place, Pools, place_at_start};
use super::ranges::{Reach, granted_before};
use super::reading::Reading;
use super::release::{Told, Tried};
use super::script::Script;
use super::search::{Attempt, Task, search};
use super::settings::{config_of, total_of};
use super::start::{History, lengthened, segments_of};
use super::timeline::Timeline;
use super::witness::first_contradicted;
use crate::outcome::{Difference, HistoryKind, Outcome};
use crate::until::Until;

/// How to replay a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordingOptions {
    /// The limit on reserved bytes that was in force.
    pub limit: Option<u64>,
    /// Bytes the device had.
    pub total: Option<u64>,
    /// The release of PyTorch that recorded it; else told from the file.
    pub release: Option<Release>,
    /// The device to replay; else the one with most entries.
    pub ordinal: Option<usize>,
}

/// A file that cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// There is no history in it.
    #[error(
        "the file has no memory history, only the state at the end ({segments}): \
         call torch.cuda.memory._record_memory_history() before the work and dump the snapshot after it",
        segments = counted(*.0, "segment")
    )]
    NoHistory(usize),
    /// The device has no history.
    #[error("device {ordinal} has no history in this file; {present}")]
    NoSuchDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// Those that have one.
        present: String,
    },
}

/// Replays one device's history through the engine and compares everything.
///
/// # Errors
///
/// If the file has no history of the device.
pub fn replay_recording(
    file: &SnapshotFile,
    options: &RecordingOptions,
) -> Result<Outcome, RecordingError> {
    read_recording(file, options).map(|(outcome, _)| outcome)
}

/// Replays one device's history as [`replay_recording`] does, and says how it was read: up to the
/// difference, if there is one.
///
/// # Errors
///
/// If the file has no history of the device.
pub fn read_recording(
    file: &SnapshotFile,
    options: &RecordingOptions,
) -> Result<(Outcome, Reading), RecordingError> {
    read_recording_until(file, options, &Until::default())
}

/// The same, unless it is to end before: then what was found by then, which may not be exact although a longer search would be.
///
/// # Errors
///
/// If the file has no history of the device.
pub fn read_recording_until(
    file: &SnapshotFile,
    options: &RecordingOptions,
    until: &Until,
) -> Result<(Outcome, Reading), RecordingError> {
    let ordinal = choose_device(file, options.ordinal)?;
    let told = Told::of(file, options.release);
    let mut outcomes: Vec<_> = told
        .to_try()
        .into_iter()
        .enumerate()
        .take_while(|&(nth, _)| nth == 0 || !until.is_over())
        .map(|(_, release)| Recording::new(file, ordinal, release, options, until).outcome())
        .collect();
    let tried: Vec<_> = outcomes.iter().map(|(outcome, _)| tried(outcome)).collect();
    let (mut outcome, reading) = outcomes.swap_remove(Told::choose(&tried));
    if let Some(told) = told.describe(outcome.release, &tried) {
        outcome.inferred.insert(0, told);
    }
    outcome.candidates = told.candidates;
    Ok((outcome, reading))
}

fn tried(outcome: &Outcome) -> Tried {
    let reached = outcome.difference.as_ref().map_or(outcome.events, |it| it.event);
    Tried { release: outcome.release, exact: outcome.exact(), reached }
}

fn choose_device(file: &SnapshotFile, asked: Option<usize>) -> Result<usize, RecordingError> {
    let with_history = || file.traces.iter().enumerate().filter(|(_, trace)| !trace.is_empty());
    // The first of those with most entries.
    let fullest =
        with_history().max_by_key(|&(ordinal, trace)| (trace.len(), usize::MAX - ordinal));
    let Some((fullest, _)) = fullest else {
        return Err(RecordingError::NoHistory(file.segments.len()));
    };
    let Some(ordinal) = asked else { return Ok(fullest) };
    if with_history().any(|(with, _)| with == ordinal) {
        return Ok(ordinal);
    }
    let present: Vec<_> = with_history().map(|(ordinal, _)| ordinal.to_string()).collect();
    let present = format!("these have: {}", present.join(", "));
    Err(RecordingError::NoSuchDevice { ordinal, present })
}

/// A recording with all that every replay of it needs.
struct Recording<'a> {
    ordinal: usize,
    entries: Arc<[TraceEntry]>,
    timeline: Arc<Timeline>,
    /// The pools of the entries, as far as the file names them.
    told: EntryPools<'a>,
    /// How far expandable ranges reach.
    reach: Reach,
    segments: Vec<SnapshotSegment>,
    config: Config,
    /// The settings as a string.
    conf: String,
    limit: Option<u64>,
    total: u64,
    inferred: Vec<String>,
    /// The state before the first entry.
    start: Start,
    budget: Budget,
}

impl<'a> Recording<'a> {
    fn new(
        file: &'a SnapshotFile,
        ordinal: usize,
        release: Release,
        options: &RecordingOptions,
        until: &Until,
    ) -> Self {
        let mut inferred = Vec::new();
        let default = AllocatorSettings::default();
        let settings = file.settings.as_ref().unwrap_or(&default);
        let (config, conf) = config_of(settings, release, &mut inferred);
        let segments = segments_of(file, ordinal);
        let skipped: usize = file.skipped_actions.values().sum();
        if skipped > 0 {
            let names: Vec<_> = file.skipped_actions.keys().map(String::as_str).collect();
            let names = names.join(", ");
            inferred.push(match skipped {
                1 => format!("1 entry with an unknown action ({names}) was left out"),
                _ => format!("{skipped} entries with unknown actions ({names}) were left out"),
            });
        }
        let entries: Arc<[TraceEntry]> = file.traces[ordinal].as_slice().into();
        let granted = granted_before(&entries, &segments);
        let timeline = Arc::new(Timeline::of(&entries, granted));
        let told = file.entry_pools(DeviceId(u32::try_from(ordinal).unwrap_or(u32::MAX)));
        let history = History {
            entries: &entries,
            from: 0,
            timeline: &timeline,
            at_end: &segments,
            config: &config,
            told,
            reach: Reach::of(&config, options.total),
        };
        let start = history.start();
        let total = options.total.unwrap_or_else(|| total_of(&history, &start, &mut inferred));
        let reach = history.reach;
        let limit = options.limit.map(|limit| match options.total {
            // PyTorch takes a fraction of the total, so the limit in force is what that makes of it.
            Some(total) if total > 0 => {
                config.release().memory_limit(total, limit as f64 / total as f64)
            }
            _ => limit,
        });
        let budget = Budget::of(entries.len(), until.clone());
        Self {
            ordinal,
            entries,
            timeline,
            told,
            reach,
            segments,
            config,
            conf,
            limit,
            total,
            inferred,
            start,
            budget,
        }
    }

    fn outcome(self) -> (Outcome, Reading) {
        let (contradicted, surely) =
            first_contradicted(&self.entries, &self.timeline, &self.segments);
        let attempt = self.replay(self.limit);
        let mut inferred = self.inferred.clone();
        describe(&attempt, self.limit, &mut inferred);
        let collects = self.config.garbage_collection_threshold() > 0.0;
        let explained = self.limit.is_none()
            && (collects || attempt.parting.is_some())
            && self.explain_limit(&attempt, &mut inferred);
        let start = attempt.player.reading.start.clone();
        let partial = !start.is_empty();
        if partial {
            describe_start(&attempt, &self.entries, collects, &mut inferred);
        }
        let found = attempt.parting.map(|parting| parting.difference);
        let difference = match (found, contradicted) {
            (Some(found), Some(blamed)) if self.is_to_blame(&blamed, &found) => {
                let behind = surely
                    .filter(|surely| *surely == blamed)
                    .and_then(|_| behind_obtained(&blamed, &self.entries, &self.segments));
                Some(behind.unwrap_or(blamed))
            }
            (None, Some(by_time)) if surely.is_none() => {
                let Difference { event, got, .. } = by_time;
                inferred.push(format!("time: entry {event} is out of order: {got}"));
                None
            }
            (None, _) => surely,
            (Some(found), _) => Some(self.trace_back(found, &start, explained, &mut inferred)),
        };
        let outcome = Outcome {
            device: u32::try_from(self.ordinal).unwrap_or(u32::MAX),
            release: self.config.release(),
            candidates: vec![self.config.release()],
            events: self.entries.len(),
            history: if partial { HistoryKind::Partial } else { HistoryKind::Whole },
            conf: self.conf.clone(),
            limit: self.limit,
            difference,
            inferred,
            stats: attempt.player.engine.stats().clone(),
        };
        (outcome, attempt.player.reading)
    }

    /// Whether an entry that others contradict explains what was found. The engine goes on with a wrong
    /// request as if it were right, so the difference shows later; or before, among the entries of
    /// the same call.
    fn is_to_blame(&self, blamed: &Difference, found: &Difference) -> bool {
        let between = self.entries.get(found.event..blamed.event).unwrap_or_default();
        between.iter().all(|entry| belongs_to_a_call(entry.action))
    }

    /// From where a replay parts to where an entry is missing, if others tell; and says so if it may be
    /// that but no entry tells where. `explained` says whether there is another explanation.
    fn trace_back(
        &self,
        found: Difference,
        start: &[SnapshotSegment],
        explained: bool,
        inferred: &mut Vec<String>,
    ) -> Difference {
        let missing = Missing::of(&self.entries, start, &self.segments);
        let traced = missing
            .completion_before(&found, &self.entries)
            .or_else(|| behind_obtained(&found, &self.entries, &self.segments));
        if let Some(traced) = traced {
            return traced;
        }
        let told = missing.describe(&found).map(|what| format!(": {what}"));
        if told.is_some() || !explained {
            inferred.push(format!(
                "difference: the recording and the replay part here; the cause may lie earlier{}",
                told.unwrap_or_default()
            ));
        }
        found
    }

    /// Says which limits would do, where no reading without one did, and whether there are some.
    fn explain_limit(&self, attempt: &Attempt, inferred: &mut Vec<String>) -> bool {
        let Some(parting) = &attempt.parting else {
            inferred.push(
                "limit: garbage_collection_threshold is set but works only under a limit, and none was given; \
                 nothing in the recording shows one"
                    .to_owned(),
            );
            return false;
        };
        // Where pools had to be concluded, so much is open that a limit would explain anything.
        if !has_to_do_with_limit(parting) || attempt.pools_concluded > 0 {
            return false;
        }
        let lowest = self.timeline.granted_peak;
        let highest = self.total.max(lowest);
        let found = find_limits(lowest, highest, |limit| {
            (!self.budget.is_spent()).then(|| self.replay(Some(limit)))
        });
        if found.is_none() && self.budget.is_spent() {
            inferred.push(
                "limit: the search for limits that reproduce the recording gave up; there may be some".to_owned(),
            );
        }
        if let Some((from, to)) = found {
            inferred.push(format!(
                "limit: no reading fits without one; limits from {from} to {to} bytes ({} to {}) reproduce the \
                 recording: try --limit {from}",
                Bytes(from),
                Bytes(to),
            ));
        }
        found.is_some()
    }

    /// Replays under a limit, from the state before the first entry. If that parts, from other states that
    /// are possible; the one that goes furthest counts.
    fn replay(&self, limit: Option<u64>) -> Attempt {
        if self.start.segments.is_empty() {
            return self.replay_from(limit, 0, &self.start);
        }
        // One wrong entry can make a whole history look like a partial one.
        let one_entry = matches!(&self.start.segments[..], [only] if only.active_size == 0);
        let mut best: Option<Attempt> = None;
        for from in self.beginnings() {
            if best.is_some() && (one_entry || self.budget.is_spent()) {
                break;
            }
            let start = self.history_from(from).start();
            if from > 0 && !self.is_older_than(&start, from) {
                continue;
            }
            let mut attempt = self.replay_from(limit, from, &start);
            self.lengthen_blocks(limit, from, start, &mut attempt);
            if attempt.parting.is_none() {
                return attempt;
            }
            if best.as_ref().is_none_or(|best| attempt.goes_further_than(best)) {
                best = Some(attempt);
            }
        }
        let whole = self.replay_from(limit, 0, &Start::default());
        match best {
            Some(best) if !one_entry && !whole.goes_further_than(&best) => best,
            _ => whole,
        }
    }

    fn history_from(&self, from: usize) -> History<'_> {
        let &Self { ref entries, ref timeline, ref segments, ref config, told, reach, .. } = self;
        History { entries, from, timeline, at_end: segments, config, told, reach }
    }

    /// Whether some of the state before the entry at `from` is from before the first entry.
    fn is_older_than(&self, start: &Start, from: usize) -> bool {
        let mut skipped: Vec<_> = self.entries[..from].iter().map(|entry| entry.address).collect();
        skipped.sort_unstable();
        let is_skipped = |segment: &SnapshotSegment| {
            let first = skipped.partition_point(|&address| address < segment.address);
            skipped.get(first).is_some_and(|at| at.0 - segment.address.0 < segment.total_size)
        };
        start.segments.iter().any(|segment| !is_skipped(segment))
    }

    /// While the engine takes a free block behind a block whose end is not known for sure, and the
    /// recording does not, moves that end. See Note \[Sizes at the start\].
    fn lengthen_blocks(&self, limit: Option<u64>, from: usize, start: Start, best: &mut Attempt) {
        let mut start = start;
        for _ in 0..MOST_LENGTHENED {
            if self.budget.is_spent() {
                return;
            }
            let Some(got) = best.parting.as_ref().and_then(|parting| parting.got) else { return };
            let longer = || {
                let free = best.player.free_before_cut(got.address)?;
                let more =
                    free.checked_sub(self.config.rounded_size(got.size)?)?.checked_add(512)?;
                lengthened(&start, &self.config, got.address, more)
            };
            let Some(longer) = longer().filter(|_| got.action == Action::Alloc) else { return };
            let attempt = self.replay_from(limit, from, &longer);
            if !attempt.goes_further_than(best) {
                return;
            }
            (start, *best) = (longer, attempt);
        }
    }

    /// Where to begin with a partial history. Frees that complete before anything else are part of the
    /// state; and if the first entries are the rest of a call that began before and do not fit any whole
    /// call, behind that one.
    fn beginnings(&self) -> Vec<usize> {
        let count = |inside: fn(Action) -> bool| {
            self.entries.iter().take_while(|entry| inside(entry.action)).count()
        };
        let completed = count(|action| action == Action::FreeCompleted);
        let call = count(belongs_to_a_call);
        let ends = self.entries.get(call).map(|entry| entry.action);
        let behind = call + usize::from(matches!(ends, Some(Action::Alloc | Action::Oom)));
        let mut beginnings = vec![completed];
        beginnings.extend((call > completed).then_some(behind));
        beginnings
    }

    fn replay_from(&self, limit: Option<u64>, from: usize, start: &Start) -> Attempt {
        let context = Arc::new(Context {
            timeline: Arc::clone(&self.timeline),
            limit_known: limit.is_some(),
            release: self.config.release(),
        });
        let pools = Pools::of(&self.entries, from, start, &self.segments, self.told);
        search(&Replay { recording: self, limit, from, start, context }, pools, &self.budget)
    }
}

/// How often the end of a block is moved.
const MOST_LENGTHENED: usize = 32;

/// One replay of a recording.
struct Replay<'a> {
    recording: &'a Recording<'a>,
    limit: Option<u64>,
    from: usize,
    start: &'a Start,
    context: Arc<Context>,
}

impl Task for Replay<'_> {
    fn begin(&self, pools: &Pools, order: &Order) -> Player {
        let Recording { ordinal, entries, timeline, total, config, .. } = self.recording;
        let id = DeviceId(*ordinal as u32);
        let device = Script::new(id, *total, Arc::clone(entries), timeline);
        let mut engine = Engine::new(device, config.clone());
        engine.explain_failures(false);
        engine.poll_events(false);
        engine.set_limit(self.limit.or(engine.limit()));
        let mut start = Start { order: order.oldest_first(), ..self.start.clone() };
        for (segment, before) in start.segments.iter_mut().zip(&self.start.segments) {
            segment.pool = pools.pool(Place::Start(place_at_start(self.start, before)));
        }
        Player::new(engine, Arc::clone(&self.context), &start, self.from)
    }

    fn compare_end(&self, player: &Player) -> Option<Parting> {
        let end = self.recording.entries.len();
        let partial = !player.reading.start.is_empty();
        let got = player.engine.segments();
        let difference = segments_difference(&self.recording.segments, &got, end, partial)?;
        Some(Parting::at_end(difference))
    }

    /// Memory was obtained although a free block would have served. Or it goes back in another order, or
    /// without waiting for others, unless garbage collection explains that.
    fn tells_of_private_pools(&self, parting: &Parting) -> bool {
        let got = parting.got.map(|got| got.action);
        match (parting.recorded, got) {
            (Some(Action::SegmentAlloc | Action::SegmentMap), Some(Action::Alloc)) => true,
            (Some(recorded), Some(got)) => {
                let collects = self.recording.config.garbage_collection_threshold() > 0.0;
                let otherwise = gives_back(got) || got == Action::FreeCompleted;
                !collects && gives_back(recorded) && otherwise
            }
            _ => false,
        }
    }

    fn len(&self) -> usize {
        self.recording.entries.len()
    }
}
