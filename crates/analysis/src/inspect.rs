//! What is in a file.
//!
//! In: a [`SnapshotFile`]. Out: an [`Inspection`]: what the segments tell of each device, and its
//! history, if there is one.

use std::collections::BTreeMap;

use serde::Serialize;
use tonnage_events::{Action, SnapshotSegment, grouped};
use tonnage_snapshot::SnapshotFile;

use crate::device_view::{DeviceView, devices};
use crate::levels::{Level, Levels};
use crate::lifetimes::{Lifetimes, Moment};
use crate::pinned::PinnedInspection;

/// What is in a file.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The settings string; empty if none was set, none if the file has no settings.
    pub conf: Option<String>,
    /// Distinct call stacks.
    pub stacks: usize,
    /// Beginnings and ends of marked scopes.
    pub annotations: usize,
    /// Entries that were left out because their action is not known.
    pub skipped_events: usize,
    /// The devices that have segments or a history.
    pub devices: Vec<DeviceInspection>,
    /// Pinned memory of the host; none if the file speaks of none.
    pub pinned: Option<PinnedInspection>,
}

/// What is in a file about one device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceInspection {
    /// The device's ordinal.
    pub device: u32,
    /// Entries of its history.
    pub events: usize,
    /// How far back it goes.
    pub history: HistoryKind,
    /// Entries by action.
    pub actions: BTreeMap<&'static str, usize>,
    /// When the first entry with a time was made, in microseconds since 1970.
    pub first_time_us: Option<u64>,
    /// When the last was.
    pub last_time_us: Option<u64>,
    /// Segments when the snapshot was taken.
    pub segments: usize,
    /// Of these, how many can grow in place.
    pub expandable_segments: usize,
    /// Bytes obtained from the device.
    pub reserved: u64,
    /// Bytes of blocks handed out.
    pub allocated: u64,
    /// Bytes of blocks handed out, or freed but in use by a stream.
    pub active: u64,
    /// Bytes free in a pool.
    pub cached: u64,
    /// Bytes that callers asked for, of active blocks.
    pub requested: u64,
    /// Most allocated bytes within the history; none without one.
    pub allocated_peak: Option<u64>,
    /// The entry after which they were first allocated; 0 if the history begins with them.
    pub allocated_peak_event: Option<usize>,
    /// Most reserved bytes within the history.
    pub reserved_peak: Option<u64>,
    /// Most requested bytes within the history.
    pub requested_peak: Option<u64>,
}

/// How far back a history goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryKind {
    /// To the beginning: before its first entry there was nothing.
    Whole,
    /// Not to the beginning: it was switched on later, or its ring was full.
    Partial,
    /// There is none.
    None,
}

impl HistoryKind {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Partial => "partial",
            Self::None => "none",
        }
    }

    /// How many entries there are and how far back they go, in words.
    #[must_use]
    pub fn with_entries(self, entries: usize) -> String {
        match self {
            Self::None => "no history".to_owned(),
            kind if entries == 1 => format!("1 entry, {} history", kind.name()),
            kind => format!("{} entries, {} history", grouped(entries), kind.name()),
        }
    }
}

/// The form of the JSON; counts up when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    file: &'a str,
    #[serde(flatten)]
    inspection: &'a Inspection,
}

impl Inspection {
    /// Looks at all of a file.
    #[must_use]
    pub fn of(file: &SnapshotFile) -> Self {
        Self {
            conf: file.settings.as_ref().map(|settings| settings.conf.clone()),
            stacks: file.stacks.len(),
            annotations: file.annotations.len(),
            skipped_events: file.skipped_actions.values().sum(),
            devices: devices(file).iter().map(DeviceInspection::of).collect(),
            pinned: PinnedInspection::of(file),
        }
    }

    /// The inspection as one JSON object.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, file: &str) -> String {
        let report = Report { schema: SCHEMA, file, inspection: self };
        serde_json::to_string_pretty(&report).expect("numbers and strings can be written")
    }
}

impl DeviceInspection {
    /// Looks at one device.
    #[must_use]
    pub fn of(device: &DeviceView<'_>) -> Self {
        let lifetimes = Lifetimes::of(device);
        Self::with(device, &lifetimes, &Levels::of(device, &lifetimes))
    }

    /// Looks at one device whose lifetimes and levels are known.
    pub(crate) fn with(device: &DeviceView<'_>, lifetimes: &Lifetimes, levels: &Levels) -> Self {
        let sum = |of: fn(&SnapshotSegment) -> u64| {
            device.segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(of(segment)))
        };
        let (reserved, active) = (sum(|it| it.total_size), sum(|it| it.active_size));
        let peak = levels.peak(|level| level.allocated);
        let times = || device.entries.iter().map(|entry| entry.time_us).filter(|&time| time > 0);
        let mut actions = BTreeMap::new();
        for entry in device.entries {
            *actions.entry(entry.action.name()).or_default() += 1;
        }
        Self {
            device: device.device.0,
            events: device.entries.len(),
            history: history_of(device, lifetimes, &levels.start),
            actions,
            first_time_us: times().next(),
            last_time_us: times().next_back(),
            segments: device.segments.len(),
            expandable_segments: device.segments.iter().filter(|it| it.expandable).count(),
            reserved,
            allocated: sum(|it| it.allocated_size),
            active,
            cached: reserved.saturating_sub(active),
            requested: sum(|it| it.requested_size),
            allocated_peak: peak.map(|peak| peak.bytes),
            allocated_peak_event: peak.map(|peak| peak.moment.event().unwrap_or(0)),
            reserved_peak: levels.peak(|level| level.reserved).map(|peak| peak.bytes),
            requested_peak: levels.peak(|level| level.requested).map(|peak| peak.bytes),
        }
    }

    /// Entries with this action.
    #[must_use]
    pub fn count(&self, action: Action) -> usize {
        self.actions.get(action.name()).copied().unwrap_or(0)
    }
}

/// Whole if there was nothing before the first entry: no segment and no block.
pub(crate) fn history_of(
    device: &DeviceView<'_>,
    lifetimes: &Lifetimes,
    start: &Level,
) -> HistoryKind {
    if device.entries.is_empty() {
        return HistoryKind::None;
    }
    let older = lifetimes.iter().any(|it| it.allocated == Moment::Before);
    if start.reserved == 0 && !older { HistoryKind::Whole } else { HistoryKind::Partial }
}
