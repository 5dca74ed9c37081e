//! Stage 4: complete dictionaries and lists, as rows.
//!
//! In:  the keys and values of a dictionary, or the elements of a list, each of them complete.
//! Out: one [`Value`] that stands for the whole: a row of a table, a run of rows, a stack, ...
//!
//! What a dictionary is shows in its keys, so it can become a row before one knows where in the
//! file it stands. Something malformed is no error yet, since it may stand under a key that nobody
//! needs: it becomes [`Value::Bad`], with a [`Problem`] that grows its path as the containers
//! around it are completed, and fails the file only if it is reached from the top.

use std::borrow::Cow;

use tonnage_events::{Address, DeviceId, SnapshotBlock, SnapshotSegment, StackId, TraceEntry};

use crate::call_stacks::CallStacks;
use crate::entries::Entries;
use crate::input::BUFFER;
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
    pub(crate) max_round_threshold: Option<i64>,
    pub(crate) max_cached_size: Option<i64>,
    pub(crate) roundup_power2_divisions: Option<[u64; 16]>,
}

/// What an old file says of an allocation in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastRow {
    /// What the caller asked for.
    pub(crate) requested: u64,
    pub(crate) stack: Option<StackId>,
}

/// The address of a block whose file does not give one: it follows from the blocks before it. None
/// has this one, where no byte would fit.
pub(crate) const UNPLACED: Address = Address(u64::MAX);

/// An annotation, still with ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnnotationRow {
    pub(crate) name: Option<StrId>,
    pub(crate) stage: Option<StrId>,
    pub(crate) device: DeviceId,
    pub(crate) time_us: u64,
}

/// What an entry says besides, still with ids. Entries that say nothing have none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoteRow {
    /// The row of the entry.
    pub(crate) entry: u32,
    pub(crate) said: Said,
}

/// What an entry can say besides what every entry does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) pool: (u64, u64),
    pub(crate) user: StrId,
    pub(crate) internal: Option<StrId>,
}

impl Said {
    pub(crate) const NOTHING: Self = Self { pool: (0, 0), user: known::EMPTY, internal: None };
}

/// A segment, still without its blocks: a file can name the same ones for many segments, so they
/// are copied when the bill is known.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRow {
    pub(crate) segment: SnapshotSegment,
    /// Whether it says that it lies on device −1.
    pub(crate) on_host: bool,
    pub(crate) blocks: Run,
    pub(crate) sums: Sums,
}

/// Sums that a segment does not give, so that its blocks must.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub(crate) allocated: bool,
    pub(crate) active: bool,
    pub(crate) requested: bool,
}

/// Everything that was read so far.
pub(crate) struct Rows {
    pub(crate) strings: Strings,
    pub(crate) stacks: CallStacks,
    pub(crate) entries: Entries,
    pub(crate) segments: Vec<SegmentRow>,
    pub(crate) blocks: Vec<SnapshotBlock>,
    pub(crate) annotations: Vec<AnnotationRow>,
    pub(crate) pasts: Vec<PastRow>,
    /// By ascending row of the entry.
    pub(crate) notes: Vec<NoteRow>,
    pub(crate) settings: Vec<SettingsRow>,
    pub(crate) divisions: Vec<[u64; 16]>,
    pub(crate) pairs: Vec<(u64, u64)>,
    lists: Vec<Box<[Value]>>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) keys: Keys,
    /// Elements of all `lists` together.
    listed: usize,
    /// Calls of the stack that is being put together.
    pub(crate) scratch: Vec<u32>,
}

