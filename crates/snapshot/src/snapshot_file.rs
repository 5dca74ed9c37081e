//! Stage 5: what a file holds, and the ways to open one.
//!
//! In:  a path, a reader or bytes.
//! Out: a [`SnapshotFile`], or the first thing that is wrong.
//!
//! The top of a file is either the dictionary of `_snapshot()` or the bare list of segments of
//! `memory_snapshot()`. Keys that are not known are skipped, so that files of later releases can
//! be read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use tonnage_events::{DeviceId, SnapshotBlock, SnapshotSegment, Stacks, TraceEntry};

use crate::call_stacks::SharedTexts;
use crate::error::{Result, SnapshotError};
use crate::fields::pairs;
use crate::input::Source;
use crate::limits::Limits;
use crate::machine::{Machine, Outcome, Root, over_memory};
use crate::rows::{AnnotationRow, Rows, SegmentRow, SettingsRow};
use crate::strings::known;
use crate::value::{Kind, Run, StrId, Table, Value};

/// What a snapshot holds.
#[derive(Clone, Debug, Default)]
pub struct SnapshotFile {
    /// The segments of all devices, in the file's order: by device, then by address.
    pub segments: Vec<SnapshotSegment>,
    /// The history of each device, oldest entry first, by the device's ordinal.
    pub traces: Vec<Vec<TraceEntry>>,
    /// How the allocator was set up. Not in a bare list of segments.
    pub settings: Option<AllocatorSettings>,
    /// Scopes that the program marked, such as `Optimizer.step`, oldest first.
    pub annotations: Vec<Annotation>,
    /// The call stacks that entries, segments and blocks refer to.
    pub stacks: Stacks,
    /// Keys that tell the release which wrote the file.
    pub keys: Keys,
    /// Entries that were left out because their action is not known, by action.
    pub skipped_actions: BTreeMap<String, usize>,
}

