//! Stage 4: complete dictionaries and lists, as rows.
//!
//! In:  the keys and values of a dictionary, or the elements of a list, each of them complete.
//! Out: one [`Value`] that stands for the whole: a row of a table, a run of rows, a stack, ...
//!
//! What a dictionary is shows in its keys, so it can become a row before one knows where in the
//! file it stands. Something malformed is no error yet, since it may stand under a key that nobody
//! needs: it becomes [`Value::Bad`], with a [`Problem`] that grows its path as the containers
//! around it are completed, and fails the file only if it is reached from the top.

use tonnage_events::{
    Action, Address, BlockState, DeviceId, PoolId, PoolKind, SnapshotBlock, SnapshotSegment,
    StackId, StreamId, TraceEntry,
};

use crate::call_stacks::{Call, CallStacks};
use crate::snapshot_file::Keys;
use crate::strings::{Strings, known};
use crate::value::{Kind, Run, StrId, Table, Value};

/// Why a value is [`Value::Bad`].
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// From the value to the culprit: `[17].size`.
    pub(crate) path: String,
    pub(crate) expected: &'static str,
    pub(crate) found: String,
    /// Where the innermost container ends.
    pub(crate) offset: u64,
    /// Steps in the path, at most [`MAX_STEPS`].
    steps: usize,
}

/// Steps of a path that are written down. A snapshot has six at most, and hostile nesting must not
/// make paths of megabytes.
const MAX_STEPS: usize = 16;

/// What is wrong with one key of a dictionary.
struct Fault {
    key: StrId,
    value: Option<Value>,
    expected: &'static str,
}

type Checked<T> = Result<T, Fault>;

/// What the last of an allocator's settings were, still with ids.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SettingsRow {
    pub(crate) conf: Option<StrId>,
    pub(crate) max_split_size: Option<i64>,
    pub(crate) garbage_collection_threshold: Option<f64>,
    pub(crate) expandable_segments: Option<bool>,
    pub(crate) pinned_num_register_threads: Option<u64>,
    pub(crate) release_lock_on_cudamalloc: Option<bool>,
    pub(crate) pinned_use_cuda_host_register: Option<bool>,
    pub(crate) graph_capture_record_stream_reuse: Option<bool>,
    pub(crate) roundup_power2_divisions: Option<[u64; 16]>,
}

/// An annotation, still with ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnnotationRow {
    pub(crate) name: Option<StrId>,
    pub(crate) stage: Option<StrId>,
    pub(crate) device: DeviceId,
    pub(crate) time_us: u64,
}

/// A segment, still without its blocks: a file can name the same ones for many segments, so they
/// are copied when the bill is known.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRow {
    pub(crate) segment: SnapshotSegment,
    pub(crate) blocks: Run,
}

/// Everything that was read so far.
pub(crate) struct Rows {
    pub(crate) strings: Strings,
    pub(crate) stacks: CallStacks,
    pub(crate) entries: Entries,
    pub(crate) segments: Vec<SegmentRow>,
    pub(crate) blocks: Vec<SnapshotBlock>,
    pub(crate) annotations: Vec<AnnotationRow>,
    pub(crate) settings: Vec<SettingsRow>,
    divisions: Vec<[u64; 16]>,
    pub(crate) pairs: Vec<(u64, u64)>,
    pub(crate) lists: Vec<Box<[Value]>>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) keys: Keys,
    /// Elements of all `lists` together.
    listed: usize,
    scratch: Vec<u32>,
}

impl Rows {
    pub(crate) fn new() -> Self {
        Self {
            strings: Strings::new(),
            stacks: CallStacks::default(),
            entries: Entries::default(),
            segments: Vec::new(),
            blocks: Vec::new(),
            annotations: Vec::new(),
            settings: Vec::new(),
            divisions: Vec::new(),
            pairs: Vec::new(),
            lists: Vec::new(),
            problems: Vec::new(),
            keys: Keys::default(),
            listed: 0,
            scratch: Vec::new(),
        }
    }

