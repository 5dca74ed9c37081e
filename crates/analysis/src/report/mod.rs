//! The diagnosis: what happened, why, and the one change that helps most.
//!
//! In:  a [`SnapshotFile`], and what it does not say ([`ReportOptions`]).
//! Out: a [`Report`], a plain value: text, JSON and pages are printed from it and add no figures.
//!
//! | part | lives in |
//! | --- | --- |
//! | the stages, in their order | `stages.rs` |
//! | live bytes, and when most is live or reserved | `moments.rs` |
//! | where iterations begin | `iterations.rs`; by the optimizer's marks: `marks.rs`; layers told from passes: `module_calls.rs` |
//! | what stays, leaks and passes | `retention.rs` |
//! | what grows | `growth.rs`; a tensor by itself: `concatenation.rs`; what only looks like a loop: `one_pass.rs` |
//! | the state at a moment | `state.rs` |
//! | reserved memory of no use, and whose | `waste.rs` |
//! | what bytes are for | `purpose.rs`; as the program said: `recorded_purposes.rs` |
//! | what all bytes of a history are for | `history_purposes.rs` |
//! | what held the peak | `peak.rs`; by modules and their layers: `held_modules.rs` |
//! | failed requests | `oom.rs`; the limit they ran into: `limit.rs`; whether a setting serves them: `failure.rs` |
//! | the device's bytes | `total.rs` |
//! | settings, by replay | `settings.rs` |
//! | the causes and the verdict | `verdict.rs`; as a paragraph: `summary.rs` |
//! | what to do | `advice.rs`; in the program: `remedies/`, by what it was doing: `circumstances.rs` |
//! | what is live then, and what asked for it | `held.rs`, by the frames of PyTorch: `origins.rs` |
//! | memory over time, to draw | `timeline.rs` |
//! | as text | `text.rs` |
//! | several files | `ranks.rs` |

mod lines;

mod moments;

mod stages;

mod iterations;

mod marks;

mod module_calls;

mod retention;

mod one_pass;

mod growth;

mod concatenation;

mod state;

mod waste;

mod purpose;

mod recorded_purposes;

mod history_purposes;

mod held_modules;

mod peak;

mod oom;

mod limit;

mod failure;

mod total;

mod settings;

mod verdict;

mod summary;

mod origins;

mod held;

mod circumstances;

mod remedies;

mod advice;

mod timeline;

mod text;

mod ranks;

use std::fmt;

use serde::Serialize;
use tonnage_engine::Release;
use tonnage_replay::Until;
use tonnage_snapshot::SnapshotFile;

pub use advice::{Advice, Basis};
pub use failure::{Answer, Asked, FailureAnswer, Tuned};
pub use growth::{GrowingLine, Growth, GrowthKind, Iteration};
pub use held_modules::{HeldLayer, HeldModule};
pub use history_purposes::HistoryPurposes;
pub use iterations::IterationSource;
pub use limit::{LimitInForce, LimitSource};
pub use oom::OomReport;
pub use peak::{Held, HeldFor, HeldIn, HeldStack, Holder, PeakReport, ReservedPeak};
pub use purpose::{Confidence, Purpose};
pub use ranks::{RankRow, Ranks};
pub use settings::Tried;
pub use text::Layout;
pub use timeline::{Column, Span, Timeline};
pub use verdict::{Cause, Verdict};
pub use waste::{Blame, BlamedBlock, BlamedLine, WasteOfKind, WasteReport};

use crate::device_view::{DeviceView, devices};
use crate::inspect::HistoryKind;
use crate::pinned::PinnedInspection;
use crate::total_bytes::TotalBytes;
use lines::Lines;
use stages::{Failures, FullestReserved, History, Judgement};

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
    /// Try other settings only where a request failed, whose verdict needs it: most of the time is spent on that.
    pub settings_for_failures: bool,
    /// When the replay has to be done; what was not tried by then, the report does not speak of.
    pub until: Until,
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
    /// The limit on reserved bytes, if someone said it.
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
    /// What replay says of the last of them; none if none failed.
    pub failure: Option<FailureAnswer>,
    /// What to change, the most useful first.
    pub advice: Vec<Advice>,
    /// What the settings make of the job; none without a history.
    pub settings: Option<Tried>,
    /// Pinned memory of the host: of all devices together, and part of no figure above. None if the file speaks of
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<PinnedInspection>,
    /// What the file does not say and was concluded instead.
    pub notes: Vec<String>,
    /// Memory over time: drawn, not read, so no part of the JSON.
    #[serde(skip)]
    pub timeline: Timeline,
}

impl Report {
    /// Reports on one device of a file.
    ///
    /// # Errors
    ///
    /// If there is nothing to report on.
    pub fn of(file: &SnapshotFile, options: &ReportOptions) -> Result<Self, ReportError> {
        let devices = devices(file);
        let device = choose_device(&devices, options.ordinal)?;
        let mut lines = Lines::new(&file.stacks);
        // What the file tells, and a replay of it.
        let history = History::read(device, options);
        let states = history.states(device);
        // What was reserved, what grew, what was live, what failed.
        let full = FullestReserved::of(device, &history, &states, &mut lines);
        let grown = history.growth(device, full.moment, &mut lines);
        let peak = history.live_peak(device, full.reserved, &grown, &mut lines);
        let failures = Failures::of(device, &history, &states, options.total, &mut lines);
        let (tried, failure) = history.try_settings(device, options);
        let now = history.circumstances(device, &grown, &failures);
        // What of that is to blame, and what to do about it.
        let judgement = Judgement::of(
            device,
            &history,
            &states,
            &full,
            &grown,
            &peak,
            &failures,
            failure.as_ref(),
            &mut lines,
        );
        let mut notes = history.notes(tried.as_ref());
        failures.add_notes(&mut notes);
        let mut report = Self {
            device: device.device.0,
            events: device.entries.len(),
            history: history.kind,
            conf: file.settings.as_ref().map_or(String::new(), |it| it.conf.clone()),
            limit: options.limit,
            total: failures.total(),
            verdict: judgement.verdict,
            causes: judgement.causes,
            blame: full.waste.blame(),
            waste: full.waste,
            peak,
            timeline: Timeline::of(device, &history.levels, grown.iterations.as_ref()),
            growth: grown.growth,
            failed_requests: failures.count,
            ooms: failures.explained,
            failure,
            advice: Vec::new(),
            settings: None,
            pinned: PinnedInspection::of(device.file),
            notes,
        };
        report.advice = advice::advise(&report, tried.as_ref(), now);
        report.verdict.text = summary::paragraph(&report, tried.as_ref());
        report.settings = tried;
        Ok(report)
    }

    /// The report as one JSON object: the `report` of a file in [`Ranks::to_json`].
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings can be written")
    }

    /// The report as a page of text, for files and pipes.
    #[must_use]
    pub fn to_text(&self, file: &str) -> String {
        self.to_text_in(file, Layout::default())
    }

    /// The report as a page of text.
    #[must_use]
    pub fn to_text_in(&self, file: &str, layout: Layout) -> String {
        text::page(self, file, layout)
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
            let reserved = it.segments.iter().map(|it| it.total_size).total_bytes();
            (it.entries.len(), reserved, u32::MAX - it.device.0)
        }),
    };
    found.ok_or_else(|| ReportError::NoSuchDevice {
        ordinal: ordinal.unwrap_or(0),
        present: devices.iter().map(|it| it.device.0).collect(),
    })
}
