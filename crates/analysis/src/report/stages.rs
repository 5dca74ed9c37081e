//! The stages of the report, each with what it yields. A stage takes only what those before it yield.
//!
//! | stage | yields | from |
//! | --- | --- | --- |
//! | 1 [`History`] | lifetimes, levels, live bytes, and what a replay concluded | the file |
//! | 2 [`FullestReserved`] | when reserved memory first peaks, and what of it is waste | 1 |
//! | 3 [`Grown`] | iterations, and what each allocation does over them | 1, 2 |
//! | 4 [`PeakReport`] | what is live when most is | 1, 2, 3 |
//! | 5 [`Failures`] | requests that failed, and the bytes of the device | 1 |
//! | 6 [`Judgement`] | the causes and the verdict | 1 to 5 |

use tonnage_events::{BlockState, Bytes, StreamId};
use tonnage_replay::Outcome;
use tonnage_replay::job::Job;
use tonnage_replay::recording::{Reading, RecordingOptions, read_recording_until};

use super::ReportOptions;
use super::circumstances::Circumstances;
use super::failure::{FailureAnswer, LastFailure};
use super::growth::Grown;
use super::lines::Lines;
use super::moments::{live_after, live_peak, near_peak, reserved_peak};
use super::oom::{self, OomReport};
use super::peak::{PeakReport, ReservedPeak};
use super::purpose::Purposes;
use super::settings::{Tried, try_settings};
use super::state::States;
use super::summary::HOW_TO_RECORD;
use super::total::total_of;
use super::verdict::{self, Cause, PeakContext, Verdict};
use super::waste::WasteReport;
use crate::device_view::DeviceView;
use crate::inspect::{HistoryKind, history_of};
use crate::levels::Levels;
use crate::lifetimes::{Lifetimes, Moment};
use crate::total_bytes::TotalBytes;

/// Entries of a history that is read where time is short. Chosen: a second is enough for them.
const READ_IN_TIME: usize = 200_000;

/// Stage 1: what a device's entries tell, and what a replay of them concludes.
pub(super) struct History {
    pub(super) kind: HistoryKind,
    pub(super) lifetimes: Lifetimes,
    pub(super) levels: Levels,
    /// Live requested bytes after every entry.
    live: Vec<u64>,
    replay: Option<Replayed>,
}

/// What a replay concludes.
struct Replayed {
    outcome: Outcome,
    reading: Reading,
    job: Job,
}