    /// Bytes held, about.
    pub(crate) fn memory(&self) -> u64 {
        // Paths and findings are short; a quarter of a kilobyte covers them.
        const PROBLEM: usize = 256;
        let rows = self.entries.len() * size_of::<TraceEntry>()
            + self.segments.len() * size_of::<SegmentRow>()
            + self.blocks.len() * size_of::<SnapshotBlock>()
            + self.annotations.len() * size_of::<AnnotationRow>()
            + self.settings.len() * size_of::<SettingsRow>()
            + self.divisions.len() * size_of::<[u64; 16]>()
            + self.pairs.len() * size_of::<(u64, u64)>()
            + self.lists.len() * size_of::<Box<[Value]>>()
            + self.listed * size_of::<Value>()
            + self.problems.len() * PROBLEM;
        self.strings.memory() + self.stacks.memory() + rows as u64
    }

    /// The most numerous of what has a number.
    pub(crate) fn highest_number(&self) -> usize {
        [
            self.strings.len(),
            self.entries.len(),
            self.segments.len(),
            self.blocks.len(),
            self.pairs.len(),
        ]
        .into_iter()
        .max()
        .unwrap_or(0)
    }

    /// The row of a dictionary with these keys and values, if its keys say what it is. It ends at
    /// `offset`.
    #[inline]
    pub(crate) fn dict(&mut self, items: &[Value], offset: u64) -> Option<Value> {
        let made = match Shape::of(items)? {
            Shape::Entry => self.entry(items),
            Shape::Frame => self.frame(items),
            Shape::Block => self.block(items),
            Shape::Segment => self.segment(items),
            Shape::Settings => self.settings(items),
            Shape::Divisions => self.divisions(items),
            Shape::Annotation => self.annotation(items),
        };
        Some(made.unwrap_or_else(|fault| self.bad_dict(fault, offset)))
    }

    /// What stands for a list of these elements.
    pub(crate) fn list(&mut self, items: &[Value]) -> Value {
        match *items {
            [] => return Value::EmptyList,
            [Value::Rows(run)] => return Value::Rows(run),
            _ => {}
        }
        self.scratch.clear();
        self.scratch.extend(items.iter().map_while(|item| match *item {
            Value::Frame(number) => Some(number),
            _ => None,
        }));
        let frames = self.scratch.len();
        if frames == items.len() {
            return Value::Stack(self.stacks.stack(&self.scratch));
        }
        for (place, item) in items.iter().enumerate() {
            if let Value::Bad(reason) = *item {
                return self.bad(&format!("[{}]", index_of(items, place)), reason);
            }
        }
        // Frames at the beginning say what the list should be, so the culprit comes after.
        for (place, item) in items.iter().enumerate().skip(frames) {
            let holds = if frames > 0 {
                Some(item.foreign().unwrap_or(Kind::Dict))
            } else {
                item.foreign()
            };
            if let Some(holds) = holds {
                return Value::ForeignList { at: index_of(items, place), holds };
            }
        }
        self.listed += items.len();
        self.lists.push(items.into());
        Value::List(self.lists.len() as u32 - 1)
    }

    /// What stands for a tuple of these elements.
    pub(crate) fn tuple(&mut self, items: &[Value]) -> Value {
        let [Value::Int(first), Value::Int(second)] = *items else {
            return Value::Opaque(Kind::Tuple);
        };
        let pair = (first, second);
        // Nearly all are the default pool's.
        if self.pairs.last() != Some(&pair) {
            self.pairs.push(pair);
        }
        Value::Pair(self.pairs.len() as u32 - 1)
    }

