//! A recording from its file to its outcome.

use std::sync::Arc;

use thiserror::Error;
use tonnage_engine::{Config, Engine, Release, Start};
use tonnage_events::{Action, Bytes, DeviceId, PoolId, SnapshotSegment, TraceEntry};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

use super::final_state::segments_difference;
use super::inferred::describe;
use super::limit::find_limits;
use super::player::{Context, Parting, Player, belongs_to_a_call};
use super::reading::Reading;
use super::script::Script;
use super::settings::{config_of, release_of, total_of};
use super::start::{segments_of, start_of};
use super::timeline::Timeline;
use super::witness::first_contradicted;
use crate::outcome::{Difference, HistoryKind, Outcome};

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
        "the file has no memory history, only the state at the end ({0} segments): \
         call torch.cuda.memory._record_memory_history() before the work and dump the snapshot after it"
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

/// How often another reading may be tried from an earlier point.
const MOST_RETURNS: usize = 4_096;

/// How many earlier points are kept; each holds a copy of the state.
const MOST_POINTS: usize = 64;

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
    let ordinal = choose_device(file, options.ordinal)?;
    let recording = Recording::new(file, ordinal, options);
    Ok(recording.outcome())
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
struct Recording {
    ordinal: usize,
    entries: Arc<[TraceEntry]>,
    timeline: Arc<Timeline>,
    segments: Vec<SnapshotSegment>,
    config: Config,
    /// The settings as a string.
    conf: String,
    limit: Option<u64>,
    total: u64,
    inferred: Vec<String>,
    beginnings: Vec<Beginning>,
}

/// Where to begin: an entry and the state before it.
struct Beginning {
    from: usize,
    start: Start,
}

fn bytes_of(start: &Start) -> u64 {
    start.segments.iter().map(|segment| segment.total_size).sum()
}

/// A replay's end.
pub(super) struct Attempt {
    /// Where the engine and the recording part; none if they agree.
    pub(super) parting: Option<Parting>,
    player: Player,
}

impl Recording {
    fn new(file: &SnapshotFile, ordinal: usize, options: &RecordingOptions) -> Self {
        let mut inferred = Vec::new();
        let release = options.release.unwrap_or_else(|| release_of(file, &mut inferred));
        let default = AllocatorSettings::default();
        let settings = file.settings.as_ref().unwrap_or(&default);
        let (config, conf) = config_of(settings, release, &mut inferred);
        let segments = segments_of(file, ordinal);
        let skipped: usize = file.skipped_actions.values().sum();
        if skipped > 0 {
            let names: Vec<_> = file.skipped_actions.keys().map(String::as_str).collect();
            inferred.push(format!(
                "{skipped} entries with unknown actions ({}) were left out",
                names.join(", ")
            ));
        }
        let entries: Arc<[TraceEntry]> = file.traces[ordinal].as_slice().into();
        let start = start_of(&entries, 0, &segments, &config);
        let timeline = Arc::new(Timeline::of(&entries, bytes_of(&start)));
        let granted = timeline.granted_peak;
        let total =
            options.total.unwrap_or_else(|| total_of(&entries, &start, granted, &mut inferred));
        let limit = options.limit.map(|limit| match options.total {
            // PyTorch takes a fraction of the total, so the limit in force is what that makes of it.
            Some(total) if total > 0 => {
                let fraction = limit as f64 / total as f64;
                (fraction * total as f64) as u64
            }
            _ => limit,
        });
        let beginnings = vec![Beginning { from: 0, start }];
        Self { ordinal, entries, timeline, segments, config, conf, limit, total, inferred, beginnings }
    }

