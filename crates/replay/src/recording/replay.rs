//! A recording from its file to its outcome.

use std::sync::Arc;

use thiserror::Error;
use tonnage_engine::config::RecordedSettings;
use tonnage_engine::{Config, Engine, Release};
use tonnage_events::{Action, Bytes, DeviceId, PoolId, SnapshotSegment, TraceEntry};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

use super::limit::find_limits;
use super::player::{Context, Notes, Parting, Player, belongs_to_a_call};
use super::reading::Reading;
use super::script::Script;
use super::timeline::Timeline;
use super::witness::first_contradicted;
use crate::outcome::{Difference, Outcome};

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

/// Device total to assume if nothing tells it. It sizes expandable ranges and nothing else, and
/// larger ones decide the same as long as no range is exhausted.
const ASSUMED_TOTAL: u64 = 1 << 40;

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
        let on_device = |segment: &&SnapshotSegment| segment.device.0 as usize == ordinal;
        let mut segments: Vec<_> = file.segments.iter().filter(on_device).cloned().collect();
        segments.sort_by_key(|segment| segment.address);
        let skipped: usize = file.skipped_actions.values().sum();
        if skipped > 0 {
            let names: Vec<_> = file.skipped_actions.keys().map(String::as_str).collect();
            inferred.push(format!(
                "{skipped} entries with unknown actions ({}) were left out",
                names.join(", ")
            ));
        }
        let entries: Arc<[TraceEntry]> = file.traces[ordinal].as_slice().into();
        let timeline = Arc::new(Timeline::of(&entries));
        let total = options.total.unwrap_or_else(|| total_of(&entries, &timeline, &mut inferred));
        let limit = options.limit.map(|limit| match options.total {
            // PyTorch takes a fraction of the total, so the limit in force is what that makes of it.
            Some(total) if total > 0 => {
                let fraction = limit as f64 / total as f64;
                (fraction * total as f64) as u64
            }
            _ => limit,
        });
        Self { ordinal, entries, timeline, segments, config, conf, limit, total, inferred }
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
        if self.timeline.partial && attempt.parting.is_some() {
            inferred.push(
                "the history does not go back to the beginning: entries speak of memory that no earlier \
                 entry obtained"
                    .to_owned(),
            );
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
        let mut player = Player::new(engine, context);
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
        let difference = segments_difference(&self.segments, &player.engine.segments(), end)?;
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

/// The first segment or block at the end that is not as recorded.
fn segments_difference(
    expected: &[SnapshotSegment],
    got: &[SnapshotSegment],
    event: usize,
) -> Option<Difference> {
    let longest = expected.len().max(got.len());
    (0..longest).find_map(|index| {
        let (expected, got) = match (expected.get(index), got.get(index)) {
            (Some(expected), Some(got)) => segment_difference(expected, got)?,
            (expected, got) => (show(expected), show(got)),
        };
        Some(Difference { event, expected, got })
    })
}

fn show(segment: Option<&SnapshotSegment>) -> String {
    let Some(it) = segment else { return "no more segments at the end".to_owned() };
    let (address, size, stream, kind, pool) =
        (it.address, it.total_size, it.stream, it.kind, it.pool);
    let how = if it.expandable { "expandable" } else { "fixed" };
    format!(
        "at the end a {how} segment at {address}, {size} bytes, stream {stream}, {kind} pool {pool}"
    )
}

fn segment_difference(
    expected: &SnapshotSegment,
    got: &SnapshotSegment,
) -> Option<(String, String)> {
    let sums = |it: &SnapshotSegment| (it.allocated_size, it.active_size, it.requested_size);
    let head = |it: &SnapshotSegment| {
        (it.address, it.total_size, it.stream, it.kind, it.pool, it.expandable)
    };
    if head(expected) != head(got) {
        return Some((show(Some(expected)), show(Some(got))));
    }
    let blocks = expected.blocks.len().max(got.blocks.len());
    for index in 0..blocks {
        let block = |segment: &SnapshotSegment| {
            segment.blocks.get(index).map_or_else(
                || format!("no more blocks in the segment at {}", segment.address),
                |it| {
                    let (address, size, requested, state) =
                        (it.address, it.size, it.requested_size, it.state);
                    format!("at the end a block at {address}, {size} bytes, {requested} requested, {state}")
                },
            )
        };
        let (expected, got) = (block(expected), block(got));
        if expected != got {
            return Some((expected, got));
        }
    }
    let show = |it: &SnapshotSegment| {
        let (allocated, active, requested) = sums(it);
        format!(
            "{} allocated, {active} active and {requested} requested bytes in the segment at {}",
            allocated, it.address
        )
    };
    (sums(expected) != sums(got)).then(|| (show(expected), show(got)))
}

/// The release that wrote the file, from the keys of its entries.
fn release_of(file: &SnapshotFile, inferred: &mut Vec<String>) -> Release {
    let release = if file.keys.user_metadata || file.keys.forward_frames {
        Release::V2_11
    } else {
        Release::V2_9
    };
    let sure = match release {
        _ if file.keys.forward_frames => "",
        Release::V2_11 => ", as far as its keys tell; 2.10 looks the same (--pytorch 2.10)",
        _ => ", as far as its keys tell",
    };
    inferred.push(format!("release: {release}{sure}"));
    release
}

/// The device's total, from how far apart its expandable ranges lie: each is an eighth larger than
/// the device.
fn total_of(entries: &[TraceEntry], timeline: &Timeline, inferred: &mut Vec<String>) -> u64 {
    let maps = entries.iter().filter(|entry| entry.action == Action::SegmentMap);
    let mut starts: Vec<_> = maps.map(|entry| entry.address.0).collect();
    if starts.is_empty() {
        return ASSUMED_TOTAL;
    }
    starts.sort_unstable();
    // Pages of one range lie together: farther apart than all memory there ever was, they belong to
    // two.
    let mut bases = vec![starts[0]];
    for pair in starts.windows(2) {
        if pair[1] - pair[0] > timeline.granted_peak {
            bases.push(pair[1]);
        }
    }
    let apart = bases.windows(2).map(|pair| pair[1] - pair[0]).min();
    let total = apart.map_or(ASSUMED_TOTAL, |apart| apart / 9 * 8);
    inferred.push(format!(
        "device total: at most {}, by the address ranges of expandable segments, which it sizes",
        Bytes(total)
    ));
    total
}

/// The settings of a recording, and as a string: the recorded one, and over it the separate fields.
fn config_of(
    settings: &AllocatorSettings,
    release: Release,
    inferred: &mut Vec<String>,
) -> (Config, String) {
    let parsed = Config::parse(&settings.conf, release);
    let valid = parsed.is_ok();
    let mut config = parsed.unwrap_or_else(|error| {
        inferred.push(format!("settings: the string is not valid: {error}"));
        Config::for_release(release)
    });
    let overrides = config.apply_recorded(RecordedSettings {
        max_split_size: settings.max_split_size,
        garbage_collection_threshold: settings.garbage_collection_threshold,
        expandable_segments: settings.expandable_segments,
        roundup_power2_divisions: settings.roundup_power2_divisions,
        release_lock_on_cudamalloc: settings.release_lock_on_cudamalloc,
        graph_capture_record_stream_reuse: settings.graph_capture_record_stream_reuse,
        pinned_use_cuda_host_register: settings.pinned_use_cuda_host_register,
        pinned_num_register_threads: settings.pinned_num_register_threads,
    });
    for changed in &overrides {
        inferred.push(format!("settings: changed at run time: {changed}"));
    }
    let as_recorded = valid && overrides.is_empty();
    let conf = if as_recorded { settings.conf.clone() } else { config.to_conf_string() };
    (config, conf)
}

/// What the player concluded, in words.
fn describe(notes: &Notes, player: &Player, limit: Option<u64>, inferred: &mut Vec<String>) {
    if notes.refused > 0 {
        let refusals = &player.engine.device().refusals;
        let below =
            refusals.iter().map(|it| it.granted.saturating_add(it.asked)).min().unwrap_or(0);
        let most = player.granted_peak();
        let mut text = format!(
            "limit: requests that gave cached memory back or failed are read as refused by the driver: {}",
            notes.refused
        );
        if limit.is_none() && most < below {
            text += &format!("; a limit from {most} to {} bytes explains them too", below - 1);
        }
        if notes.or_emptied > 0 {
            text += &format!(
                "; an empty_cache before the request explains as well: {}",
                notes.or_emptied
            );
        }
        inferred.push(text);
    }
    if notes.emptied > 0 {
        inferred.push(format!(
            "empty_cache: calls that released memory: {}; calls that released nothing leave no trace",
            notes.emptied
        ));
    }
    if notes.pending > 0 {
        inferred.push(format!(
            "record_stream: blocks freed while another stream could use them: {}; which stream is not in \
             the file",
            notes.pending
        ));
    }
    if notes.pools_chosen > 0 {
        inferred.push(format!(
            "pools: segments gone by the end that fit a private pool only: {}",
            notes.pools_chosen
        ));
    }
}