impl Rows {
    pub(crate) fn new(entries: Entries) -> Self {
        Self {
            strings: Strings::new(),
            stacks: CallStacks::default(),
            entries,
            segments: Vec::new(),
            blocks: Vec::new(),
            annotations: Vec::new(),
            pasts: Vec::new(),
            notes: Vec::new(),
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
        let rows = taken(&self.segments)
            + taken(&self.blocks)
            + taken(&self.annotations)
            + taken(&self.pasts)
            + taken(&self.notes)
            + taken(&self.settings)
            + taken(&self.divisions)
            + taken(&self.pairs)
            + taken(&self.lists)
            + taken(&self.scratch)
            + self.listed * size_of::<Value>()
            + self.problems.len() * PROBLEM;
        self.strings.memory() + self.stacks.memory() + self.entries.memory() + rows as u64
    }

    /// Adds an entry, with what it says besides, and returns its row.
    #[inline]
    pub(crate) fn push_entry(&mut self, entry: TraceEntry, said: Said) -> u32 {
        let row = self.entries.push(entry);
        if said != Said::NOTHING {
            self.notes.push(NoteRow { entry: row, said });
        }
        row
    }

    /// The notes of the entries in a run.
    pub(crate) fn notes_of(&self, run: Run) -> &[NoteRow] {
        let before = |row: u64| self.notes.partition_point(|it| u64::from(it.entry) < row);
        let first = u64::from(run.first);
        &self.notes[before(first)..before(first + u64::from(run.len))]
    }

    /// The most numerous of what has a number.
    pub(crate) fn highest_number(&self) -> usize {
        [
            self.strings.len(),
            self.entries.len(),
            self.segments.len(),
            self.blocks.len(),
            self.pairs.len(),
            self.pasts.len(),
        ]
        .into_iter()
        .max()
        .unwrap_or(0)
    }

    /// Puts an element at the end of a list. Neighbouring rows become one run.
    #[inline]
    pub(crate) fn append(&mut self, items: &mut Vec<Value>, value: Value) {
        let Value::Row(table, row) = value else {
            items.push(value);
            return;
        };
        match items.last_mut() {
            Some(Value::Rows(run))
                if run.table == table
                    && u64::from(run.first) + u64::from(run.len) == u64::from(row) =>
            {
                run.len += 1;
            }
            _ => {
                if table == Table::Entries {
                    self.entries.begin_list(row);
                }
                items.push(Value::Rows(Run { table, first: row, len: 1 }));
            }
        }
    }

    /// What stands for a list of these elements.
    pub(crate) fn list(&mut self, items: &[Value]) -> Value {
        match *items {
            [] => return Value::EmptyList,
            [Value::Rows(run)] => return Value::RowList(run),
            [Value::Past(first), ref rest @ ..]
                if rest.iter().all(|item| matches!(item, Value::Past(_))) =>
            {
                return Value::PastList(first);
            }
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

    /// The elements of a list that stands for rows, or for lists of them.
    pub(crate) fn elements(&self, list: Value) -> Option<Cow<'_, [Value]>> {
        match list {
            Value::EmptyList => Some(Cow::Owned(Vec::new())),
            Value::RowList(run) => Some(Cow::Owned(vec![Value::Rows(run)])),
            Value::List(number) => Some(Cow::Borrowed(&self.lists[number as usize])),
            _ => None,
        }
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

    /// The same problem, seen from one container further out.
    pub(crate) fn bad(&mut self, step: &str, reason: u32) -> Value {
        let mut problem = self.problems[reason as usize].clone();
        if problem.steps == MAX_STEPS {
            return Value::Bad(reason);
        }
        problem.path.insert_str(0, step);
        problem.steps += 1;
        self.problems.push(problem);
        Value::Bad(self.problems.len() as u32 - 1)
    }

    pub(crate) fn problem(
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

/// Bytes that a vector holds, and will hold while it grows with the next buffer of input.
pub(crate) fn taken<T>(vector: &Vec<T>) -> usize {
    let growth = if grows(vector.len(), vector.capacity()) { 2 * vector.capacity() } else { 0 };
    (vector.capacity() + growth) * size_of::<T>()
}

/// The same for a map, whose places have so many bytes each.
pub(crate) fn taken_by_map(len: usize, capacity: usize, place: usize) -> usize {
    // A byte beside each place, of which up to an eighth is kept free.
    let place = (place + 1) * 8 / 7;
    let growth = if grows(len, capacity) { 2 * capacity } else { 0 };
    (capacity + growth) * place
}

/// Whether something may grow to the double while one buffer of input is read: then the old is there beside the new.
/// To count that before it happens keeps a file from asking for memory that no one has.
pub(crate) fn grows(len: usize, capacity: usize) -> bool {
    // No opcode is shorter than a byte, and none adds more than one of anything.
    capacity.saturating_sub(len) < BUFFER
}

/// The index in the list that the element at `place` begins at: runs hold several.
fn index_of(items: &[Value], place: usize) -> u32 {
    let lens = items[..place].iter().map(|item| match item {
        Value::Rows(run) => run.len,
        _ => 1,
    });
    lens.fold(0, u32::saturating_add)
}
