//! The diagnosis: what happened, why, and the one change that helps most.
//!
//! In:  a [`SnapshotFile`], and what it does not say ([`ReportOptions`]).
//! Out: a [`Report`], a plain value: text, JSON and pages are printed from it and add no figures.
//!
//! | part | lives in |
//! | --- | --- |
//! | where iterations begin | `iterations.rs`; by the optimizer's marks: `marks.rs` |
//! | what stays, leaks and passes | `fate.rs` |
//! | what grows | `growth.rs` |
//! | the state at a moment | `state.rs` |
//! | reserved memory of no use, and whose | `waste.rs` |
//! | what bytes are for | `purpose.rs` |
//! | what all bytes of a history are for | `told.rs` |
//! | what held the peak | `peak.rs` |
//! | failed requests | `oom.rs` |
//! | the device's bytes | `total.rs` |
//! | settings, by replay | `settings.rs` |
//! | the causes and the verdict | `verdict.rs` |
//! | what to do | `advice.rs` |
//! | memory over time, to draw | `timeline.rs` |
//! | as text | `text.rs` |
//! | several files | `ranks.rs` |

mod lines;

mod iterations;

mod marks;

mod fate;

mod growth;

mod state;

mod waste;

mod purpose;

mod told;

mod peak;

mod oom;

mod total;

mod settings;

mod verdict;

mod advice;

mod timeline;

mod text;

mod ranks;

use std::fmt;

use serde::Serialize;
use tonnage_engine::Release;
use tonnage_events::{Action, BlockState, Bytes, StackId, StreamId};
use tonnage_replay::job::Job;
use tonnage_replay::recording::{Reading, RecordingOptions, read_recording};
use tonnage_snapshot::SnapshotFile;

pub use advice::{Advice, Basis};
pub use growth::{GrowingLine, Growth, GrowthKind, Iteration};
pub use iterations::IterationSource;
pub use oom::OomReport;
pub use peak::{Held, HeldFor, HeldStack, Holder, PeakReport, ReservedPeak};
pub use purpose::{Confidence, Purpose};
pub use ranks::{RankRow, Ranks};
pub use settings::Tried;
pub use timeline::{Column, Span, Timeline};
pub use told::Told;
pub use verdict::{Cause, Verdict};
pub use waste::{BlamedBlock, BlamedLine, WasteOfKind, WasteReport};

use crate::device_view::{DeviceView, devices};
use crate::inspect::{DeviceInspection, HistoryKind};
use crate::levels::Levels;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};
use growth::Grown;
use lines::Lines;
use purpose::Purposes;
use state::States;
use verdict::Around;

/// What a file does not say.
#[derive(Clone, Debug, Default)]
pub struct ReportOptions {
    /// The limit on reserved bytes that was in force.
    pub limit: Option<u64>,
    /// Bytes of the device.
    pub total: Option<u64>,
    /// The release whose rules held; told from the file if none.
    pub release: Option<Release>,
    /// The device, if the file has several; else the one with most entries, or most memory.
    pub ordinal: Option<usize>,
    /// Leave out the replay under other settings.
    pub without_replay: bool,
}

/// A file without anything to report on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportError {
    /// Nothing was allocated and nothing was recorded.
    Empty,
    /// The device is not in the file.
    NoSuchDevice {
        /// The one that was asked for.
        ordinal: usize,
        /// Those that are there.
        present: Vec<u32>,
    },
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(
                f,
                "nothing was allocated and nothing was recorded: call \
                 torch.cuda.memory._record_memory_history() before the work and dump the snapshot after it"
            ),
            Self::NoSuchDevice { ordinal, present } => {
                let present: Vec<_> = present.iter().map(ToString::to_string).collect();
                write!(f, "device {ordinal} is not in this file; these are: {}", present.join(", "))
            }
        }
    }
}

impl std::error::Error for ReportError {}

