//! One device of a file as columns: every allocation, every segment, bytes at every moment.
//!
//! In:  a [`SnapshotFile`] and an ordinal.
//! Out: a [`Timeline`]; `encode.rs` makes bytes of it.
//!
//! Moments count the entries that have happened: 0 is before the first. What is live after moment `m` has
//! `begin <= m < end`; its block is active until `m < done`. What never ends does so one moment after the last.
//! Allocations are in the order of their beginnings: those from before the history first.
//!
//! No figure comes from here: lifetimes, levels, extents, purposes and iterations are those of `tonnage_analysis`.

mod extents;

mod marks;

mod numbered;

mod stacks;

use serde::Serialize;
use tonnage_analysis::report::{HistoryPurposes, Purpose};
use tonnage_analysis::{DeviceView, Extents, Level, Levels, Lifetimes, Moment, devices};
use tonnage_events::{Action, DeviceId, PoolId, PoolKind};
use tonnage_snapshot::SnapshotFile;

use extents::{Row, holding, rows};
pub(crate) use marks::Phase;
pub(crate) use numbered::{AnyFrame, Site};
use numbered::{Numbered, Sites};
pub(crate) use stacks::StackTable;

/// The most failed requests that are listed: a program that tries again and again has many.
const MOST_OOMS: usize = 10_000;

/// What stands before the columns.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Head {
    pub(crate) sites: Vec<Option<Site>>,
    pub(crate) streams: Vec<String>,
    pub(crate) pools: Vec<String>,
    pub(crate) purposes: Vec<&'static str>,
    pub(crate) iterations: Vec<usize>,
    pub(crate) phases: Vec<Phase>,
    /// How many requests failed,
    pub(crate) failed: usize,
    /// and the last of them.
    pub(crate) ooms: Vec<Oom>,
    pub(crate) limit: Option<u64>,
    pub(crate) peak: Peaks,
    pub(crate) timed: bool,
}

/// A request that failed.
#[derive(Debug, Serialize)]
pub(crate) struct Oom {
    pub(crate) entry: usize,
    pub(crate) requested: u64,
    pub(crate) free: Option<u64>,
}

/// Most bytes, and the moments at which they were first reached.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Peaks {
    pub(crate) allocated: u64,
    pub(crate) allocated_at: u32,
    pub(crate) reserved: u64,
    pub(crate) reserved_at: u32,
}

/// A history as columns.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) head: Head,
    /// Microseconds from the first entry, for each entry.
    pub(crate) time: Vec<f64>,
    /// Bytes at each moment: one more than entries.
    pub(crate) allocated: Vec<f64>,
    pub(crate) reserved: Vec<f64>,
    pub(crate) allocations: Allocations,
    pub(crate) segments: Segments,
}

#[derive(Debug, Default)]
pub(crate) struct Allocations {
    pub(crate) address: Vec<f64>,
    pub(crate) requested: Vec<f64>,
    pub(crate) size: Vec<f64>,
    pub(crate) begin: Vec<u32>,
    pub(crate) end: Vec<u32>,
    pub(crate) done: Vec<u32>,
    pub(crate) stream: Vec<u16>,
    pub(crate) site: Vec<u32>,
    /// Number of the stack, plus one; 0 if not recorded.
    pub(crate) stack: Vec<u32>,
    pub(crate) purpose: Vec<u8>,
    /// Row of the segment, plus one; 0 if not known.
    pub(crate) segment: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Segments {
    pub(crate) address: Vec<f64>,
    pub(crate) size: Vec<f64>,
    pub(crate) begin: Vec<u32>,
    pub(crate) end: Vec<u32>,
    pub(crate) stream: Vec<u16>,
    pub(crate) pool: Vec<u16>,
}

impl Timeline {
    /// That of one device; an empty one if the file has nothing of it.
    pub(crate) fn of(file: &SnapshotFile, ordinal: u32, limit: Option<u64>) -> Self {
        let device = device_of(file, ordinal);
        let lifetimes = Lifetimes::of(&device);
        let levels = Levels::of(&device, &lifetimes);
        let concluded = HistoryPurposes::of(&device, &lifetimes, &levels);
        let extents = rows(&Extents::of(&device, &levels), moment_after(&device));
        let mut sites = Sites::new(&file.stacks);
        let mut streams = Numbered::new();
        let mut pools = Numbered::new();
        let allocations =
            allocations(&device, &lifetimes, &concluded, &extents, &mut sites, &mut streams);
        let mut segments = Segments::default();
        for Row { extent, begin, end } in &extents {
            segments.address.push(extent.address as f64);
            segments.size.push((extent.to - extent.address) as f64);
            segments.begin.push(*begin);
            segments.end.push(*end);
            segments.stream.push(streams.number(extent.stream, |it| it.to_string()));
            let pool = extent.pool.unwrap_or(PoolId::DEFAULT);
            segments.pool.push(pools.number((pool, extent.kind), pool_name));
        }
        let at_each = |of: fn(&Level) -> u64| -> Vec<f64> {
            let all = std::iter::once(&levels.start).chain(levels.after());
            all.map(|level| of(level) as f64).collect()
        };
        let (time, timed) = times(&device);
        let (failed, ooms) = ooms(&device);
        let head = Head {
            sites: sites.sites,
            streams: streams.names,
            pools: pools.names,
            purposes: Purpose::ALL.map(Purpose::name).to_vec(),
            iterations: concluded.iterations,
            phases: marks::phases(&device),
            failed,
            ooms,
            limit,
            peak: peaks(&device, &levels),
            timed,
        };
        let (allocated, reserved) = (at_each(|it| it.allocated), at_each(|it| it.reserved));
        Self { head, time, allocated, reserved, allocations, segments }
    }
}

/// A device of a file; without anything if the file has nothing of it.
fn device_of(file: &SnapshotFile, ordinal: u32) -> DeviceView<'_> {
    let device = devices(file).into_iter().find(|it| it.device.0 == ordinal);
    device.unwrap_or_else(|| nothing(file, ordinal))
}

