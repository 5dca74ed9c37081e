//! Stage 3: the stack machine that a pickle is a program for.
//!
//! In:  the bytes of a [`Source`].
//! Out: the one value that the program leaves, and the [`Rows`] made on the way.
//!
//! The machine follows Python's, opcode for opcode, with two differences. It has no opcode that
//! could import or call anything. And a container that was taken into another one is complete: its
//! parts turn into a row, and a pickle that changes it afterwards is refused. Python writes such
//! pickles only for things that contain themselves, which snapshots do not.
//!
//! Nothing here is recursive, so the nesting of a file cannot exhaust the call stack.

mod containers;

mod scalars;

use containers::{NOWHERE, Slot, SlotState};
use scalars::integer;

use crate::entries::Entries;
use crate::error::{Result, SnapshotError};
use crate::input::{Source, not_a_pickle};
use crate::limits::Limits;
use crate::memo::{Memo, NUMBERS};
use crate::opcode::{plain, refuse};
use crate::rows::{Rows, taken};
use crate::value::{Kind, Value};

/// Room that numbers are kept below [`NUMBERS`]: far more than one buffer of input can make.
const SPARE_NUMBERS: usize = 1 << 20;

/// The machine.
pub(crate) struct Machine<'a> {
    source: Source<'a>,
    limits: Limits,
    stack: Vec<Value>,
    /// Where on the stack each open MARK is.
    marks: Vec<usize>,
    memo: Memo,
    slots: Vec<Slot>,
    /// Slots that nothing refers to.
    vacant: Vec<u32>,
    /// Elements of all slots together.
    held: usize,
    rows: Rows,
    /// Where the opcode stands that is being followed.
    at: u64,
    /// Whether trace entries may be read the short way; only tests ask for the long one.
    short_way: bool,
}

/// What a program leaves.
pub(crate) struct Outcome {
    pub(crate) root: Root,
    pub(crate) rows: Rows,
    /// Where the program ends.
    pub(crate) offset: u64,
    /// Bytes after that.
    pub(crate) trailing: u64,
}