/// The diagnosis of one device of a file.
///
/// ```
/// use tonnage_analysis::report::{Report, ReportOptions};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/gpt2_varlen.default.pickle.zst");
/// let file = tonnage_snapshot::open(path.as_ref())?;
/// let report = Report::of(&file, &ReportOptions::default())?;
/// println!("{}", report.verdict.text);
/// let peak = &report.peak.reserved;
/// assert_eq!(peak.requested + report.waste.total(), peak.bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device's ordinal.
    pub device: u32,
    /// Entries of its history.
    pub events: usize,
    /// How far back that goes.
    pub history: HistoryKind,
    /// The settings string; empty for the defaults.
    pub conf: String,
    /// The limit on reserved bytes, if one is known.
    pub limit: Option<u64>,
    /// Bytes of the device, if known.
    pub total: Option<u64>,
    /// What limits the job.
    pub verdict: Verdict,
    /// Every cause that has bytes, largest first.
    pub causes: Vec<Verdict>,
    /// Reserved memory of no use where reserved first peaks, by kind.
    pub waste: WasteReport,
    /// For each kind of waste the lines and blocks to blame.
    pub blame: Vec<Blame>,
    /// What held the memory.
    pub peak: PeakReport,
    /// What grows from one iteration to the next.
    pub growth: Growth,
    /// How many requests failed.
    pub failed_requests: usize,
    /// The first of them and the last, explained.
    pub ooms: Vec<OomReport>,
    /// What to change, the most useful first.
    pub advice: Vec<Advice>,
    /// What the settings make of the job; none without a history.
    pub settings: Option<Tried>,
    /// What the file does not say and was concluded instead.
    pub notes: Vec<String>,
    /// Memory over time: drawn, not read, so no part of the JSON.
    #[serde(skip)]
    pub timeline: Timeline,
}

/// The lines and blocks to blame for one kind of waste.
#[derive(Clone, Debug, Serialize)]
pub struct Blame {
    /// The kind.
    pub kind: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// Lines, largest first.
    pub lines: Vec<BlamedLine>,
    /// The largest blocks.
    pub blocks: Vec<BlamedBlock>,
}

/// The form of the JSON; counts up when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    file: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

