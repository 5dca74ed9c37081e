//! Stage 5: from rows to what the file holds.
//!
//! In:  the value that the program left, and the rows made on the way.
//! Out: a [`SnapshotFile`], with its history in it or beside it, or the first thing in it that is wrong.
//!
//! The top of a file is either the dictionary of `_snapshot()` or the bare list of segments of
//! `memory_snapshot()`. Keys that are not known are skipped, so that files of later releases can
//! be read; what files of earlier ones leave out is derived from what they have.

use std::collections::BTreeMap;

use tonnage_events::{BlockState, DeviceId, PoolId, SnapshotBlock, SnapshotSegment};

use crate::call_stacks::SharedTexts;
use crate::entries::Histories;
use crate::error::{Result, SnapshotError};
use crate::fields::pairs;
use crate::history_columns::HistoryColumns;
use crate::limits::Limits;
use crate::machine::{Outcome, Root, over_memory};
use crate::recorded_purposes::{self, RecordedPurposes};
use crate::rows::{AnnotationRow, Rows, SegmentRow, SettingsRow, UNPLACED};
use crate::snapshot_file::{
    AllocatorSettings, Annotation, EntryNote, Keys, Pinned, SnapshotFile, Stage,
};
use crate::strings::known;
use crate::value::{Kind, Run, StrId, Table, Value};

/// The last step, from rows to the file.
pub(crate) struct Finish<'a> {
    pub(crate) limits: &'a Limits,
    /// Where the pickle ends.
    pub(crate) offset: u64,
}

/// The values of the top dictionary.
#[derive(Default)]
struct Top {
    segments: Option<Value>,
    traces: Option<Value>,
    settings: Option<Value>,
    annotations: Option<Value>,
    host_segments: Option<Value>,
    host_traces: Option<Value>,
    purposes: Option<Value>,
}

/// What a key should hold: a list, and in it elements.
#[derive(Clone, Copy)]
struct Expected {
    list: &'static str,
    element: &'static str,
}

const SEGMENTS: Expected = Expected { list: "a list of segments", element: "a segment" };
const ANNOTATIONS: Expected = Expected { list: "a list of annotations", element: "an annotation" };
const TRACES: Expected = Expected {
    list: "a list with a list of trace entries for each device",
    element: "a list of trace entries",
};
const TRACE: Expected = Expected { list: "a list of trace entries", element: "a trace entry" };