    fn outcome(self) -> (Outcome, Reading) {
        let contradicted = first_contradicted(&self.entries, &self.timeline, &self.segments);
        let attempt = self.replay(self.limit, &[]);
        let mut inferred = self.inferred.clone();
        describe(&attempt.player.notes, &attempt.player, self.limit, &mut inferred);
        let collects = self.config.garbage_collection_threshold() > 0.0;
        if self.limit.is_none() && (collects || attempt.parting.is_some()) {
            self.explain_limit(&attempt, &mut inferred);
        }
        let found = attempt.parting.map(|parting| parting.difference);
        let difference = match (found, contradicted) {
            (Some(found), Some(blamed)) if self.is_to_blame(&blamed, &found) => Some(blamed),
            (None, blamed) => blamed,
            (found, _) => found,
        };
        let outcome = Outcome {
            device: u32::try_from(self.ordinal).unwrap_or(u32::MAX),
            release: self.config.release(),
            events: self.entries.len(),
            history: if attempt.player.reading.start.is_empty() { HistoryKind::Whole } else { HistoryKind::Partial },
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

    /// Says which limits would do, where no reading without one did.
    fn explain_limit(&self, attempt: &Attempt, inferred: &mut Vec<String>) {
        if attempt.parting.is_none() {
            inferred.push(
                "limit: garbage_collection_threshold is set but works only under a limit, and none was given; \
                 nothing in the recording shows one"
                    .to_owned(),
            );
            return;
        }
        let lowest = self.timeline.granted_peak;
        let highest = self.total.max(lowest);
        let found = find_limits(lowest, highest, |limit| self.replay(Some(limit), &[]));
        if let Some((from, to)) = found {
            inferred.push(format!(
                "limit: no reading fits without one; limits from {from} to {to} bytes ({} to {}) reproduce the \
                 recording: try --limit {from}",
                Bytes(from),
                Bytes(to),
            ));
        }
    }

    /// Replays under a limit, with private pools beyond those of the final state if the recording
    /// cannot be read without.
    fn replay(&self, limit: Option<u64>, extra_pools: &[PoolId]) -> Attempt {
        let mut pools: Vec<_> = self.segments.iter().map(|segment| segment.pool).collect();
        pools.extend(extra_pools);
        pools.retain(|pool| !pool.is_default());
        pools.sort_unstable();
        pools.dedup();
        let retry_with_pool = pools.is_empty();
        let context = Context {
            timeline: Arc::clone(&self.timeline),
            segments: self.segments.clone(),
            pools,
            limit_known: limit.is_some(),
        };
        let attempt = self.search(limit, Arc::new(context));
        // A segment obtained although a free block would have served tells of another pool.
        let other_pool = attempt.parting.as_ref().is_some_and(|parting| {
            matches!(parting.recorded, Some(Action::SegmentAlloc | Action::SegmentMap))
                && parting.got == Some(Action::Alloc)
        });
        if retry_with_pool && other_pool {
            let other = self.replay(limit, &[PoolId(0, 1)]);
            if other.parting.is_none() {
                return other;
            }
        }
        attempt
    }

    /// Tries readings, depth first, until one fits to the end.
    fn search(&self, limit: Option<u64>, context: Arc<Context>) -> Attempt {
        let device =
            Script::new(DeviceId(self.ordinal as u32), self.total, Arc::clone(&self.entries));
        let mut engine = Engine::new(device, self.config.clone());
        engine.set_limit(limit.or(engine.limit()));
        let Beginning { from, start } = &self.beginnings[0];
        let mut player = Player::new(engine, context, start, *from);
        let mut others = Vec::new();
        let mut best: Option<Attempt> = None;
        for _ in 0..=MOST_RETURNS {
            let parting = self.play(&mut player, &mut others);
            let attempt = Attempt { parting, player };
            best = Some(match best {
                Some(best) if !attempt.goes_further_than(&best) => best,
                _ => attempt,
            });
            match (&best, others.pop()) {
                (Some(Attempt { parting: Some(_), .. }), Some(other)) => player = other,
                _ => break,
            }
        }
        best.expect("at least one reading was played")
    }

    fn play(&self, player: &mut Player, others: &mut Vec<Player>) -> Option<Parting> {
        while !player.at_end() {
            if let Err(parting) = player.step(others) {
                return Some(parting);
            }
            if others.len() > MOST_POINTS {
                others.remove(0);
            }
        }
        let end = self.entries.len();
        let difference = segments_difference(&self.segments, &player.engine.segments(), end, !player.reading.start.is_empty())?;
        Some(Parting { difference, recorded: None, got: None })
    }
}

impl Attempt {
    fn goes_further_than(&self, other: &Self) -> bool {
        let reach = |attempt: &Self| {
            attempt.parting.as_ref().map_or(usize::MAX, |parting| parting.difference.event)
        };
        reach(self) > reach(other)
    }
}
