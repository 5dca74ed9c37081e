//! What changed between two files.
//!
//! In:  two [`SnapshotFile`]s, of the same program as a rule: the older one is `a`, the newer `b`.
//! Out: a [`Comparison`]: settings, and for each device peaks, levels, segments, and who holds more or
//!      less at the peak and at the end. Largest changes first; what did not change is left out.
//!
//! Allocations are told apart by call site, if both files have stacks; else by requested size.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

use crate::call_site::CallSites;
use crate::device_view::{DeviceView, devices};
use crate::inspect::{DeviceInspection, HistoryKind};
use crate::levels::Levels;
use crate::lifetimes::{Lifetime, Lifetimes};

/// What changed between two files.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Settings that differ.
    pub settings: Vec<SettingChange>,
    /// The devices of either file.
    pub devices: Vec<DeviceComparison>,
}

/// A setting that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// Its name in the file.
    pub setting: &'static str,
    /// Its value in the first file; none if it does not say.
    pub a: Option<String>,
    /// In the second.
    pub b: Option<String>,
}

/// A figure in both files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// In the first file; none if it cannot tell.
    pub a: Option<u64>,
    /// In the second.
    pub b: Option<u64>,
}

impl Change {
    /// How much more there is in the second file, if both can tell.
    #[must_use]
    pub fn by(&self) -> Option<i64> {
        let (a, b) = (self.a?, self.b?);
        // Beyond the range of a device only files that contradict themselves go.
        Some(i64::try_from(i128::from(b) - i128::from(a)).unwrap_or(if b > a {
            i64::MAX
        } else {
            i64::MIN
        }))
    }
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            a: Option<u64>,
            b: Option<u64>,
            change: Option<i64>,
        }
        Shown { a: self.a, b: self.b, change: self.by() }.serialize(serializer)
    }
}

/// What changed on one device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceComparison {
    /// The device's ordinal.
    pub device: u32,
    /// How far back the histories go.
    pub histories: [HistoryKind; 2],
    /// Most allocated bytes within the history.
    pub allocated_peak: Change,
    /// Most reserved bytes within the history.
    pub reserved_peak: Change,
    /// Reserved bytes when the snapshot was taken.
    pub reserved: Change,
    /// Allocated bytes when the snapshot was taken.
    pub allocated: Change,
    /// Requested bytes when the snapshot was taken.
    pub requested: Change,
    /// Number of segments when the snapshot was taken.
    pub segments: Change,
    /// Segments by size that are more or fewer.
    pub segment_sizes: Vec<SegmentChange>,
    /// Who holds more or less where most was allocated; none if one of the files has no history.
    pub at_peak: Option<Vec<GroupChange>>,
    /// Who holds more or less when the snapshot was taken.
    pub live: Vec<GroupChange>,
}

/// Segments of one size that are more or fewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentChange {
    /// Bytes of each.
    pub size: u64,
    /// Whether they can grow in place.
    pub expandable: bool,
    /// How many there are.
    pub count: Change,
}

/// Allocations that belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Asked for at this line of the program; none for those without a call site.
    CallSite(Option<Arc<str>>),
    /// Of this many requested bytes each.
    Size(u64),
}

/// Allocations that belong together and hold more or less.
#[derive(Clone, Debug, Serialize)]
pub struct GroupChange {
    /// What they have in common.
    #[serde(flatten)]
    pub group: Group,
    /// Allocated bytes of them all.
    pub allocated: Change,
    /// How many there are.
    pub count: Change,
}

/// A peak that grew by more than is put up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GrownPeak {
    /// The device's ordinal.
    pub device: u32,
    /// `allocated` or `reserved`.
    pub peak: &'static str,
    /// Before.
    pub a: u64,
    /// After.
    pub b: u64,
}

/// The form of the JSON; counts up when a field changes its meaning or goes.
const SCHEMA: u32 = 2;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    a: &'a str,
    b: &'a str,
    grown: Option<&'a [GrownPeak]>,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

impl Comparison {
    /// Compares two files.
    #[must_use]
    pub fn of(a: &SnapshotFile, b: &SnapshotFile) -> Self {
        let by_call_site = !a.stacks.is_empty() && !b.stacks.is_empty();
        let mut sides = BTreeMap::<u32, [Option<Side>; 2]>::new();
        for (place, file) in [a, b].into_iter().enumerate() {
            for device in devices(file) {
                let side = Side::of(&device, by_call_site);
                sides.entry(device.device.0).or_default()[place] = Some(side);
            }
        }
        let devices = sides.into_iter().map(|(device, sides)| compare(device, &sides)).collect();
        Self { settings: settings(a, b), devices }
    }

    /// The comparison as one JSON object. `grown` are the peaks that grew by more than is put up with; none if nobody
    /// asked.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self, a: &str, b: &str, grown: Option<&[GrownPeak]>) -> String {
        let report = Report { schema: SCHEMA, a, b, grown, comparison: self };
        serde_json::to_string_pretty(&report).expect("numbers and strings can be written")
    }
}

/// Bytes and number of the allocations of each group.
type Groups = BTreeMap<Group, (u64, u64)>;

/// One device of one file.
struct Side {
    inspection: DeviceInspection,
    segment_sizes: BTreeMap<(u64, bool), u64>,
    at_peak: Groups,
    live: Groups,
}