impl Finish<'_> {
    /// The file, and the histories of its devices where they are in columns.
    pub(crate) fn file(
        &self,
        Outcome { root, rows, trailing, .. }: Outcome,
    ) -> Result<(SnapshotFile, Vec<HistoryColumns>)> {
        let top = self.top(root, &rows)?;
        let segments = self.runs(&rows, known::SEGMENTS, top.segments, Table::Segments)?;
        let annotations =
            self.runs(&rows, known::EXTERNAL_ANNOTATIONS, top.annotations, Table::Annotations)?;
        let mut skipped_actions = BTreeMap::new();
        let mut traces = self.traces(&rows, top.traces, &mut skipped_actions)?;
        let settings = self.settings(&rows, top.settings)?;
        let purposes = self.purposes(&rows, top.purposes)?;
        let on_device = (0_usize..).zip(numbers(&segments));
        for (at, row) in on_device {
            if rows.segments[row].on_host {
                let path = format!("{}[{at}].device", rows.strings.text(known::SEGMENTS));
                return Err(self.shape(path, "the number of a device", "the integer -1"));
            }
        }
        // The host's history goes the way of the devices', behind theirs.
        let has_pinned = top.host_segments.is_some() || top.host_traces.is_some();
        let host_segments =
            self.runs(&rows, known::HOST_SEGMENTS, top.host_segments, Table::Segments)?;
        traces.push(self.host_trace(&rows, top.host_traces, &mut skipped_actions)?);
        self.afford(&rows, &[&segments, &host_segments], &annotations, &traces, &purposes)?;
        // Entries that nothing leads to say nothing about the file.
        let keys = if traces.iter().all(Vec::is_empty) { Keys::default() } else { rows.keys };

        let mut texts = SharedTexts::new(&rows.strings);
        let notes = notes(&rows, &traces, &mut texts);
        let Rows { stacks, entries, segments: segment_rows, blocks, .. } = rows;
        let annotations = numbers(&annotations)
            .map(|row| annotation(rows.annotations[row], &mut texts))
            .collect();
        let (traces, columns, host_trace) = match entries.take(&traces) {
            Histories::Rows(mut traces) => {
                let host = traces.pop().unwrap_or_default();
                (traces, Vec::new(), host)
            }
            Histories::Columns(mut columns) => {
                let host = columns.pop().unwrap_or_default();
                (Vec::new(), columns, host.entries())
            }
        };
        let pinned = has_pinned.then(|| {
            let on_host = |row| SnapshotSegment {
                device: DeviceId::HOST,
                ..segment(&segment_rows[row], &blocks)
            };
            Pinned { segments: numbers(&host_segments).map(on_host).collect(), trace: host_trace }
        });
        let file = SnapshotFile {
            segments: numbers(&segments).map(|row| segment(&segment_rows[row], &blocks)).collect(),
            traces,
            pinned,
            notes,
            settings,
            annotations,
            purposes,
            stacks: stacks.finish(&mut texts),
            keys,
            skipped_actions,
            trailing,
        };
        Ok((file, columns))
    }

    /// Refuses what would take too much to copy, before anything is copied: a few bytes can name
    /// the same list any number of times.
    fn afford(
        &self,
        rows: &Rows,
        segments: &[&[Run]],
        annotations: &[Run],
        traces: &[Vec<Run>],
        purposes: &RecordedPurposes,
    ) -> Result<()> {
        let segment = |row: usize| {
            let blocks = rows.segments[row].blocks.len as usize;
            (size_of::<SnapshotSegment>() + blocks * size_of::<SnapshotBlock>()) as u64
        };
        let annotations: u64 = annotations.iter().map(|run| u64::from(run.len)).sum();
        let mut needed = rows.memory()
            + rows.stacks.memory_to_finish()
            + rows.entries.memory_to_repeat(traces)
            + purposes.memory()
            + annotations * size_of::<Annotation>() as u64;
        for &run in traces.iter().flatten() {
            needed =
                needed.saturating_add((rows.notes_of(run).len() * size_of::<EntryNote>()) as u64);
        }
        for row in segments.iter().flat_map(|runs| numbers(runs)) {
            needed = needed.saturating_add(segment(row));
            if needed > self.limits.memory {
                break;
            }
        }
        if needed > self.limits.memory {
            return Err(over_memory(self.limits, self.offset));
        }
        Ok(())
    }

    fn top(&self, root: Root, rows: &Rows) -> Result<Top> {
        let mut top = Top::default();
        match root {
            Root::Dict(items) => {
                for (key, value) in pairs(&items) {
                    match key {
                        known::SEGMENTS => top.segments = Some(value),
                        known::DEVICE_TRACES => top.traces = Some(value),
                        known::ALLOCATOR_SETTINGS => top.settings = Some(value),
                        known::EXTERNAL_ANNOTATIONS => top.annotations = Some(value),
                        known::HOST_SEGMENTS => top.host_segments = Some(value),
                        known::HOST_TRACES => top.host_traces = Some(value),
                        known::TONNAGE_PURPOSES => top.purposes = Some(value),
                        _ => {}
                    }
                }
                if top.segments.is_none() && top.traces.is_none() {
                    let expected = "the key `segments` or `device_traces`";
                    return Err(self.shape("top level", expected, "no such key"));
                }
            }
            Root::Other(Value::Bad(reason)) => return Err(bad(rows, "", reason)),
            Root::Other(value @ (Value::RowList(_) | Value::List(_) | Value::EmptyList)) => {
                top.segments = Some(value)
            }
            Root::Other(value) => {
                let expected = "a dictionary with the key `segments`, or a list of segments";
                return Err(self.shape("top level", expected, value.describe()));
            }
        }
        Ok(top)
    }

    fn shape(
        &self,
        path: impl Into<String>,
        expected: &'static str,
        found: impl Into<String>,
    ) -> SnapshotError {
        SnapshotError::Shape {
            path: path.into(),
            expected,
            found: found.into(),
            offset: self.offset,
        }
    }

    /// The error for a value that is not the list that its key should hold.
    fn wrong(&self, rows: &Rows, path: &str, value: Value, expected: Expected) -> SnapshotError {
        match value {
            Value::Bad(reason) => bad(rows, path, reason),
            Value::ForeignList { at, holds } => {
                self.shape(format!("{path}[{at}]"), expected.element, holds.name())
            }
            other => self.shape(path, expected.list, other.describe()),
        }
    }

    /// The rows of a list that should hold nothing else.
    fn runs(
        &self,
        rows: &Rows,
        key: StrId,
        value: Option<Value>,
        table: Table,
    ) -> Result<Vec<Run>> {
        let path = rows.strings.text(key);
        let expected = match table {
            Table::Segments => SEGMENTS,
            _ => ANNOTATIONS,
        };
        let Some(value) = value.filter(|&value| value != Value::None) else {
            return Ok(Vec::new());
        };
        let items = rows.elements(value).ok_or_else(|| self.wrong(rows, path, value, expected))?;
        let mut runs = Vec::with_capacity(items.len());
        for item in items.iter() {
            match *item {
                Value::Rows(run) if run.table == table => runs.push(run),
                other => return Err(self.wrong(rows, path, other, expected)),
            }
        }
        Ok(runs)
    }

    /// The runs of entries of each device.
    fn traces(
        &self,
        rows: &Rows,
        value: Option<Value>,
        skipped: &mut BTreeMap<String, usize>,
    ) -> Result<Vec<Vec<Run>>> {
        let path = rows.strings.text(known::DEVICE_TRACES);
        let Some(value) = value.filter(|&value| value != Value::None) else {
            return Ok(Vec::new());
        };
        let devices = rows.elements(value).ok_or_else(|| self.wrong(rows, path, value, TRACES))?;
        let mut work = self.limits.memory;
        let mut traces = Vec::new();
        for (device, &value) in devices.iter().enumerate() {
            let path = format!("{path}[{device}]");
            let items =
                rows.elements(value).ok_or_else(|| self.wrong(rows, &path, value, TRACE))?;
            // The same list for many devices would be walked, and kept, for each.
            let kept = size_of_val(&*items) + 2 * size_of::<Vec<Run>>();
            work = work
                .checked_sub(kept as u64)
                .ok_or_else(|| over_memory(self.limits, self.offset))?;
            traces.push(self.trace(rows, &path, &items, skipped)?);
        }
        Ok(traces)
    }

    /// The runs of entries of the host: a list of entries, not one for each device.
    fn host_trace(
        &self,
        rows: &Rows,
        value: Option<Value>,
        skipped: &mut BTreeMap<String, usize>,
    ) -> Result<Vec<Run>> {
        let path = rows.strings.text(known::HOST_TRACES);
        let Some(value) = value.filter(|&value| value != Value::None) else {
            return Ok(Vec::new());
        };
        let items = rows.elements(value).ok_or_else(|| self.wrong(rows, path, value, TRACE))?;
        self.trace(rows, path, &items, skipped)
    }

    /// The runs of entries among the elements of a list at `path`, and how often each unknown action is there.
    fn trace(
        &self,
        rows: &Rows,
        path: &str,
        items: &[Value],
        skipped: &mut BTreeMap<String, usize>,
    ) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for item in items {
            match *item {
                Value::Rows(run) if run.table == Table::Entries => runs.push(run),
                Value::UnknownAction(action) => {
                    let action = rows.strings.text(action);
                    match skipped.get_mut(action) {
                        Some(count) => *count += 1,
                        None => drop(skipped.insert(action.to_owned(), 1)),
                    }
                }
                other => return Err(self.wrong(rows, path, other, TRACE)),
            }
        }
        Ok(runs)
    }

    /// What the file says that blocks are for.
    fn purposes(&self, rows: &Rows, value: Option<Value>) -> Result<RecordedPurposes> {
        let path = rows.strings.text(known::TONNAGE_PURPOSES);
        let text = match value {
            None | Some(Value::None) => return Ok(RecordedPurposes::default()),
            Some(Value::Str(text)) => rows.strings.text(text),
            Some(Value::Bad(reason)) => return Err(bad(rows, path, reason)),
            Some(other) => {
                return Err(self.shape(path, recorded_purposes::TEXT, other.describe()));
            }
        };
        if recorded_purposes::memory_to_read(text).saturating_add(rows.memory())
            > self.limits.memory
        {
            return Err(over_memory(self.limits, self.offset));
        }
        RecordedPurposes::from_text(text).map_err(|line| {
            let path = format!("{path}, line {}", line.number);
            self.shape(path, line.expected, format!("`{}`", line.found))
        })
    }

    fn settings(&self, rows: &Rows, value: Option<Value>) -> Result<Option<AllocatorSettings>> {
        let path = rows.strings.text(known::ALLOCATOR_SETTINGS);
        let row = match value {
            None | Some(Value::None) => return Ok(None),
            Some(Value::Settings(number)) => rows.settings[number as usize],
            // None of the settings we know, or none at all.
            Some(Value::Opaque(Kind::Dict)) => SettingsRow::default(),
            Some(Value::Bad(reason)) => return Err(bad(rows, path, reason)),
            Some(other) => {
                return Err(self.shape(path, "a dictionary of settings", other.describe()));
            }
        };
        Ok(Some(AllocatorSettings {
            conf: row.conf.map_or_else(String::new, |conf| rows.strings.text(conf).to_owned()),
            max_split_size: row.max_split_size,
            garbage_collection_threshold: row.garbage_collection_threshold,
            expandable_segments: row.expandable_segments,
            pinned_num_register_threads: row.pinned_num_register_threads,
            release_lock_on_cudamalloc: row.release_lock_on_cudamalloc,
            pinned_use_cuda_host_register: row.pinned_use_cuda_host_register,
            graph_capture_record_stream_reuse: row.graph_capture_record_stream_reuse,
            max_round_threshold: row.max_round_threshold,
            max_cached_size: row.max_cached_size,
            roundup_power2_divisions: row.roundup_power2_divisions,
        }))
    }
}

