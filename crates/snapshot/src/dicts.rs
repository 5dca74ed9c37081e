//! Stage 4: dictionaries, told apart by their keys.
//!
//! In:  the keys and values of a complete dictionary, in turn.
//! Out: the number of the row that it became; nothing for a dictionary of no known kind.
//!
//! Keys that are not known are skipped. Numbers never wrap: what does not fit is a fault.

use tonnage_events::{
    Action, Address, BlockState, DeviceId, PoolId, PoolKind, SnapshotBlock, SnapshotSegment,
    StreamId, TraceEntry,
};

use crate::call_stacks::Call;
use crate::fields::{
    Checked, Fault, boolean, device_of, fault, fraction, pair_of, pairs, quoted, required, signed,
    stack_of, text, unsigned,
};
use crate::rows::{AnnotationRow, PastRow, Rows, Said, SegmentRow, SettingsRow, Sums, UNPLACED};
use crate::strings::known;
use crate::value::{Run, StrId, Table, Value};

/// Bytes of a segment of the small pool.
const SMALL_SEGMENT: u64 = 2 << 20;

/// What a dictionary is.
#[derive(Clone, Copy)]
enum Shape {
    Entry,
    Frame,
    Block,
    Past,
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
        const REAL_SIZE: u16 = 1 << 9;
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
            marks[known::REAL_SIZE.0 as usize] = REAL_SIZE;
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
        } else if has(REAL_SIZE) {
            Some(Self::Past)
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

impl Rows {
    /// The row of a dictionary with these keys and values, if its keys say what it is. It ends at
    /// `offset`.
    #[inline]
    pub(crate) fn dict(&mut self, items: &[Value], offset: u64) -> Option<Value> {
        let made = match Shape::of(items)? {
            Shape::Entry => match self.entry(items) {
                Ok(Ok(row)) => return Some(Value::Row(Table::Entries, row)),
                Ok(Err(action)) => return Some(Value::UnknownAction(action)),
                Err(fault) => Err(fault),
            },
            Shape::Frame => self.frame(items).map(Value::Frame),
            Shape::Block => self.block(items).map(|row| Value::Row(Table::Blocks, row)),
            Shape::Past => self.past(items).map(Value::Past),
            Shape::Segment => self.segment(items).map(|row| Value::Row(Table::Segments, row)),
            Shape::Settings => self.settings(items).map(Value::Settings),
            Shape::Divisions => self.divisions(items).map(Value::Divisions),
            Shape::Annotation => {
                self.annotation(items).map(|row| Value::Row(Table::Annotations, row))
            }
        };
        Some(made.unwrap_or_else(|fault| self.bad_dict(fault, offset)))
    }

    /// The row, or the action that is not known.
    #[inline]
    fn entry(&mut self, items: &[Value]) -> Checked<Result<u32, StrId>> {
        let (mut action, mut address, mut size, mut stream) = (None, None, None, None);
        let (mut device_free, mut time_us, mut stack) = (None, 0, None);
        let mut said = Said::NOTHING;
        for (key, value) in pairs(items) {
            match key {
                known::ACTION => action = Some(text(key, value)?),
                known::ADDR => address = Some(unsigned(key, value)?),
                known::DEVICE_FREE => device_free = Some(unsigned(key, value)?),
                known::SIZE => size = Some(unsigned(key, value)?),
                known::STREAM => stream = Some(unsigned(key, value)?),
                known::TIME_US => time_us = unsigned(key, value)?,
                known::FRAMES => stack = stack_of(key, value)?,
                known::USER_METADATA => {
                    self.keys.user_metadata = true;
                    // Something else than a text was never PyTorch's; it is of no use.
                    if let Value::Str(text) = value {
                        said.user = text;
                    }
                }
                known::INTERNAL_METADATA => {
                    if let Value::Str(text) = value {
                        said.internal = Some(text);
                    }
                }
                known::POOL_ID => {
                    self.keys.pool_id = true;
                    said.pool = self.pairs[pair_of(key, value)? as usize];
                }
                known::FORWARD_FRAMES => self.keys.forward_frames = true,
                known::COMPILE_CONTEXT => self.keys.compile_context = true,
                _ => {}
            }
        }
        let action = required(known::ACTION, action)?;
        let Some(&action) = Action::ALL.get(action.0 as usize) else {
            return Ok(Err(action));
        };
        // An entry has one of the two; should it have both, the action says which is meant.
        let address = match action {
            Action::Oom => device_free.or(address),
            _ => address.or(device_free),
        };
        let entry = TraceEntry {
            action,
            address: Address(required(known::ADDR, address)?),
            size: required(known::SIZE, size)?,
            stream: StreamId(required(known::STREAM, stream)?),
            time_us,
            stack,
        };
        Ok(Ok(self.push_entry(entry, said)))
    }

    fn frame(&mut self, items: &[Value]) -> Checked<u32> {
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
        Ok(self.stacks.call(Call { name, filename, line }))
    }

    /// A block. Until PyTorch 2.0 it had no address, and told what was requested, and where, in a
    /// list of the allocations that it ever served, the latest first.
    fn block(&mut self, items: &[Value]) -> Checked<u32> {
        let (mut address, mut size, mut requested, mut state) = (None, None, None, None);
        let (mut stack, mut past) = (None, None);
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
                known::HISTORY => {
                    past = match value {
                        Value::PastList(latest) => Some(self.pasts[latest as usize]),
                        Value::EmptyList | Value::None => None,
                        _ => return Err(fault(key, value, "a list of allocations")),
                    }
                }
                _ => {}
            }
        }
        let size = required(known::SIZE, size)?;
        let state = required(known::STATE, state)?;
        // Nobody knows what was requested, so it counts as all used.
        let whole = if state == BlockState::Inactive { 0 } else { size };
        self.blocks.push(SnapshotBlock {
            address: address.map_or(UNPLACED, Address),
            size,
            requested_size: requested.or(past.map(|past| past.requested)).unwrap_or(whole),
            state,
            stack: stack.or(past.and_then(|past| past.stack)),
        });
        Ok(self.blocks.len() as u32 - 1)
    }

    fn past(&mut self, items: &[Value]) -> Checked<u32> {
        let (mut requested, mut stack) = (None, None);
        for (key, value) in pairs(items) {
            match key {
                known::REAL_SIZE => requested = Some(unsigned(key, value)?),
                known::FRAMES => stack = stack_of(key, value)?,
                _ => {}
            }
        }
        self.pasts.push(PastRow { requested: required(known::REAL_SIZE, requested)?, stack });
        Ok(self.pasts.len() as u32 - 1)
    }

    fn segment(&mut self, items: &[Value]) -> Checked<u32> {
        let (mut device, mut address, mut total) = (DeviceId::default(), None, None);
        let mut on_host = false;
        let mut stream = StreamId::DEFAULT;
        let (mut allocated, mut active, mut requested) = (None, None, None);
        let (mut kind, mut blocks) = (None, None);
        let (mut pool, mut expandable, mut stack) = (PoolId::DEFAULT, false, None);
        for (key, value) in pairs(items) {
            match key {
                known::DEVICE if value == Value::Negative(-1) => on_host = true,
                known::DEVICE => device = device_of(key, value)?,
                known::ADDRESS => address = Some(unsigned(key, value)?),
                known::TOTAL_SIZE => total = Some(unsigned(key, value)?),
                known::ALLOCATED_SIZE => allocated = Some(unsigned(key, value)?),
                known::ACTIVE_SIZE => active = Some(unsigned(key, value)?),
                known::REQUESTED_SIZE => requested = Some(unsigned(key, value)?),
                known::STREAM => stream = StreamId(unsigned(key, value)?),
                known::SEGMENT_TYPE => {
                    kind = Some(match text(key, value)? {
                        known::SMALL => PoolKind::Small,
                        known::LARGE => PoolKind::Large,
                        _ => return Err(fault(key, value, "`small` or `large`")),
                    });
                }
                known::SEGMENT_POOL_ID => {
                    let (first, second) = self.pairs[pair_of(key, value)? as usize];
                    pool = PoolId(first, second);
                }
                known::IS_EXPANDABLE => expandable = boolean(key, value)?,
                known::FRAMES => stack = stack_of(key, value)?,
                known::BLOCKS => {
                    blocks = Some(match value {
                        Value::EmptyList => Run { table: Table::Blocks, first: 0, len: 0 },
                        Value::RowList(run) if run.table == Table::Blocks => run,
                        _ => return Err(fault(key, value, "a list of blocks")),
                    });
                }
                _ => {}
            }
        }
        let blocks = required(known::BLOCKS, blocks)?;
        let total = required(known::TOTAL_SIZE, total)?;
        let segment = SnapshotSegment {
            device,
            address: Address(required(known::ADDRESS, address)?),
            total_size: total,
            allocated_size: allocated.unwrap_or(0),
            active_size: active.unwrap_or(0),
            requested_size: requested.unwrap_or(0),
            stream,
            // Segments that PyTorch makes up from a profile have none.
            kind: kind.unwrap_or(if total > SMALL_SEGMENT {
                PoolKind::Large
            } else {
                PoolKind::Small
            }),
            pool,
            expandable,
            stack,
            blocks: Vec::new(),
        };
        let sums = Sums {
            allocated: allocated.is_none(),
            active: active.is_none(),
            requested: requested.is_none(),
        };
        self.segments.push(SegmentRow { segment, on_host, blocks, sums });
        Ok(self.segments.len() as u32 - 1)
    }

    fn annotation(&mut self, items: &[Value]) -> Checked<u32> {
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
        Ok(self.annotations.len() as u32 - 1)
    }

    fn settings(&mut self, items: &[Value]) -> Checked<u32> {
        let mut row = SettingsRow::default();
        for (key, value) in pairs(items) {
            if value == Value::None {
                continue;
            }
            match key {
                known::PYTORCH_CUDA_ALLOC_CONF | known::PYTORCH_ALLOC_CONF => {
                    row.conf = Some(text(key, value)?)
                }
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
                known::MAX_ROUND_THRESHOLD => row.max_round_threshold = Some(signed(key, value)?),
                known::MAX_CACHED_SIZE => row.max_cached_size = Some(signed(key, value)?),
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
        Ok(self.settings.len() as u32 - 1)
    }

    fn divisions(&mut self, items: &[Value]) -> Checked<u32> {
        let mut divisions = [0; 16];
        for (key, value) in pairs(items) {
            let power = key.0.wrapping_sub(known::SIZE_1.0) as usize;
            if let Some(slot) = divisions.get_mut(power) {
                *slot = unsigned(key, value)?;
            }
        }
        self.divisions.push(divisions);
        Ok(self.divisions.len() as u32 - 1)
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
}