    #[inline]
    fn entry(&mut self, items: &[Value]) -> Checked<Value> {
        let (mut action, mut address, mut size, mut stream) = (None, None, None, None);
        let (mut time_us, mut stack) = (0, None);
        for (key, value) in pairs(items) {
            match key {
                known::ACTION => action = Some(text(key, value)?),
                known::ADDR | known::DEVICE_FREE => address = Some(unsigned(key, value)?),
                known::SIZE => size = Some(unsigned(key, value)?),
                known::STREAM => stream = Some(unsigned(key, value)?),
                known::TIME_US => time_us = unsigned(key, value)?,
                known::FRAMES => stack = stack_of(key, value)?,
                known::USER_METADATA => self.keys.user_metadata = true,
                known::FORWARD_FRAMES => self.keys.forward_frames = true,
                known::COMPILE_CONTEXT => self.keys.compile_context = true,
                _ => {}
            }
        }
        let action = required(known::ACTION, action)?;
        let Some(&action) = Action::ALL.get(action.0 as usize) else {
            return Ok(Value::UnknownAction(action));
        };
        let entry = TraceEntry {
            action,
            address: Address(required(known::ADDR, address)?),
            size: required(known::SIZE, size)?,
            stream: StreamId(required(known::STREAM, stream)?),
            time_us,
            stack,
        };
        Ok(Value::Row(Table::Entries, self.entries.push(entry)))
    }

    fn frame(&mut self, items: &[Value]) -> Checked<Value> {
        let (mut name, mut filename, mut line) = (None, None, 0);
        for (key, value) in pairs(items) {
            match key {
                known::NAME => name = Some(text(key, value)?),
                known::FILENAME => filename = Some(text(key, value)?),
                // Python says −1 when it does not know, and C++ makes an unsigned number of it.
                known::LINE => {
                    line = match value {
                        Value::Int(line) => u32::try_from(line).unwrap_or(0),
                        Value::Negative(_) | Value::None => 0,
                        _ => return Err(fault(key, value, "a line number")),
                    }
                }
                _ => {}
            }
        }
        let name = required(known::NAME, name)?;
        let filename = required(known::FILENAME, filename)?;
        Ok(Value::Frame(self.stacks.call(Call { name, filename, line })))
    }

    fn block(&mut self, items: &[Value]) -> Checked<Value> {
        let (mut address, mut size, mut requested, mut state) = (None, None, None, None);
        let mut stack = None;
        for (key, value) in pairs(items) {
            match key {
                known::ADDRESS => address = Some(unsigned(key, value)?),
                known::SIZE => size = Some(unsigned(key, value)?),
                known::REQUESTED_SIZE => requested = Some(unsigned(key, value)?),
                known::STATE => {
                    let name = self.strings.text(text(key, value)?);
                    let known = BlockState::from_name(name);
                    state = Some(known.ok_or_else(|| fault(key, value, "a state of a block"))?);
                }
                known::FRAMES => stack = stack_of(key, value)?,
                _ => {}
            }
        }
        self.blocks.push(SnapshotBlock {
            address: Address(required(known::ADDRESS, address)?),
            size: required(known::SIZE, size)?,
            requested_size: required(known::REQUESTED_SIZE, requested)?,
            state: required(known::STATE, state)?,
            stack,
        });
        Ok(Value::Row(Table::Blocks, self.blocks.len() as u32 - 1))
    }