/// The error for the problem inside the value at `path`.
fn bad(rows: &Rows, path: &str, reason: u32) -> SnapshotError {
    let problem = &rows.problems[reason as usize];
    let path = format!("{path}{}", problem.path);
    SnapshotError::Shape {
        path: path.trim_start_matches('.').to_owned(),
        expected: problem.expected,
        found: problem.found.clone(),
        offset: problem.offset,
    }
}

/// The numbers of the rows in `runs`.
fn numbers(runs: &[Run]) -> impl Iterator<Item = usize> + '_ {
    runs.iter().flat_map(|run| {
        let first = run.first as usize;
        first..first + run.len as usize
    })
}

/// What entries say besides, by their device and number; the last of the lists is the host's.
fn notes(rows: &Rows, traces: &[Vec<Run>], texts: &mut SharedTexts<'_>) -> Vec<EntryNote> {
    let mut notes = Vec::new();
    let host = traces.len() - 1;
    for (ordinal, runs) in traces.iter().enumerate() {
        let device = if ordinal == host { DeviceId::HOST } else { DeviceId(ordinal as u32) };
        let mut before = 0_u32;
        for &run in runs {
            notes.extend(rows.notes_of(run).iter().map(|note| EntryNote {
                device,
                entry: before + (note.entry - run.first),
                pool: PoolId(note.said.pool.0, note.said.pool.1),
                user_metadata: texts.get(note.said.user),
                internal_metadata: note.said.internal.map(|text| texts.get(text)),
            }));
            before += run.len;
        }
    }
    notes
}