impl History {
    pub(super) fn read(device: &DeviceView<'_>, options: &ReportOptions) -> Self {
        let look = || {
            let lifetimes = Lifetimes::of(device);
            let levels = Levels::of(device, &lifetimes);
            (lifetimes, levels)
        };
        // Reading a history takes a replay by itself, which is stopped only between its plays.
        let long = options.until.has_time() && device.entries.len() > READ_IN_TIME;
        let late = long || options.until.is_over();
        let without = options.without_replay || device.entries.is_empty() || late;
        let ((lifetimes, levels), replay) = if without {
            (look(), None)
        } else {
            // The replay and the look at the entries need nothing of each other.
            std::thread::scope(|scope| {
                let looking = std::thread::Builder::new().spawn_scoped(scope, look);
                let replay = Replayed::of(device, options);
                let looked = match looking {
                    Ok(looking) => looking.join(),
                    // The system has no thread more.
                    Err(_) => Ok(look()),
                };
                (looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), replay)
            })
        };
        let kind = history_of(device, &lifetimes, &levels.start);
        let live = live_after(lifetimes.iter(), device.entries.len());
        Self { kind, lifetimes, levels, live, replay }
    }

    /// What other settings make of the job, and of its last request that failed.
    pub(super) fn try_settings(
        &self,
        device: &DeviceView<'_>,
        options: &ReportOptions,
    ) -> (Option<Tried>, Option<FailureAnswer>) {
        let last = LastFailure::of(device, &self.lifetimes, &self.levels, options.limit);
        match &self.replay {
            Some(_) if options.settings_for_failures && last.is_none() => (None, None),
            Some(Replayed { outcome, job, .. }) => {
                try_settings(job, outcome, last.as_ref(), options)
            }
            None => (None, last.map(|last| last.untried())),
        }
    }

    /// The allocator's state at any moment.
    pub(super) fn states<'a>(&'a self, device: &'a DeviceView<'a>) -> States<'a> {
        let pools = self.replay.as_ref().map_or(&[][..], |it| &it.reading.pools);
        States::new(device, &self.lifetimes, &self.levels, pools)
    }

    /// Stage 3: what grows from one iteration to the next. `full` is when reserved memory first peaks.
    pub(super) fn growth(
        &self,
        device: &DeviceView<'_>,
        full: Moment,
        lines: &mut Lines<'_>,
    ) -> Grown {
        Grown::of(device, &self.lifetimes, &self.levels, &self.live, full, lines)
    }

    /// Stage 4: what is live when most is.
    pub(super) fn live_peak(
        &self,
        device: &DeviceView<'_>,
        reserved: ReservedPeak,
        grown: &Grown,
        lines: &mut Lines<'_>,
    ) -> PeakReport {
        let purposes = Purposes::new(device, grown);
        let top = live_peak(&self.live, &self.lifetimes, device);
        let peak = PeakReport::of(device, &self.lifetimes, top, reserved, &purposes, lines);
        let iteration = grown.iterations.as_ref().and_then(|loops| loops.of(top.event()?));
        PeakReport { iteration, ..peak }
    }

    /// What the program was doing when it failed, or when most was live.
    pub(super) fn circumstances<'a>(
        &'a self,
        device: &'a DeviceView<'a>,
        grown: &Grown,
        failures: &Failures,
    ) -> Circumstances<'a> {
        let failed = failures.explained.last().filter(|it| it.fatal).map(|it| it.event);
        let purposes = Purposes::new(device, grown);
        let most_live = live_peak(&self.live, &self.lifetimes, device);
        Circumstances::of(device, &self.lifetimes, grown, &purposes, failed, most_live)
    }

    /// The most live requested bytes from a moment on.
    fn most_live_from(&self, moment: Moment) -> u64 {
        let later = self.live.get(moment.event().unwrap_or(0)..).unwrap_or_default();
        later.iter().copied().max().unwrap_or(0)
    }

    /// What the file does not say and the replay concluded, and what is missing.
    pub(super) fn notes(&self, tried: Option<&Tried>) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(Replayed { outcome, .. }) = &self.replay {
            notes.extend(outcome.inferred.iter().cloned());
            if let Some(difference) = &outcome.difference {
                notes.push(format!(
                    "the replay is exact up to entry {}; what settings save is less sure behind it",
                    difference.event
                ));
            }
        }
        if let Some(tried) = tried.filter(|it| it.shortened) {
            notes.push(format!(
                "a long history: {} settings were tried; `tonnage tune` tries all",
                tried.settings
            ));
        }
        if self.kind == HistoryKind::None {
            notes.push(format!(
                "no history: this is the state when the snapshot was taken, not the peak; {HOW_TO_RECORD}"
            ));
        }
        notes
    }
}

impl Replayed {
    fn of(device: &DeviceView<'_>, options: &ReportOptions) -> Option<Self> {
        let recording = RecordingOptions {
            limit: options.limit,
            total: options.total,
            release: options.release,
            ordinal: Some(device.device.0 as usize),
        };
        let (outcome, reading) =
            read_recording_until(device.file, &recording, &options.until).ok()?;
        let job = Job::new(device.entries, &reading);
        Some(Self { outcome, reading, job })
    }
}

/// Stage 2: when reserved memory first peaks.
pub(super) struct FullestReserved {
    /// The end of the request that grew it.
    pub(super) moment: Moment,
    /// The stream that grew.
    stream: StreamId,
    pub(super) reserved: ReservedPeak,
    /// What of it is of no use.
    pub(super) waste: WasteReport,
}

impl FullestReserved {
    pub(super) fn of(
        device: &DeviceView<'_>,
        history: &History,
        states: &States<'_>,
        lines: &mut Lines<'_>,
    ) -> Self {
        let (moment, stream) = reserved_peak(device, &history.levels, &history.live);
        let segments = states.at(moment);
        let blocks = segments.iter().flat_map(|it| &it.blocks);
        let held = blocks.filter(|it| it.state == BlockState::ActiveAllocated);
        let reserved = ReservedPeak {
            event: moment.event().unwrap_or(0),
            bytes: segments.iter().map(|it| it.total_size).total_bytes(),
            requested: held.map(|it| it.requested_size).total_bytes(),
            stream: stream.0,
        };
        let waste = WasteReport::of(&segments, stream, &device.sizing(), lines);
        Self { moment, stream, reserved, waste }
    }
}