    fn segment(&mut self, items: &[Value]) -> Checked<Value> {
        let (mut device, mut address, mut total, mut stream) = (None, None, None, None);
        let (mut allocated, mut active, mut requested) = (None, None, None);
        let (mut kind, mut blocks) = (None, None);
        let (mut pool, mut expandable, mut stack) = (PoolId::DEFAULT, false, None);
        for (key, value) in pairs(items) {
            match key {
                known::DEVICE => device = Some(device_of(key, value)?),
                known::ADDRESS => address = Some(unsigned(key, value)?),
                known::TOTAL_SIZE => total = Some(unsigned(key, value)?),
                known::ALLOCATED_SIZE => allocated = Some(unsigned(key, value)?),
                known::ACTIVE_SIZE => active = Some(unsigned(key, value)?),
                known::REQUESTED_SIZE => requested = Some(unsigned(key, value)?),
                known::STREAM => stream = Some(unsigned(key, value)?),
                known::SEGMENT_TYPE => {
                    kind = Some(match text(key, value)? {
                        known::SMALL => PoolKind::Small,
                        known::LARGE => PoolKind::Large,
                        _ => return Err(fault(key, value, "`small` or `large`")),
                    });
                }
                known::SEGMENT_POOL_ID => {
                    let Value::Pair(number) = value else {
                        return Err(fault(key, value, "a pair of integers"));
                    };
                    let (first, second) = self.pairs[number as usize];
                    pool = PoolId(first, second);
                }
                known::IS_EXPANDABLE => expandable = boolean(key, value)?,
                known::FRAMES => stack = stack_of(key, value)?,
                known::BLOCKS => {
                    blocks = Some(match value {
                        Value::EmptyList => Run { table: Table::Blocks, first: 0, len: 0 },
                        Value::Rows(run) if run.table == Table::Blocks => run,
                        _ => return Err(fault(key, value, "a list of blocks")),
                    });
                }
                _ => {}
            }
        }
        let blocks = required(known::BLOCKS, blocks)?;
        let segment = SnapshotSegment {
            device: required(known::DEVICE, device)?,
            address: Address(required(known::ADDRESS, address)?),
            total_size: required(known::TOTAL_SIZE, total)?,
            allocated_size: required(known::ALLOCATED_SIZE, allocated)?,
            active_size: required(known::ACTIVE_SIZE, active)?,
            requested_size: required(known::REQUESTED_SIZE, requested)?,
            stream: StreamId(required(known::STREAM, stream)?),
            kind: required(known::SEGMENT_TYPE, kind)?,
            pool,
            expandable,
            stack,
            blocks: Vec::new(),
        };
        self.segments.push(SegmentRow { segment, blocks });
        Ok(Value::Row(Table::Segments, self.segments.len() as u32 - 1))
    }

    fn annotation(&mut self, items: &[Value]) -> Checked<Value> {
        let mut row =
            AnnotationRow { name: None, stage: None, device: DeviceId::default(), time_us: 0 };
        for (key, value) in pairs(items) {
            match key {
                known::NAME => row.name = Some(text(key, value)?),
                known::STAGE => row.stage = Some(text(key, value)?),
                known::DEVICE => row.device = device_of(key, value)?,
                known::TIME_US => row.time_us = unsigned(key, value)?,
                _ => {}
            }
        }
        self.annotations.push(row);
        Ok(Value::Row(Table::Annotations, self.annotations.len() as u32 - 1))
    }

    fn settings(&mut self, items: &[Value]) -> Checked<Value> {
        let mut row = SettingsRow::default();
        for (key, value) in pairs(items) {
            if value == Value::None {
                continue;
            }
            match key {
                known::PYTORCH_CUDA_ALLOC_CONF => row.conf = Some(text(key, value)?),
                known::MAX_SPLIT_SIZE => row.max_split_size = Some(signed(key, value)?),
                known::GARBAGE_COLLECTION_THRESHOLD => {
                    row.garbage_collection_threshold = Some(fraction(key, value)?);
                }
                known::EXPANDABLE_SEGMENTS => {
                    row.expandable_segments = Some(boolean(key, value)?);
                }
                known::PINNED_NUM_REGISTER_THREADS => {
                    row.pinned_num_register_threads = Some(unsigned(key, value)?);
                }
                known::RELEASE_LOCK_ON_CUDAMALLOC => {
                    row.release_lock_on_cudamalloc = Some(boolean(key, value)?);
                }
                known::PINNED_USE_CUDA_HOST_REGISTER => {
                    row.pinned_use_cuda_host_register = Some(boolean(key, value)?);
                }
                known::GRAPH_CAPTURE_RECORD_STREAM_REUSE => {
                    row.graph_capture_record_stream_reuse = Some(boolean(key, value)?);
                }
                known::ROUNDUP_POWER2_DIVISIONS => {
                    let Value::Divisions(number) = value else {
                        return Err(fault(key, value, "a dictionary of divisions by size"));
                    };
                    row.roundup_power2_divisions = Some(self.divisions[number as usize]);
                }
                _ => {}
            }
        }
        self.settings.push(row);
        Ok(Value::Settings(self.settings.len() as u32 - 1))
    }