impl Side {
    fn of(device: &DeviceView<'_>, by_call_site: bool) -> Self {
        let lifetimes = Lifetimes::of(device);
        let levels = Levels::of(device, &lifetimes);
        let inspection = DeviceInspection::with(device, &lifetimes, &levels);
        let mut sites = CallSites::new(&device.file.stacks);
        let mut groups = |is_in: &dyn Fn(&Lifetime) -> bool| {
            let mut groups = Groups::new();
            for it in lifetimes.iter().filter(is_in) {
                let group = if by_call_site {
                    Group::CallSite(sites.get(it.stack))
                } else {
                    Group::Size(it.requested)
                };
                let (bytes, count) = groups.entry(group).or_default();
                *bytes = bytes.saturating_add(it.size);
                *count += 1;
            }
            groups
        };
        let peak = levels.peak(|level| level.allocated);
        let at_peak = groups(&|it| peak.is_some_and(|peak| it.is_live_after(peak.moment)));
        let live = groups(&Lifetime::is_live_at_end);
        let mut segment_sizes = BTreeMap::new();
        for segment in &device.segments {
            *segment_sizes.entry((segment.total_size, segment.expandable)).or_default() += 1;
        }
        Self { inspection, segment_sizes, at_peak, live }
    }
}

/// A device that a file does not have holds nothing there.
fn compare(device: u32, sides: &[Option<Side>; 2]) -> DeviceComparison {
    let figure = |of: fn(&DeviceInspection) -> Option<u64>| {
        let [a, b] = [0, 1].map(|place| match &sides[place] {
            Some(side) => of(&side.inspection),
            None => Some(0),
        });
        Change { a, b }
    };
    let histories = [0, 1].map(|place| {
        sides[place].as_ref().map_or(HistoryKind::None, |side| side.inspection.history)
    });
    let groups = |of: fn(&Side) -> &Groups| {
        let empty = Groups::new();
        let [a, b] = [0, 1].map(|place| sides[place].as_ref().map_or(&empty, of));
        group_changes(a, b)
    };
    let both = histories.iter().all(|&history| history != HistoryKind::None);
    DeviceComparison {
        device,
        histories,
        allocated_peak: figure(|it| it.allocated_peak),
        reserved_peak: figure(|it| it.reserved_peak),
        reserved: figure(|it| Some(it.reserved)),
        allocated: figure(|it| Some(it.allocated)),
        requested: figure(|it| Some(it.requested)),
        segments: figure(|it| Some(it.segments as u64)),
        segment_sizes: segment_changes(sides),
        at_peak: both.then(|| groups(|side| &side.at_peak)),
        live: groups(|side| &side.live),
    }
}

/// The keys of two maps, with the value of each in both.
fn joined<'m, K: Ord, V: Copy + Default>(
    a: &'m BTreeMap<K, V>,
    b: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = (&'m K, V, V)> {
    let missing = b.keys().filter(|&key| !a.contains_key(key));
    a.keys().chain(missing).map(|key| {
        let get = |map: &BTreeMap<K, V>| map.get(key).copied().unwrap_or_default();
        (key, get(a), get(b))
    })
}

fn change(a: u64, b: u64) -> Change {
    Change { a: Some(a), b: Some(b) }
}

fn group_changes(a: &Groups, b: &Groups) -> Vec<GroupChange> {
    let mut changes: Vec<_> = joined(a, b)
        .filter(|(_, a, b)| a != b)
        .map(|(group, a, b)| GroupChange {
            group: group.clone(),
            allocated: change(a.0, b.0),
            count: change(a.1, b.1),
        })
        .collect();
    let size = |it: &GroupChange| it.allocated.by().map_or(0, i64::unsigned_abs);
    changes.sort_by(|x, y| (Reverse(size(x)), &x.group).cmp(&(Reverse(size(y)), &y.group)));
    changes
}

fn segment_changes(sides: &[Option<Side>; 2]) -> Vec<SegmentChange> {
    let empty = BTreeMap::new();
    let [a, b] = [0, 1].map(|place| sides[place].as_ref().map_or(&empty, |it| &it.segment_sizes));
    let mut changes: Vec<_> = joined(a, b)
        .filter(|(_, a, b)| a != b)
        .map(|(&(size, expandable), a, b)| SegmentChange { size, expandable, count: change(a, b) })
        .collect();
    changes.sort_by_key(|it| {
        let count = it.count.by().map_or(0, i64::unsigned_abs);
        (Reverse(count.saturating_mul(it.size)), it.size, it.expandable)
    });
    changes
}

fn settings(a: &SnapshotFile, b: &SnapshotFile) -> Vec<SettingChange> {
    let [a, b] = [a, b].map(|file| file.settings.as_ref().map(setting_values).unwrap_or_default());
    let pairs = SETTINGS.into_iter().zip(a.into_iter().zip(b));
    pairs
        .filter(|(_, (a, b))| a != b)
        .map(|(setting, (a, b))| SettingChange { setting, a, b })
        .collect()
}

/// Names of the settings, as the file has them.
const SETTINGS: [&str; 9] = [
    "PYTORCH_CUDA_ALLOC_CONF",
    "max_split_size",
    "garbage_collection_threshold",
    "expandable_segments",
    "roundup_power2_divisions",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
];

/// Their values, in the same order.
fn setting_values(settings: &AllocatorSettings) -> [Option<String>; 9] {
    fn shown<T: ToString>(value: &Option<T>) -> Option<String> {
        value.as_ref().map(T::to_string)
    }
    let divisions =
        settings.roundup_power2_divisions.map(|it| it.map(|it| it.to_string()).join(","));
    [
        Some(settings.conf.clone()),
        shown(&settings.max_split_size),
        shown(&settings.garbage_collection_threshold),
        shown(&settings.expandable_segments),
        divisions,
        shown(&settings.release_lock_on_cudamalloc),
        shown(&settings.graph_capture_record_stream_reuse),
        shown(&settings.pinned_use_cuda_host_register),
        shown(&settings.pinned_num_register_threads),
    ]
}
