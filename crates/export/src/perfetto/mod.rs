//! A trace for the Perfetto UI (<https://ui.perfetto.dev>).
//!
//! In:  a file with a history.
//! Out: for each device a process with counters (`allocated`, `active`, `reserved`), allocations as
//!      slices from handing out to giving back, segments and failures as instants, and the scopes that
//!      the program marked.
//!
//! Slices are named by call site, or by size where there are no stacks; address, sizes and stack are
//! arguments. What was alive before the history begins with it, and what is alive at its end ends with
//! it. Where a file has no times, entries are a microsecond apart.

mod lanes;

mod packets;

mod protobuf;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_analysis::{
    CallSites, DeviceView, Level, Levels, Lifetime, Lifetimes, Moment, devices,
};
use tonnage_events::{Action, Bytes, StackId, StreamId, TraceEntry};
use tonnage_snapshot::{SnapshotFile, Stage};

use self::lanes::{Lane, Lanes};
use self::packets::{Argument, Packets, Said, Track};
use crate::error::ExportError;

/// Bytes after which a stack's text is cut.
const LONGEST_STACK: usize = 16 << 10;

/// What a slice or an instant is named by.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Name {
    CallSite(Arc<str>),
    Size(u64),
    Action(Action),
    Scope(Arc<str>),
}

impl Name {
    fn text(&self) -> String {
        match self {
            Self::CallSite(text) | Self::Scope(text) => text.to_string(),
            Self::Size(size) => Bytes(*size).to_string(),
            Self::Action(action) => action.name().to_owned(),
        }
    }
}

/// Writes the histories of all devices as a Perfetto trace, and returns the number of slices.
///
/// # Errors
///
/// If `out` cannot be written to.
pub fn write_perfetto(file: &SnapshotFile, mut out: impl Write) -> Result<u64, ExportError> {
    let mut slices = 0;
    for (sequence, device) in (0..).zip(&devices(file)) {
        slices += DeviceTrace::new(device, Packets::new(&mut out, sequence))?.write()?;
    }
    out.flush()?;
    Ok(slices)
}

/// A device's part of the trace.
struct DeviceTrace<'a, W> {
    device: &'a DeviceView<'a>,
    packets: Packets<W, Name, StackId>,
    process: Track,
    /// Of `allocated`, `active` and `reserved`, in this order.
    counters: [Track; 3],
    instants: Option<Track>,
    sites: CallSites<'a>,
    shown: Option<Level>,
    lanes: BTreeMap<StreamId, Lanes>,
    /// The stream and the lane of each slice that is open, by its row.
    open: FxHashMap<usize, (StreamId, Lane)>,
    scopes: Scopes,
    slices: u64,
}

impl<'a, W: Write> DeviceTrace<'a, W> {
    fn new(
        device: &'a DeviceView<'a>,
        mut packets: Packets<W, Name, StackId>,
    ) -> Result<Self, ExportError> {
        let process = packets.process(&format!("device {}", device.device))?;
        let counters = [
            packets.counter(process, "allocated")?,
            packets.counter(process, "active")?,
            packets.counter(process, "reserved")?,
        ];
        Ok(Self {
            device,
            packets,
            process,
            counters,
            instants: None,
            sites: CallSites::new(&device.file.stacks),
            shown: None,
            lanes: BTreeMap::new(),
            open: FxHashMap::default(),
            scopes: Scopes::of(device),
            slices: 0,
        })
    }

    fn write(mut self) -> Result<u64, ExportError> {
        let device = self.device;
        let lifetimes = Lifetimes::of(device);
        let levels = Levels::of(device, &lifetimes);
        let clock = Clock::of(device.entries);
        self.packets.advance(clock.first());
        self.show_level(levels.start)?;
        let mut begins = Vec::new();
        let mut ends = Vec::new();
        for (row, it) in lifetimes.iter().enumerate() {
            match it.allocated {
                Moment::Event(event) => begins.push((event, row)),
                // Freed before, and only in use by a stream: not an allocation any more.
                _ if it.free_requested == Moment::Before => {}
                _ => self.begin(row, &it)?,
            }
            ends.extend(it.free_requested.event().map(|event| (event, row)));
        }
        ends.sort_unstable();
        let (mut begins, mut ends) = (begins.into_iter().peekable(), ends.into_iter().peekable());
        for (event, (entry, &level)) in device.entries.iter().zip(levels.after()).enumerate() {
            let time = clock.at(event, entry);
            self.show_scopes(time)?;
            self.packets.advance(time);
            while let Some((_, row)) = ends.next_if(|&(at, _)| at == event) {
                self.end(row)?;
            }
            while let Some((_, row)) = begins.next_if(|&(at, _)| at == event) {
                self.begin(row, &lifetimes.get(row))?;
            }
            self.show_entry(entry)?;
            self.show_level(level)?;
        }
        self.show_scopes(u64::MAX)?;
        self.packets.advance(0);
        let mut left: Vec<_> = self.open.keys().copied().collect();
        left.sort_unstable();
        for row in left {
            self.end(row)?;
        }
        for track in self.scopes.close() {
            self.packets.end(track)?;
        }
        Ok(self.slices)
    }