    fn divisions(&mut self, items: &[Value]) -> Checked<Value> {
        let mut divisions = [0; 16];
        for (key, value) in pairs(items) {
            let power = key.0.wrapping_sub(known::SIZE_1.0) as usize;
            if let Some(slot) = divisions.get_mut(power) {
                *slot = unsigned(key, value)?;
            }
        }
        self.divisions.push(divisions);
        Ok(Value::Divisions(self.divisions.len() as u32 - 1))
    }

    #[cold]
    fn bad_dict(&mut self, fault: Fault, offset: u64) -> Value {
        let Fault { key, value, expected } = fault;
        let path = format!(".{}", self.strings.text(key));
        match value {
            Some(Value::Bad(reason)) => self.bad(&path, reason),
            Some(Value::Str(id)) => {
                let found = format!("the text {}", quoted(self.strings.text(id)));
                self.problem(path, expected, found, offset)
            }
            Some(value) => self.problem(path, expected, value.describe(), offset),
            None => self.problem(path, expected, "nothing: the key is missing".to_owned(), offset),
        }
    }

    /// The same problem, seen from one container further out.
    fn bad(&mut self, step: &str, reason: u32) -> Value {
        let mut problem = self.problems[reason as usize].clone();
        if problem.steps == MAX_STEPS {
            return Value::Bad(reason);
        }
        problem.path.insert_str(0, step);
        problem.steps += 1;
        self.problems.push(problem);
        Value::Bad(self.problems.len() as u32 - 1)
    }

    fn problem(
        &mut self,
        path: String,
        expected: &'static str,
        found: String,
        offset: u64,
    ) -> Value {
        self.problems.push(Problem { path, expected, found, offset, steps: 1 });
        Value::Bad(self.problems.len() as u32 - 1)
    }
}

/// The beginning of a text, for an error.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("{shown:?}{more}")
}

/// What a dictionary is.
#[derive(Clone, Copy)]
enum Shape {
    Entry,
    Frame,
    Block,
    Segment,
    Settings,
    Divisions,
    Annotation,
}

impl Shape {
    /// Told by its keys: none of these for a dictionary of no use, and for the whole snapshot.
    #[inline]
    fn of(items: &[Value]) -> Option<Self> {
        const WHOLE: u16 = 1;
        const ACTION: u16 = 1 << 1;
        const BLOCKS: u16 = 1 << 2;
        const FILENAME: u16 = 1 << 3;
        const STATE: u16 = 1 << 4;
        const SETTING: u16 = 1 << 5;
        const DIVISION: u16 = 1 << 6;
        const TIME: u16 = 1 << 7;
        const SIZE: u16 = 1 << 8;
        /// The mark of each known text, by its id.
        const MARKS: [u16; known::ALL.len()] = {
            let mut marks = [0; known::ALL.len()];
            marks[known::SEGMENTS.0 as usize] = WHOLE;
            marks[known::DEVICE_TRACES.0 as usize] = WHOLE;
            marks[known::ACTION.0 as usize] = ACTION;
            marks[known::BLOCKS.0 as usize] = BLOCKS;
            marks[known::FILENAME.0 as usize] = FILENAME;
            marks[known::STATE.0 as usize] = STATE;
            marks[known::TIME_US.0 as usize] = TIME;
            marks[known::SIZE.0 as usize] = SIZE;
            marks[known::ADDR.0 as usize] = SIZE;
            let mut id = known::PYTORCH_CUDA_ALLOC_CONF.0 as usize;
            while id <= known::ROUNDUP_POWER2_DIVISIONS.0 as usize {
                marks[id] = SETTING;
                id += 1;
            }
            let mut id = known::SIZE_1.0 as usize;
            while id <= known::SIZE_32768.0 as usize {
                marks[id] = DIVISION;
                id += 1;
            }
            marks
        };
        let mut marks = 0;
        for (key, _) in pairs(items) {
            marks |= MARKS.get(key.0 as usize).unwrap_or(&0);
        }
        let has = |mark| marks & mark == mark;
        if has(WHOLE) {
            None
        } else if has(ACTION | SIZE) {
            Some(Self::Entry)
        } else if has(FILENAME) {
            Some(Self::Frame)
        } else if has(BLOCKS) {
            Some(Self::Segment)
        } else if has(STATE | SIZE) {
            Some(Self::Block)
        } else if has(SETTING) {
            Some(Self::Settings)
        } else if has(TIME) {
            Some(Self::Annotation)
        } else if has(DIVISION) {
            Some(Self::Divisions)
        } else {
            None
        }
    }
}