impl Report {
    /// Looks at one device of a file.
    ///
    /// # Errors
    ///
    /// If there is nothing to look at.
    pub fn of(file: &SnapshotFile, options: &ReportOptions) -> Result<Self, ReportError> {
        let devices = devices(file);
        let device = choose_device(&devices, options.ordinal)?;
        let mut notes = Vec::new();
        let mut replayed = None;
        let mut reading = Reading::default();
        let mut job = None;
        // The replay and the look at the entries need nothing of each other.
        let (lifetimes, levels) = std::thread::scope(|scope| {
            let look = scope.spawn(|| {
                let lifetimes = Lifetimes::of(device);
                let levels = Levels::of(device, &lifetimes);
                (lifetimes, levels)
            });
            if !options.without_replay && !device.entries.is_empty() {
                let recording = RecordingOptions {
                    limit: options.limit,
                    total: options.total,
                    release: options.release,
                    ordinal: Some(device.device.0 as usize),
                };
                if let Ok((outcome, read)) = read_recording(file, &recording) {
                    job = Some(Job::new(device.entries, &read));
                    replayed = Some(outcome);
                    reading = read;
                }
            }
            look.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let tried = job.as_ref().zip(replayed.as_ref()).and_then(|(job, outcome)| {
            let (limit, total) = (options.limit, options.total);
            settings::try_settings(job, outcome.release, &outcome.conf, limit, total)
        });
        if let Some(outcome) = &replayed {
            notes.extend(outcome.inferred.iter().cloned());
            if let Some(difference) = &outcome.difference {
                notes.push(format!(
                    "the replay is exact up to entry {}; what settings save is less sure behind it",
                    difference.event
                ));
            }
        }
        if let Some(tried) = tried.as_ref().filter(|it| it.shortened) {
            notes.push(format!(
                "a long history: {} settings were tried; `tonnage tune` tries all",
                tried.settings
            ));
        }
        let mut report = Self::look(device, &lifetimes, &levels, &reading, options, notes);
        report.advice = advice::advise(&report, tried.as_ref(), trains(device));
        report.verdict.text = paragraph(&report, tried.as_ref());
        report.settings = tried;
        Ok(report)
    }

    fn look(
        device: &DeviceView<'_>,
        lifetimes: &Lifetimes,
        levels: &Levels,
        reading: &Reading,
        options: &ReportOptions,
        mut notes: Vec<String>,
    ) -> Self {
        let mut lines = Lines::new(&device.file.stacks);
        let inspection = DeviceInspection::with(device, lifetimes, levels);
        if inspection.history == HistoryKind::None {
            notes.push(
                "no history: this is the state when the snapshot was taken, not the peak; call \
                 torch.cuda.memory._record_memory_history() before the work"
                    .to_owned(),
            );
        }
        let live = live_after(lifetimes.iter(), device.entries.len());
        let (grew_at, stream) = reserved_peak(device, levels, &live);
        let states = States::new(device, lifetimes, levels, &reading.pools);
        let segments = states.at(grew_at);
        let config = device.sizing();
        let waste = WasteReport::of(&segments, stream, &config, &mut lines);
        let blocks = segments.iter().flat_map(|it| &it.blocks);
        let held = blocks.filter(|it| it.state == BlockState::ActiveAllocated);
        let reserved = ReservedPeak {
            event: grew_at.event().unwrap_or(0),
            bytes: segments.iter().map(|it| it.total_size).sum(),
            requested: held.map(|it| it.requested_size).sum(),
            stream: stream.0,
        };
        let grown = Grown::of(device, lifetimes, levels, &live, grew_at, &mut lines);
        let purposes = Purposes::new(device, &grown);
        let top = live_peak(&live, lifetimes, device);
        let mut peak = PeakReport::of(device, lifetimes, top, reserved, &purposes, &mut lines);
        peak.iteration = grown.iterations.as_ref().and_then(|loops| loops.of(top.event()?));
        let told = options.total.is_none().then(|| total::total_of(device, levels)).flatten();
        if let Some(total) = told
            && !notes.iter().any(|note| note.starts_with("device total: "))
        {
            notes.push(format!(
                "device total: about {}, by the address ranges of expandable segments",
                Bytes(total)
            ));
        }
        let total = options.total.or(told);
        let (failed_requests, ooms) = oom::ooms(device, &states, total, &mut lines);
        if total.is_none() && ooms.iter().any(|it| !it.by_limit) {
            notes.push(
                "the device was full: with --total SIZE, its bytes, the report says how much others held"
                    .to_owned(),
            );
        }
        let causes = verdict::causes(&waste, &grown.growth, &peak, &ooms);
        let near = near_peak(levels, reserved.bytes).unwrap_or(grew_at);
        let near = states.at(near);
        let near = WasteReport::of(&near, stream, &config, &mut lines);
        let later = live.get(grew_at.event().unwrap_or(0)..).unwrap_or_default();
        let live_later = later.iter().copied().max().unwrap_or(0);
        let growth = &grown.growth;
        let around = Around { near: &near, reserved: reserved.bytes, live_later, growth };
        let chosen = verdict::choose(&causes, &around).cloned();
        let verdict = chosen.unwrap_or_else(|| causes[0].clone());
        let blame = waste
            .kinds
            .iter()
            .filter(|it| it.bytes > 0)
            .map(|it| Blame {
                kind: it.kind.name(),
                bytes: it.bytes,
                lines: it.lines.clone(),
                blocks: it.blocks.clone(),
            })
            .collect();
        Self {
            device: device.device.0,
            events: device.entries.len(),
            history: inspection.history,
            conf: device.file.settings.as_ref().map_or(String::new(), |it| it.conf.clone()),
            limit: options.limit,
            total,
            verdict,
            causes,
            waste,
            blame,
            peak,
            timeline: Timeline::of(device, levels, grown.iterations.as_ref()),
            growth: grown.growth,
            failed_requests,
            ooms,
            advice: Vec::new(),
            settings: None,
            notes,
        }
    }

    /// The report as one JSON object.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, file: &str) -> String {
        let json = Json { schema: SCHEMA, file, report: self };
        serde_json::to_string_pretty(&json).expect("numbers and strings can be written")
    }

    /// The report as a page of text, 100 columns wide.
    #[must_use]
    pub fn to_text(&self, file: &str) -> String {
        text::page(self, file)
    }
}

fn choose_device<'a, 'f>(
    devices: &'a [DeviceView<'f>],
    ordinal: Option<usize>,
) -> Result<&'a DeviceView<'f>, ReportError> {
    if devices.is_empty() {
        return Err(ReportError::Empty);
    }
    let found = match ordinal {
        Some(ordinal) => devices.iter().find(|it| it.device.0 as usize == ordinal),
        None => devices.iter().max_by_key(|it| {
            let reserved: u64 =
                it.segments.iter().fold(0, |sum, it| sum.saturating_add(it.total_size));
            (it.entries.len(), reserved, u32::MAX - it.device.0)
        }),
    };
    found.ok_or_else(|| ReportError::NoSuchDevice {
        ordinal: ordinal.unwrap_or(0),
        present: devices.iter().map(|it| it.device.0).collect(),
    })
}