/// The settings of PyTorch's allocator when the snapshot was taken. `None` for what the file does
/// not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocatorSettings {
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`, or of the variable that replaced it; empty if none
    /// was set.
    pub conf: String,
    /// Blocks of this many bytes or more are not split; −1 for no such bound.
    pub max_split_size: Option<i64>,
    /// The share of the memory limit from which on unused segments are given back; 0 for never.
    pub garbage_collection_threshold: Option<f64>,
    /// Whether segments grow in place.
    pub expandable_segments: Option<bool>,
    /// Threads that register pinned memory.
    pub pinned_num_register_threads: Option<u64>,
    /// Whether other threads may allocate while one waits for `cudaMalloc`.
    pub release_lock_on_cudamalloc: Option<bool>,
    /// Whether pinned memory comes from `cudaHostRegister`.
    pub pinned_use_cuda_host_register: Option<bool>,
    /// Whether a capture may reuse what other streams were recorded on.
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// Steps between two powers of two, for sizes from 1 MiB, 2 MiB, ... up to 32768 MiB; 0 for
    /// none.
    pub roundup_power2_divisions: Option<[u64; 16]>,
}

/// The beginning or end of a scope that the program marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name; empty if it has none.
    pub name: Arc<str>,
    /// Beginning or end.
    pub stage: Stage,
    /// The device.
    pub device: DeviceId,
    /// When, in microseconds since 1970; 0 if not known.
    pub time_us: u64,
}

/// Which end of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `START`.
    Start,
    /// `END`.
    End,
    /// Another word, or an empty one if there is none: not a scope of PyTorch's own.
    Other(Arc<str>),
}

/// Keys that some entry has. Later releases write more of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// `compile_context`.
    pub compile_context: bool,
    /// `user_metadata`: from PyTorch 2.10 on.
    pub user_metadata: bool,
    /// `forward_frames`: from PyTorch 2.11 on, and only if they were recorded.
    pub forward_frames: bool,
}

/// Reads the snapshot in a file, with the default [`Limits`].
///
/// # Errors
///
/// Always [`SnapshotError::File`], with the path and what is wrong.
pub fn open(path: &Path) -> Result<SnapshotFile> {
    let file = File::open(path).map_err(SnapshotError::Io);
    file.and_then(|file| read(file, &Limits::default()))
        .map_err(|source| SnapshotError::File { path: path.to_owned(), source: Box::new(source) })
}

/// Reads the snapshot in `bytes`, with the default [`Limits`].
///
/// # Errors
///
/// As [`read`].
pub fn parse(bytes: &[u8]) -> Result<SnapshotFile> {
    read(bytes, &Limits::default())
}

/// Reads a snapshot from anywhere, a piece at a time. Whether it is compressed shows in its first
/// bytes.
///
/// # Errors
///
/// One of [`SnapshotError`] for whatever is wrong with the input, or for what passes `limits`.
pub fn read(input: impl Read, limits: &Limits) -> Result<SnapshotFile> {
    read_one_way(input, limits, true)
}

fn read_one_way(input: impl Read, limits: &Limits, short_way: bool) -> Result<SnapshotFile> {
    let source = Source::new(input, limits.pickle_bytes)?;
    let outcome = Machine::new(source, *limits, short_way).run()?;
    Finish { limits, offset: outcome.offset }.file(outcome)
}

/// What the fuzzer calls: reads `data` within limits that keep one run short, and drops the result.
#[doc(hidden)]
pub fn fuzz_pickle(data: &[u8]) {
    let limits = Limits { pickle_bytes: 4 << 20, memory: 64 << 20, depth: 64 };
    drop(read(data, &limits));
}

/// The last step, from rows to the file.
struct Finish<'a> {
    limits: &'a Limits,
    /// Where the pickle ends.
    offset: u64,
}

/// The values of the top dictionary.
#[derive(Default)]
struct Top {
    segments: Option<Value>,
    traces: Option<Value>,
    settings: Option<Value>,
    annotations: Option<Value>,
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
    fn file(&self, Outcome { root, rows, .. }: Outcome) -> Result<SnapshotFile> {
        let top = self.top(root, &rows)?;
        let segments = self.runs(&rows, known::SEGMENTS, top.segments, Table::Segments)?;
        let annotations =
            self.runs(&rows, known::EXTERNAL_ANNOTATIONS, top.annotations, Table::Annotations)?;
        let mut skipped_actions = BTreeMap::new();
        let traces = self.traces(&rows, top.traces, &mut skipped_actions)?;
        let settings = self.settings(&rows, top.settings)?;
        self.afford(&rows, &segments, &annotations, &traces)?;

        let Rows { strings, stacks, entries, segments: segment_rows, blocks, .. } = rows;
        let mut texts = SharedTexts::new(&strings);
        let annotations = numbers(&annotations)
            .map(|row| annotation(rows.annotations[row], &mut texts))
            .collect();
        Ok(SnapshotFile {
            segments: numbers(&segments).map(|row| segment(&segment_rows[row], &blocks)).collect(),
            traces: entries.take(&traces),
            settings,
            annotations,
            stacks: stacks.finish(&mut texts),
            keys: rows.keys,
            skipped_actions,
        })
    }

    /// Refuses what would take too much to copy, before anything is copied: a few bytes can name
    /// the same list any number of times.
    fn afford(
        &self,
        rows: &Rows,
        segments: &[Run],
        annotations: &[Run],
        traces: &[Vec<Run>],
    ) -> Result<()> {
        let segment = |row: usize| {
            let blocks = rows.segments[row].blocks.len as usize;
            (size_of::<SnapshotSegment>() + blocks * size_of::<SnapshotBlock>()) as u64
        };
        let annotations: u64 = annotations.iter().map(|run| u64::from(run.len)).sum();
        let mut needed = rows.memory()
            + rows.stacks.memory_to_finish()
            + rows.entries.memory_to_repeat(traces)
            + annotations * size_of::<Annotation>() as u64;
        for row in numbers(segments) {
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
                        _ => {}
                    }
                }
                if top.segments.is_none() {
                    return Err(self.shape("top level", "the key `segments`", "no such key"));
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
        let mut traces = Vec::with_capacity(devices.len());
        for (device, &value) in devices.iter().enumerate() {
            let path = format!("{path}[{device}]");
            let items =
                rows.elements(value).ok_or_else(|| self.wrong(rows, &path, value, TRACE))?;
            // The same list for many devices would be walked, and kept, for each.
            work = work
                .checked_sub(size_of_val(&*items) as u64)
                .ok_or_else(|| over_memory(self.limits, self.offset))?;
            let mut runs = Vec::new();
            for item in items.iter() {
                match *item {
                    Value::Rows(run) if run.table == Table::Entries => runs.push(run),
                    Value::UnknownAction(action) => {
                        let action = rows.strings.text(action);
                        match skipped.get_mut(action) {
                            Some(count) => *count += 1,
                            None => drop(skipped.insert(action.to_owned(), 1)),
                        }
                    }
                    other => return Err(self.wrong(rows, &path, other, TRACE)),
                }
            }
            traces.push(runs);
        }
        Ok(traces)
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

fn segment(row: &SegmentRow, blocks: &[SnapshotBlock]) -> SnapshotSegment {
    let first = row.blocks.first as usize;
    let blocks = blocks[first..first + row.blocks.len as usize].to_vec();
    SnapshotSegment { blocks, ..row.segment.clone() }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tonnage_events::StackId;

    use super::*;

    /// What was read, or why not, as text.
    fn outcome(bytes: &[u8], short_way: bool) -> String {
        let limits = Limits { pickle_bytes: 64 << 20, memory: 64 << 20, depth: 64 };
        match read_one_way(bytes, &limits, short_way) {
            Ok(SnapshotFile { segments, traces, settings, annotations, stacks, keys, .. }) => {
                let stacks: Vec<_> = (0..stacks.len() as u32)
                    .filter_map(StackId::new)
                    .map(|id| stacks.frames(id))
                    .collect();
                format!(
                    "{segments:?}\n{traces:?}\n{settings:?}\n{annotations:?}\n{stacks:?}\n{keys:?}"
                )
            }
            Err(error) => error.to_string(),
        }
    }

    fn recording(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
        zstd::decode_all(File::open(folder.join(name)).unwrap()).unwrap()
    }

    #[test]
    fn the_short_way_and_the_long_way_lead_to_the_same_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".pickle.zst") {
                let bytes = recording(&name);
                assert!(outcome(&bytes, true) == outcome(&bytes, false), "{name}");
            }
        }
    }

    /// A file with something changed: bytes overwritten, taken out, or put in.
    fn changed(mut bytes: Vec<u8>, changes: &[(usize, u8, u8)]) -> Vec<u8> {
        for &(place, kind, byte) in changes {
            let place = place % bytes.len();
            match kind % 4 {
                0 => bytes[place] = byte,
                1 => drop(bytes.remove(place)),
                2 => bytes.insert(place, byte),
                _ => bytes.truncate(place.max(bytes.len() / 2)),
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn both_ways_agree_on_damaged_files_and_never_panic(
            stacks in any::<bool>(),
            changes in prop::collection::vec((any::<usize>(), any::<u8>(), any::<u8>()), 1..6),
        ) {
            let name = if stacks { "mlp_seed.default.stacks" } else { "mlp_seed.tight" };
            let bytes = changed(recording(&format!("{name}.pickle.zst")), &changes);
            prop_assert_eq!(outcome(&bytes, true), outcome(&bytes, false));
        }

        #[test]
        fn programs_of_plain_opcodes_never_panic(
            program in prop::collection::vec(prop::sample::select(PLAIN), 0..200),
        ) {
            let bytes = [b"\x80\x04", program.concat().as_slice(), b"."].concat();
            prop_assert_eq!(outcome(&bytes, true), outcome(&bytes, false));
        }
    }

    /// Pieces that random programs are put together from.
    const PLAIN: &[&[u8]] = &[
        b"N",
        b"K\x01",
        b"M\x01\x02",
        b"J\xff\xff\xff\xff",
        b"\x8a\x02\xff\x7f",
        b"G\0\0\0\0\0\0\0\0",
        b"\x88",
        b"\x8c\x01a",
        b"\x8c\x06action",
        b"\x8c\x05alloc",
        b"\x8c\x04size",
        b"\x8c\x04addr",
        b"\x8c\x06stream",
        b"\x8c\x06frames",
        b"\x8c\x04name",
        b"\x8c\x08filename",
        b"\x8c\x08segments",
        b"\x8c\x0ddevice_traces",
        b"\x8c\x06blocks",
        b"\x8c\x05state",
        b"\x8c\x07time_us",
        b"]",
        b"a",
        b"e",
        b"l",
        b")",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"}",
        b"d",
        b"s",
        b"u",
        b"\x8f",
        b"\x90",
        b"\x91",
        b"0",
        b"(",
        b"1",
        b"h\0",
        b"h\x01",
        b"h\x02",
        b"q\0",
        b"q\x01",
        b"r\x02\0\0\0",
        b"r\xff\xff\xff\xff",
        b"j\xff\xff\xff\xff",
        b"\x94",
        b"I5\n",
        b"(",
        b"(",
        b"\x94",
        b"}\x94(",
        b"}(\x8c\x06actionh\x01\x8c\x04sizeK\x01\x8c\x04addrK\x02\x8c\x06streamK\0u",
        b"}(\x8c\x04name\x8c\x01a\x8c\x08filename\x8c\x01bu",
    ];
}