fn nothing(file: &SnapshotFile, ordinal: u32) -> DeviceView<'_> {
    DeviceView { device: DeviceId(ordinal), file, entries: &[], segments: Vec::new() }
}

/// The first moment that a history does not have.
fn moment_after(device: &DeviceView<'_>) -> u32 {
    u32::try_from(device.entries.len()).map_or(u32::MAX, |entries| entries.saturating_add(1))
}

/// The moment at which something has happened.
fn number(moment: Moment, never: u32) -> u32 {
    match moment {
        Moment::Before => 0,
        Moment::Event(event) => u32::try_from(event).map_or(never, |it| it.saturating_add(1)),
        Moment::After => never,
    }
}

/// When each allocation begins and its place among the lifetimes, in the order of the columns: lifetimes of blocks from before the
/// history come where entries first name them.
fn by_beginning(device: &DeviceView<'_>, lifetimes: &Lifetimes) -> Vec<(u32, u32)> {
    let never = moment_after(device);
    let mut order: Vec<(u32, u32)> = (0..)
        .zip(lifetimes.iter())
        .map(|(row, it): (u32, _)| (number(it.allocated, never), row))
        .collect();
    order.sort_unstable();
    order
}

fn allocations<'a>(
    device: &DeviceView<'a>,
    lifetimes: &Lifetimes,
    concluded: &HistoryPurposes,
    extents: &[Row],
    sites: &mut Sites<'a>,
    streams: &mut Numbered<tonnage_events::StreamId>,
) -> Allocations {
    let never = moment_after(device);
    let order = by_beginning(device, lifetimes);
    let mut columns = Allocations::default();
    for &(begin, row) in &order {
        let it = lifetimes.get(row as usize);
        columns.address.push(it.address.0 as f64);
        columns.requested.push(it.requested as f64);
        columns.size.push(it.size as f64);
        columns.begin.push(begin);
        columns.end.push(number(it.free_requested, never));
        columns.done.push(number(it.free_completed, never));
        columns.stream.push(streams.number(it.stream, |it| it.to_string()));
        columns.site.push(sites.number(it.stack));
        columns.stack.push(it.stack.map_or(0, |stack| stack.number().saturating_add(1)));
        columns.purpose.push(concluded.purposes[row as usize] as u8);
    }
    let places = order.iter().map(|&(begin, row)| (begin, lifetimes.get(row as usize).address.0));
    columns.segment = holding(extents, places);
    columns
}

/// A pool as people know it: its half, and which one if it is private.
fn pool_name((pool, kind): (PoolId, PoolKind)) -> String {
    if pool.is_default() { kind.to_string() } else { format!("private {pool}, {kind}") }
}

/// Microseconds from the first entry, and whether the file tells them.
fn times(device: &DeviceView<'_>) -> (Vec<f64>, bool) {
    let first = device.entries.first().map_or(0, |entry| entry.time_us);
    let last = device.entries.last().map_or(0, |entry| entry.time_us);
    let since = |entry: &tonnage_events::TraceEntry| entry.time_us.saturating_sub(first) as f64;
    (device.entries.iter().map(since).collect(), first > 0 && last > first)
}

/// How many requests failed, and the last of them.
fn ooms(device: &DeviceView<'_>) -> (usize, Vec<Oom>) {
    let failed = device.entries.iter().enumerate().filter(|(_, it)| it.action == Action::Oom);
    let oom = |(entry, it): (usize, &tonnage_events::TraceEntry)| Oom {
        entry,
        requested: it.size,
        free: Some(it.address.0),
    };
    let count = failed.clone().count();
    (count, failed.skip(count.saturating_sub(MOST_OOMS)).map(oom).collect())
}

fn peaks(device: &DeviceView<'_>, levels: &Levels) -> Peaks {
    let never = moment_after(device);
    let peak = |of: fn(&Level) -> u64| match levels.peak(of) {
        Some(peak) => (peak.bytes, number(peak.moment, never)),
        None => (of(&levels.start), 0),
    };
    let (allocated, allocated_at) = peak(|it| it.allocated);
    let (reserved, reserved_at) = peak(|it| it.reserved);
    Peaks { allocated, allocated_at, reserved, reserved_at }
}