/// The value at the top of a file.
pub(crate) enum Root {
    /// A dictionary of no known kind, keys and values in turn.
    Dict(Vec<Value>),
    Other(Value),
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        source: Source<'a>,
        limits: Limits,
        short_way: bool,
        entries: Entries,
    ) -> Self {
        Self {
            source,
            limits,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            held: 0,
            rows: Rows::new(entries),
            at: 0,
            short_way,
        }
    }

    /// Follows the program to its end. What comes after it in the file is counted, not looked at.
    pub(crate) fn run(mut self) -> Result<Outcome> {
        if let Some(error) = not_a_pickle(self.source.first()?) {
            return Err(error);
        }
        match self.follow() {
            Ok(()) => self.stop(),
            // Whatever else is wrong with it, the opcode is not all there.
            Err(_) if self.source.is_past_end() => Err(self.source.truncated()),
            Err(error) => Err(error),
        }
    }

    /// Follows the program up to STOP.
    fn follow(&mut self) -> Result<()> {
        loop {
            if !self.source.has_next() {
                self.source.fill()?;
                self.memo.pack_chunks();
                self.take_stock()?;
            }
            self.at = self.source.offset();
            let (opcode, ahead) = self.source.next()?;
            match opcode {
                plain::BINGET => {
                    let place = ahead.byte(&mut self.source);
                    self.get(u32::from(place))?;
                }
                plain::LONG_BINGET => {
                    let place = ahead.int(&mut self.source);
                    self.get(place)?;
                }
                plain::MEMOIZE => {
                    let place = self.memo.next();
                    self.put(place)?;
                }
                plain::BINPUT => {
                    let place = ahead.byte(&mut self.source);
                    self.put(u32::from(place))?;
                }
                plain::LONG_BINPUT => {
                    let place = ahead.int(&mut self.source);
                    self.put(place)?;
                }

                plain::BININT1 => {
                    let number = ahead.byte(&mut self.source);
                    self.push(Value::Int(u64::from(number)));
                }
                plain::BININT2 => {
                    let number = ahead.short(&mut self.source);
                    self.push(Value::Int(u64::from(number)));
                }
                plain::BININT => {
                    let number = ahead.int(&mut self.source) as i32;
                    self.push(integer(i64::from(number)));
                }
                plain::LONG1 => {
                    let len = ahead.byte(&mut self.source);
                    self.long1(len, ahead.behind_byte())?;
                }
                plain::LONG4 => {
                    let len = ahead.int(&mut self.source) as i32;
                    self.long4(len)?;
                }
                plain::INT => self.int_line()?,
                plain::BINFLOAT => {
                    // The only argument that is big endian.
                    let bits = ahead.long(&mut self.source).swap_bytes();
                    self.push(Value::Float(f64::from_bits(bits)));
                }
                plain::NONE => self.push(Value::None),
                plain::NEWTRUE => self.push(Value::Bool(true)),
                plain::NEWFALSE => self.push(Value::Bool(false)),

                plain::SHORT_BINUNICODE => {
                    let len = ahead.byte(&mut self.source);
                    let text = self.source.take(usize::from(len))?;
                    let id = self.rows.strings.intern(text);
                    self.push(Value::Str(id));
                }
                plain::BINUNICODE => {
                    let len = ahead.int(&mut self.source);
                    self.text(u64::from(len))?;
                }
                plain::BINUNICODE8 => {
                    let len = ahead.long(&mut self.source);
                    self.text(len)?;
                }
                plain::SHORT_BINBYTES => {
                    let len = ahead.byte(&mut self.source);
                    self.bytes(u64::from(len))?;
                }
                plain::BINBYTES => {
                    let len = ahead.int(&mut self.source);
                    self.bytes(u64::from(len))?;
                }
                plain::BINBYTES8 | plain::BYTEARRAY8 => {
                    let len = ahead.long(&mut self.source);
                    self.bytes(len)?;
                }

                plain::MARK => self.mark()?,
                plain::POP => self.pop_or_unmark()?,
                plain::POP_MARK => {
                    let mark = self.unmark()?;
                    self.stack.truncate(mark);
                }

                plain::EMPTY_DICT => {
                    if !(self.short_way && self.short_entries()) {
                        self.open(SlotState::Dict);
                    }
                }
                plain::SETITEM => {
                    let from = self.below(2)?;
                    self.set_items(from, false)?;
                }
                plain::SETITEMS => {
                    let mark = self.unmark()?;
                    self.set_items(mark, true)?;
                }
                plain::DICT => {
                    let mark = self.unmark()?;
                    self.open_under(mark, SlotState::Dict);
                    self.set_items(mark + 1, true)?;
                }
                plain::EMPTY_LIST => self.open(SlotState::List),
                plain::APPEND => {
                    let from = self.below(1)?;
                    self.append(from)?;
                }
                plain::APPENDS => {
                    let mark = self.unmark()?;
                    self.append(mark)?;
                }
                plain::LIST => {
                    let mark = self.unmark()?;
                    self.open_under(mark, SlotState::List);
                    self.append(mark + 1)?;
                }

                plain::EMPTY_TUPLE => self.push(Value::Opaque(Kind::Tuple)),
                plain::TUPLE1 | plain::TUPLE2 | plain::TUPLE3 => {
                    let from = self.below(usize::from(opcode - plain::TUPLE1) + 1)?;
                    self.tuple(from);
                }
                plain::TUPLE => {
                    let mark = self.unmark()?;
                    self.tuple(mark);
                }
                plain::EMPTY_SET => self.push(Value::Opaque(Kind::Set)),
                plain::ADDITEMS => self.add_items()?,
                plain::FROZENSET => {
                    let mark = self.unmark()?;
                    self.stack.truncate(mark);
                    self.push(Value::Opaque(Kind::Set));
                }

                // Tells Python's reader how much to read ahead. Ours reads as it likes.
                plain::FRAME => drop(ahead.long(&mut self.source)),
                plain::PROTO => {
                    let version = ahead.byte(&mut self.source);
                    self.protocol(version)?;
                }
                plain::STOP => return Ok(()),
                other => return Err(refuse(other, self.at)),
            }
        }
    }

    fn protocol(&self, version: u8) -> Result<()> {
        match version {
            2..=5 => Ok(()),
            other => Err(self.malformed(format!(
                "protocol {other} is not one of 2 to 5; write it again with \
                 pickle.dump(..., protocol=4)"
            ))),
        }
    }

    /// Compares what is held with the limits. Called once per buffer, since a buffer can only add
    /// so much.
    #[cold]
    fn take_stock(&self) -> Result<()> {
        // Elements of containers: three times, since each grows on its own and to the double, beside what it had.
        let machine = taken(&self.stack)
            + taken(&self.slots)
            + taken(&self.vacant)
            + 3 * self.held * size_of::<Value>()
            + taken(&self.marks);
        if machine as u64 + self.memo.memory() + self.rows.memory() > self.limits.memory {
            return Err(over_memory(&self.limits, self.source.offset()));
        }
        let numbers = self.rows.highest_number().max(self.slots.len()).max(self.memo.boxed());
        if numbers > NUMBERS as usize - SPARE_NUMBERS || self.memo.is_nearly_full() {
            return Err(SnapshotError::Malformed {
                offset: self.source.offset(),
                what: format!("more than {numbers} things of one kind; no snapshot has as many"),
            });
        }
        Ok(())
    }

    #[cold]
    fn malformed(&self, what: impl Into<String>) -> SnapshotError {
        SnapshotError::Malformed { offset: self.at, what: what.into() }
    }
}