/// Whether something is trained: an optimizer leaves marks, a way back leaves its frames.
fn trains(device: &DeviceView<'_>) -> bool {
    let steps = || device.file.annotations.iter().any(|it| it.name.starts_with("Optimizer."));
    let stacks = &device.file.stacks;
    let goes_back = |frame: &tonnage_events::Frame| {
        &*frame.name == "backward" && frame.filename.contains("/torch/autograd/")
    };
    let mut all = (0..stacks.len()).filter_map(|number| StackId::new(u32::try_from(number).ok()?));
    steps() || all.any(|stack| stacks.frames(stack).iter().any(goes_back))
}

/// Live requested bytes after every entry: handed out and not yet given back by their owners.
fn live_after(lifetimes: impl Iterator<Item = Lifetime>, entries: usize) -> Vec<u64> {
    let mut changes = vec![0_i64; entries];
    let mut sum = 0_i64;
    for it in lifetimes {
        let bytes = i64::try_from(it.requested).unwrap_or(i64::MAX);
        match (it.allocated, it.free_requested) {
            // Given back before the history, and only not yet unused.
            (Moment::Before, Moment::Before) => continue,
            (Moment::Before, _) => sum = sum.saturating_add(bytes),
            (Moment::Event(event), _) => changes[event] = changes[event].saturating_add(bytes),
            (Moment::After, _) => continue,
        }
        if let Moment::Event(event) = it.free_requested {
            changes[event] = changes[event].saturating_sub(bytes);
        }
    }
    let levels = changes.iter().map(|&change| {
        sum = sum.saturating_add(change);
        u64::try_from(sum).unwrap_or(0)
    });
    levels.collect()
}

/// When most was live, first; without a history, the end.
fn live_peak(live: &[u64], lifetimes: &Lifetimes, device: &DeviceView<'_>) -> Moment {
    if device.entries.is_empty() {
        return Moment::Before;
    }
    let before = lifetimes.iter().filter(|it| it.is_live_after(Moment::Before));
    let mut most = before.fold(0_u64, |sum, it| sum.saturating_add(it.requested));
    let mut moment = Moment::Before;
    for (event, &bytes) in live.iter().enumerate() {
        if bytes > most {
            (most, moment) = (bytes, Moment::Event(event));
        }
    }
    moment
}