/// The index in the list that the element at `place` begins at: runs hold several.
fn index_of(items: &[Value], place: usize) -> u32 {
    let lens = items[..place].iter().map(|item| match item {
        Value::Rows(run) => run.len,
        _ => 1,
    });
    lens.fold(0, u32::saturating_add)
}

/// The pairs of a dictionary whose key is a text; no others are of use.
#[inline]
pub(crate) fn pairs(items: &[Value]) -> impl Iterator<Item = (StrId, Value)> + '_ {
    items.chunks_exact(2).filter_map(|pair| match pair[0] {
        Value::Str(key) => Some((key, pair[1])),
        _ => None,
    })
}

#[cold]
fn fault(key: StrId, value: Value, expected: &'static str) -> Fault {
    Fault { key, value: Some(value), expected }
}

#[inline]
fn required<T>(key: StrId, value: Option<T>) -> Checked<T> {
    value.ok_or(Fault { key, value: None, expected: "a value" })
}

#[inline]
fn unsigned(key: StrId, value: Value) -> Checked<u64> {
    match value {
        Value::Int(number) => Ok(number),
        _ => Err(fault(key, value, "an integer from 0 to 2^64 - 1")),
    }
}

fn signed(key: StrId, value: Value) -> Checked<i64> {
    let expected = "an integer of 64 bits with sign";
    match value {
        Value::Int(number) => i64::try_from(number).map_err(|_| fault(key, value, expected)),
        Value::Negative(number) => Ok(number),
        _ => Err(fault(key, value, expected)),
    }
}

fn fraction(key: StrId, value: Value) -> Checked<f64> {
    match value {
        Value::Float(number) if number.is_finite() => Ok(number),
        Value::Int(number) => Ok(number as f64),
        _ => Err(fault(key, value, "a finite number")),
    }
}

fn boolean(key: StrId, value: Value) -> Checked<bool> {
    match value {
        Value::Bool(value) => Ok(value),
        _ => Err(fault(key, value, "True or False")),
    }
}

#[inline]
fn text(key: StrId, value: Value) -> Checked<StrId> {
    match value {
        Value::Str(id) => Ok(id),
        _ => Err(fault(key, value, "a text")),
    }
}

fn device_of(key: StrId, value: Value) -> Checked<DeviceId> {
    let expected = "the number of a device";
    match value {
        Value::Int(number) => {
            u32::try_from(number).map(DeviceId).map_err(|_| fault(key, value, expected))
        }
        _ => Err(fault(key, value, expected)),
    }
}

#[inline]
fn stack_of(key: StrId, value: Value) -> Checked<Option<StackId>> {
    match value {
        Value::Stack(number) => Ok(Some(StackId(number))),
        Value::EmptyList | Value::None => Ok(None),
        _ => Err(fault(key, value, "a list of stack frames")),
    }
}