    fn begin(&mut self, row: usize, it: &Lifetime) -> Result<(), ExportError> {
        let site = self.sites.get(it.stack);
        let name = site.map_or(Name::Size(it.requested), Name::CallSite);
        let (packets, process) = (&mut self.packets, self.process);
        let lanes = self.lanes.entry(it.stream).or_default();
        let (lane, track) = lanes
            .take(|| packets.slices(process, &format!("allocations on stream {}", it.stream)))?;
        self.open.insert(row, (it.stream, lane));
        self.slices += 1;
        let arguments = [
            ("requested", Argument::Bytes(it.requested)),
            ("size", Argument::Bytes(it.size)),
            ("address", Argument::Address(it.address.0)),
            ("stream", Argument::Number(it.stream.0)),
        ];
        let sites = &self.sites;
        let make = || it.stack.and_then(|it| sites.stack(it, LONGEST_STACK)).unwrap_or_default();
        let text = it.stack.map(|stack| ("stack", stack, &make as &dyn Fn() -> String));
        let label = name.clone();
        packets.begin(track, name, &|| label.text(), &Said { arguments: &arguments, text })
    }

    fn end(&mut self, row: usize) -> Result<(), ExportError> {
        let Some((stream, lane)) = self.open.remove(&row) else { return Ok(()) };
        let track = self.lanes.entry(stream).or_default().put(lane);
        self.packets.end(track)
    }

    /// Segments that come and go, failures and snapshots.
    fn show_entry(&mut self, entry: &TraceEntry) -> Result<(), ExportError> {
        let place = match entry.action {
            Action::Alloc | Action::FreeRequested | Action::FreeCompleted => return Ok(()),
            Action::Oom => ("device_free", Argument::Bytes(entry.address.0)),
            _ => ("address", Argument::Address(entry.address.0)),
        };
        let track = match self.instants {
            Some(track) => track,
            None => {
                *self.instants.insert(self.packets.slices(self.process, "segments and failures")?)
            }
        };
        let arguments = [
            ("size", Argument::Bytes(entry.size)),
            place,
            ("stream", Argument::Number(entry.stream.0)),
        ];
        let name = Name::Action(entry.action);
        let label = name.clone();
        let said = Said { arguments: &arguments, text: None };
        self.packets.instant(track, name, &|| label.text(), &said)
    }

    fn show_level(&mut self, level: Level) -> Result<(), ExportError> {
        let values = |level: Level| [level.allocated, level.active, level.reserved];
        let before = self.shown.map(values);
        for (place, (track, value)) in self.counters.into_iter().zip(values(level)).enumerate() {
            if before.is_none_or(|before| before[place] != value) {
                self.packets.level(track, value)?;
            }
        }
        self.shown = Some(level);
        Ok(())
    }

    /// Scopes that begin or end up to this time.
    fn show_scopes(&mut self, until: u64) -> Result<(), ExportError> {
        while let Some(step) = self.scopes.next_until(until) {
            let (packets, process) = (&mut self.packets, self.process);
            packets.advance(step.time_us);
            match step.what {
                What::Begins(scope) => {
                    let track = self.scopes.begin(scope, || packets.slices(process, "scopes"))?;
                    let text = || step.name.to_string();
                    packets.begin(
                        track,
                        Name::Scope(Arc::clone(&step.name)),
                        &text,
                        &Said::NOTHING,
                    )?;
                    self.slices += 1;
                }
                What::Ends(scope) => {
                    if let Some(track) = self.scopes.end(scope) {
                        packets.end(track)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Times of entries.
struct Clock {
    first: Option<u64>,
}

impl Clock {
    fn of(entries: &[TraceEntry]) -> Self {
        Self { first: entries.iter().map(|entry| entry.time_us).find(|&time| time > 0) }
    }

    fn first(&self) -> u64 {
        self.first.unwrap_or(0)
    }

    fn at(&self, event: usize, entry: &TraceEntry) -> u64 {
        if self.first.is_some() { entry.time_us } else { event as u64 + 1 }
    }
}

/// The scopes that the program marked, as slices.
struct Scopes {
    steps: std::vec::IntoIter<Step>,
    lanes: Lanes,
    open: BTreeMap<usize, Lane>,
}

struct Step {
    time_us: u64,
    name: Arc<str>,
    what: What,
}

/// By the number of the annotation that begins it.
enum What {
    Begins(usize),
    Ends(usize),
}

impl Scopes {
    fn of(device: &DeviceView<'_>) -> Self {
        let mut begun = FxHashMap::<Arc<str>, Vec<usize>>::default();
        let mut steps = Vec::new();
        let annotations = device.file.annotations.iter().filter(|it| it.device == device.device);
        for (number, it) in annotations.enumerate() {
            let what = match it.stage {
                Stage::Start => {
                    begun.entry(Arc::clone(&it.name)).or_default().push(number);
                    What::Begins(number)
                }
                Stage::End => match begun.get_mut(&it.name).and_then(Vec::pop) {
                    Some(number) => What::Ends(number),
                    // Begun before anyone watched.
                    None => continue,
                },
                Stage::Other(_) => continue,
            };
            steps.push(Step { time_us: it.time_us, name: Arc::clone(&it.name), what });
        }
        steps.sort_by_key(|step| step.time_us);
        Self { steps: steps.into_iter(), lanes: Lanes::default(), open: BTreeMap::new() }
    }

    fn next_until(&mut self, time_us: u64) -> Option<Step> {
        let due = self.steps.as_slice().first().is_some_and(|step| step.time_us <= time_us);
        if due { self.steps.next() } else { None }
    }

    fn begin<E>(
        &mut self,
        scope: usize,
        new: impl FnOnce() -> Result<Track, E>,
    ) -> Result<Track, E> {
        let (lane, track) = self.lanes.take(new)?;
        self.open.insert(scope, lane);
        Ok(track)
    }

    fn end(&mut self, scope: usize) -> Option<Track> {
        self.open.remove(&scope).map(|lane| self.lanes.put(lane))
    }

    /// Ends those that are open.
    fn close(&mut self) -> Vec<Track> {
        let open = std::mem::take(&mut self.open);
        open.into_values().map(|lane| self.lanes.put(lane)).collect()
    }
}