/// The segment with its blocks. What its file leaves out follows from them: addresses, since blocks
/// tile their segment, and sums.
fn segment(row: &SegmentRow, blocks: &[SnapshotBlock]) -> SnapshotSegment {
    let SegmentRow { segment, blocks: run, sums, .. } = row;
    let first = run.first as usize;
    let mut blocks = blocks[first..first + run.len as usize].to_vec();
    let mut next = segment.address.0;
    let (mut allocated, mut active, mut requested) = (0_u64, 0_u64, 0_u64);
    for block in &mut blocks {
        if block.address == UNPLACED {
            block.address.0 = next;
        }
        next = block.address.0.saturating_add(block.size);
        if block.state == BlockState::ActiveAllocated {
            allocated = allocated.saturating_add(block.size);
        }
        if block.state != BlockState::Inactive {
            active = active.saturating_add(block.size);
            requested = requested.saturating_add(block.requested_size);
        }
    }
    let mut segment = SnapshotSegment { blocks, ..segment.clone() };
    if sums.allocated {
        segment.allocated_size = allocated;
    }
    if sums.active {
        segment.active_size = active;
    }
    if sums.requested {
        segment.requested_size = requested;
    }
    segment
}

fn annotation(row: AnnotationRow, texts: &mut SharedTexts<'_>) -> Annotation {
    let stage = match row.stage {
        Some(known::START) => Stage::Start,
        Some(known::END) => Stage::End,
        Some(other) => Stage::Other(texts.get(other)),
        None => Stage::Other("".into()),
    };
    let name = row.name.map_or_else(|| "".into(), |name| texts.get(name));
    Annotation { name, stage, device: row.device, time_us: row.time_us }
}