/// Trace entries in the order they were read, in pieces.
///
/// The list of a device's entries is nearly always exactly one piece, and leaves the reader without
/// being copied.
#[derive(Default)]
pub(crate) struct Entries {
    pieces: Vec<Piece>,
    len: usize,
}

struct Piece {
    first: u32,
    entries: Vec<TraceEntry>,
}

/// Entries that may be moved to begin a piece: those of one batch, of which Python makes a
/// thousand. Without a bound, a file could have the same entries moved again and again.
const MOVED: usize = 1024;

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry and returns its number.
    #[inline]
    fn push(&mut self, entry: TraceEntry) -> u32 {
        let number = self.len as u32;
        self.len += 1;
        match self.pieces.last_mut() {
            Some(piece) => piece.entries.push(entry),
            None => self.pieces.push(Piece { first: 0, entries: vec![entry] }),
        }
        number
    }

    /// Notes that a list begins with this entry: if it is among the latest, a piece begins there.
    pub(crate) fn begin_list(&mut self, number: u32) {
        let Some(piece) = self.pieces.last_mut() else { return };
        let Some(at) = number.checked_sub(piece.first).map(|at| at as usize) else { return };
        if at > 0 && at < piece.entries.len() && piece.entries.len() - at <= MOVED {
            let entries = piece.entries.split_off(at);
            self.pieces.push(Piece { first: number, entries });
        }
    }

    /// The entries of each list of runs. What no other list has, and is exactly a piece, is moved;
    /// the rest is copied.
    pub(crate) fn take(mut self, lists: &[Vec<Run>]) -> Vec<Vec<TraceEntry>> {
        let mut wanted = vec![0_u32; self.pieces.len()];
        for run in lists.iter().flatten() {
            for piece in self.pieces_of(*run) {
                wanted[piece] += 1;
            }
        }
        let mut moved: Vec<Option<Vec<TraceEntry>>> = Vec::new();
        for runs in lists {
            moved.push(match **runs {
                [run] => {
                    let piece = self.pieces_of(run).start;
                    let whole = self.pieces[piece].first == run.first
                        && self.pieces[piece].entries.len() == run.len as usize;
                    (whole && wanted[piece] == 1)
                        .then(|| std::mem::take(&mut self.pieces[piece].entries))
                }
                _ => None,
            });
        }
        let filled = lists.iter().zip(moved).map(|(runs, moved)| {
            moved.unwrap_or_else(|| runs.iter().flat_map(|&run| self.copy(run)).collect())
        });
        filled
            .map(|mut entries| {
                entries.shrink_to_fit();
                entries
            })
            .collect()
    }

    /// Bytes that [`Entries::take`] copies at most.
    pub(crate) fn memory_to_take(&self, lists: &[Vec<Run>]) -> u64 {
        let copied: u64 = match lists {
            // One list of one run: moved if it is a piece, and if not, there is little else.
            [runs] if runs.len() == 1 => 0,
            _ => lists.iter().flatten().map(|run| u64::from(run.len)).sum(),
        };
        copied.saturating_sub(self.len as u64) * size_of::<TraceEntry>() as u64
    }

    fn copy(&self, run: Run) -> impl Iterator<Item = TraceEntry> + '_ {
        let end = u64::from(run.first) + u64::from(run.len);
        self.pieces_of(run).flat_map(move |index| {
            let piece = &self.pieces[index];
            let first = u64::from(piece.first);
            let from = u64::from(run.first).saturating_sub(first) as usize;
            let to = (end - first).min(piece.entries.len() as u64) as usize;
            piece.entries[from..to].iter().copied()
        })
    }

    /// The pieces that hold a run, which is never empty.
    fn pieces_of(&self, run: Run) -> std::ops::Range<usize> {
        let end = u64::from(run.first) + u64::from(run.len);
        let after =
            |number: u64| self.pieces.partition_point(|piece| u64::from(piece.first) < number);
        after(u64::from(run.first) + 1) - 1..after(end)
    }
}