/// Stage 5: the requests that failed.
pub(super) struct Failures {
    /// How many there are.
    pub(super) count: usize,
    /// The first of them and the last.
    pub(super) explained: Vec<OomReport>,
    /// Bytes of the device, as someone said.
    said: Option<u64>,
    /// The same, by the addresses of the file; none where someone said.
    by_addresses: Option<u64>,
}

impl Failures {
    pub(super) fn of(
        device: &DeviceView<'_>,
        history: &History,
        states: &States<'_>,
        said: Option<u64>,
        lines: &mut Lines<'_>,
    ) -> Self {
        let levels = &history.levels;
        let by_addresses = said.is_none().then(|| total_of(device, levels)).flatten();
        let (count, explained) = oom::ooms(device, states, levels, said.or(by_addresses), lines);
        Self { count, explained, said, by_addresses }
    }

    /// Bytes of the device, if known.
    pub(super) fn total(&self) -> Option<u64> {
        self.said.or(self.by_addresses)
    }

    /// Where the total comes from, or that it is missing.
    pub(super) fn add_notes(&self, notes: &mut Vec<String>) {
        if let Some(total) = self.by_addresses
            && !notes.iter().any(|note| note.starts_with("device total: "))
        {
            notes.push(format!(
                "device total: about {}, by the address ranges of expandable segments",
                Bytes(total)
            ));
        }
        if self.total().is_none() && self.explained.iter().any(|it| !it.by_limit) {
            notes.push(
                "the device was full: how much of it others held shows with --total SIZE, the bytes that nvidia-smi lists for it"
                    .to_owned(),
            );
        }
    }
}

/// Stage 6: what limits the job.
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    /// Every cause that has bytes, largest first.
    pub(super) causes: Vec<Verdict>,
}

impl Judgement {
    /// See Note \[The rule\] in `verdict.rs`.
    #[allow(clippy::too_many_arguments, reason = "the last stage weighs what all others yield")]
    pub(super) fn of(
        device: &DeviceView<'_>,
        history: &History,
        states: &States<'_>,
        full: &FullestReserved,
        grown: &Grown,
        peak: &PeakReport,
        failures: &Failures,
        answer: Option<&FailureAnswer>,
        lines: &mut Lines<'_>,
    ) -> Self {
        let growth = &grown.growth;
        let need = verdict::need(peak);
        let mut causes = verdict::avoidable(&full.waste, growth, peak, &failures.explained);
        let reserved = full.reserved.bytes;
        let nearly = near_peak(&history.levels, reserved).unwrap_or(full.moment);
        let near = WasteReport::of(&states.at(nearly), full.stream, &device.sizing(), lines);
        let live_later = history.most_live_from(full.moment);
        let context = PeakContext { near: &near, reserved, live_later, growth };
        let mut verdict = verdict::choose(&need, &causes, &context).clone();
        causes.push(need);
        if verdict.cause == Cause::Need
            && let Some(oom) = failures.explained.last().filter(|it| it.fatal)
            && let Some(at_the_end) = at_the_last_request(device, states, oom, reserved, lines)
        {
            causes.retain(|it| it.cause != at_the_end.cause);
            causes.push(at_the_end.clone());
            verdict = at_the_end;
        }
        if let Some(answer) = answer {
            let waste = || {
                let segments = states.at(Moment::Event(answer.event));
                let stream = device.entries[answer.event].stream;
                WasteReport::of(&segments, stream, &device.sizing(), lines)
            };
            if let Some(other) = verdict::of_failure(verdict.cause, answer, waste) {
                causes.retain(|it| it.cause != other.cause);
                causes.push(other.clone());
                verdict = other;
            }
        }
        if history.kind == HistoryKind::None {
            verdict = verdict::of_a_state(&full.reserved);
            causes.retain(|it| it.cause == Cause::Need);
            causes.push(verdict.clone());
        }
        verdict::sort(&mut causes, verdict.cause);
        Self { verdict, causes }
    }
}

/// The waste that kept the last request from being served, if that is why it failed.
fn at_the_last_request(
    device: &DeviceView<'_>,
    states: &States<'_>,
    oom: &OomReport,
    reserved_peak: u64,
    lines: &mut Lines<'_>,
) -> Option<Verdict> {
    // A limit is at least what was ever reserved.
    let free = if oom.by_limit { 0 } else { oom.device_free };
    let capacity = oom.reserved.saturating_add(free).max(reserved_peak);
    let segments = states.at(Moment::Event(oom.event));
    let waste = WasteReport::of(&segments, StreamId(oom.stream), &device.sizing(), lines);
    verdict::at_the_end(oom, &waste, capacity)
}