/// The stack, its marks and the memo.
impl Machine<'_> {
    /// STOP: the value on top is the result.
    fn stop(mut self) -> Result<Outcome> {
        let top = self.below(1)?;
        let root = match self.stack[top] {
            Value::Open(number) => {
                let slot = &mut self.slots[number as usize];
                match slot.state {
                    SlotState::Dict => Root::Dict(std::mem::take(&mut slot.items)),
                    _ => Root::Other(self.close(number)),
                }
            }
            other => Root::Other(other),
        };
        let offset = self.source.offset();
        let trailing = self.source.drain()?;
        Ok(Outcome { root, rows: self.rows, offset, trailing })
    }

    #[inline]
    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    /// What the opcodes in reach may not touch: all below the latest mark.
    #[inline]
    fn fence(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// Where the topmost `count` values begin.
    #[inline]
    fn below(&self, count: usize) -> Result<usize> {
        match self.stack.len().checked_sub(count) {
            Some(from) if from >= self.fence() => Ok(from),
            _ => Err(self.malformed("the stack holds too few values for this opcode")),
        }
    }

    #[inline]
    fn mark(&mut self) -> Result<()> {
        if self.marks.len() >= self.limits.depth {
            return Err(self.too_deep());
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    #[cold]
    fn too_deep(&self) -> SnapshotError {
        SnapshotError::Limit {
            limit: "depth",
            allowed: self.limits.depth as u64,
            unit: "containers inside one another",
            offset: self.at,
        }
    }

    #[inline]
    fn unmark(&mut self) -> Result<usize> {
        match self.marks.pop() {
            Some(mark) => Ok(mark),
            None => Err(self.malformed("no MARK to go back to")),
        }
    }

    fn pop_or_unmark(&mut self) -> Result<()> {
        if self.stack.len() > self.fence() {
            self.stack.pop();
            return Ok(());
        }
        self.unmark().map(drop)
    }

    /// The value under `from`, which the values from there on go into.
    #[inline]
    fn target(&self, from: usize) -> Result<Value> {
        match from.checked_sub(1) {
            Some(at) if at >= self.fence() => Ok(self.stack[at]),
            _ => Err(self.malformed("there is no container to put the values into")),
        }
    }

    #[inline]
    fn get(&mut self, place: u32) -> Result<()> {
        // A key or a word, nearly always.
        if let Some(text) = self.memo.get_text(place) {
            self.push(Value::Str(text));
            return Ok(());
        }
        self.get_any(place)
    }

    #[inline(never)]
    fn get_any(&mut self, place: u32) -> Result<()> {
        let Some(value) = self.memo.get(place) else {
            return Err(self.malformed(format!("nothing was memoised as {place}")));
        };
        if let Value::Open(slot) = value {
            self.slots[slot as usize].shared = true;
        }
        self.push(value);
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, place: u32) -> Result<()> {
        let top = self.below(1)?;
        let value = self.stack[top];
        if let Value::Open(slot) = value {
            let slot = &mut self.slots[slot as usize];
            // The last place cannot be told from none, so a container there counts as shared.
            slot.shared |= slot.memo != NOWHERE || place == NOWHERE;
            slot.memo = place;
        }
        self.memo.put(place, value);
        Ok(())
    }
}

/// The error for holding more than allowed.
pub(crate) fn over_memory(limits: &Limits, offset: u64) -> SnapshotError {
    SnapshotError::Limit {
        limit: "memory",
        allowed: limits.memory,
        unit: "bytes of memory",
        offset,
    }
}