/// When reserved memory first peaks, at the end of the request that grew it; and the stream that grew. A history
/// that begins with the peak does not show what grew it: where most is live stands for that.
fn reserved_peak(device: &DeviceView<'_>, levels: &Levels, live: &[u64]) -> (Moment, StreamId) {
    let peak = levels.peak(|level| level.reserved);
    let moment = peak.map_or(Moment::Before, |peak| peak.moment);
    if moment == Moment::Before {
        let full =
            |&event: &usize| peak.is_some_and(|peak| levels.after()[event].reserved == peak.bytes);
        let most =
            (0..live.len()).filter(full).max_by_key(|&event| (live[event], usize::MAX - event));
        if let Some(event) = most {
            return (Moment::Event(event), device.entries[event].stream);
        }
    }
    let Moment::Event(event) = moment else {
        // The stream that has most is as good a guess as any.
        let mut by_stream = std::collections::BTreeMap::<StreamId, u64>::new();
        for segment in &device.segments {
            *by_stream.entry(segment.stream).or_default() += segment.total_size;
        }
        let most =
            by_stream.into_iter().max_by_key(|&(stream, bytes)| (bytes, u64::MAX - stream.0));
        return (moment, most.map_or(StreamId::DEFAULT, |(stream, _)| stream));
    };
    let stream = device.entries[event].stream;
    let grows = |action: Action| {
        matches!(
            action,
            Action::SegmentAlloc | Action::SegmentMap | Action::SegmentFree | Action::SegmentUnmap
        )
    };
    let rest = &device.entries[event..];
    let end = event + rest.iter().take_while(|it| grows(it.action)).count();
    let served = device.entries.get(end).is_some_and(|it| it.action == Action::Alloc);
    (Moment::Event(if served { end } else { event }), stream)
}

/// When reserved memory first comes within 2 % of its peak; none if the history does not show that.
fn near_peak(levels: &Levels, peak: u64) -> Option<Moment> {
    let near = peak - peak / 50;
    if levels.start.reserved >= near {
        return None;
    }
    let event = levels.after().iter().position(|level| level.reserved >= near);
    // The request that grew it is served by the next entry, or soon after.
    let served = |event: usize| {
        let rest = levels.after()[event..].windows(2);
        event + 1 + rest.take_while(|pair| pair[1].reserved > pair[0].reserved).count()
    };
    event.map(|event| Moment::Event(served(event).min(levels.after().len().saturating_sub(1))))
}

/// The verdict: what limits the job, and the one change that helps most.
fn paragraph(report: &Report, tried: Option<&Tried>) -> String {
    let peak = &report.peak.reserved;
    let need = report.peak.requested;
    let mut text = match report.failed_requests {
        0 => String::new(),
        1 => "One request failed. ".to_owned(),
        number => format!("{number} requests failed. "),
    };
    if report.history == HistoryKind::None {
        text += &format!("{} are reserved, {} of them asked for. ", Bytes(peak.bytes), Bytes(need));
    } else {
        let share = |bytes: u64| bytes as f64 / peak.bytes.max(1) as f64 * 100.0;
        text += &format!(
            "Reserved memory peaks at {}; {:.0} % of that was asked for and live",
            Bytes(peak.bytes),
            share(peak.requested)
        );
        // Another moment may need far more of it.
        if share(need) > share(peak.requested) + 5.0 {
            text += &format!(" then, and {:.0} % where most was live", share(need).min(100.0));
        }
        text += ". ";
    }
    text += match report.verdict.cause {
        Cause::Need => "What limits this job is true need: ",
        Cause::Leak => "What limits this job is a leak: ",
        Cause::LongerInputs => "What limits this job is that its inputs grow: ",
        Cause::Outside => "What limits this job is memory that is not its own: ",
        _ => "What limits this job is waste: ",
    };
    let mut sentence = report.verdict.text.chars();
    if let Some(first) = sentence.next() {
        text.extend(first.to_lowercase());
        text += sentence.as_str();
    }
    match report.advice.first() {
        Some(best) => {
            let at = best.line.as_ref().map_or(String::new(), |line| format!(" ({line})"));
            let basis = match best.basis {
                Basis::Replayed => "by replay",
                Basis::Estimated => "estimated",
            };
            text += &format!(
                " The one change that helps most: {}{at}; saves {} at the peak, {basis}.",
                best.change,
                Bytes(best.bytes)
            );
        }
        None if tried.is_some() => {
            text += " No setting that was tried reserves noticeably less.";
        }
        None => {}
    }
    text
}
