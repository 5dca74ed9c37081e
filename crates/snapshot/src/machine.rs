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

use crate::error::{Result, SnapshotError};
use crate::input::{Source, not_a_pickle};
use crate::limits::Limits;
use crate::memo::{Memo, NUMBERS};
use crate::opcode::{plain, refuse};
use crate::rows::Rows;
use crate::value::{Kind, Run, Table, Value};

/// Bytes of the longest opcode whose arguments have a fixed length: FRAME and its eight.
const LONGEST: usize = 9;

/// Pairs that Python writes in one SETITEMS: a dictionary with as many may have more to come.
const BATCH: usize = 1000;

/// Room that numbers are kept below [`NUMBERS`]: far more than one buffer of input can make.
const SPARE_NUMBERS: usize = 1 << 20;

/// No place in the memo.
const NOWHERE: u32 = u32::MAX;

/// A container that may still change, or what became of one that several places refer to.
struct Slot {
    state: SlotState,
    /// The elements; for a dictionary, keys and values in turn.
    items: Vec<Value>,
    /// The place in the memo that refers to it, or [`NOWHERE`].
    memo: u32,
    /// Whether more than that and one place on the stack may refer to it.
    shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SlotState {
    List,
    Dict,
    /// Complete; the value stands for it.
    Closed(Value),
}

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
}

/// What a program leaves.
pub(crate) struct Outcome {
    pub(crate) root: Root,
    pub(crate) rows: Rows,
    /// Where the program ends.
    pub(crate) offset: u64,
}

/// The value at the top of a file.
pub(crate) enum Root {
    /// A dictionary of no known kind, keys and values in turn.
    Dict(Vec<Value>),
    Other(Value),
}

impl<'a> Machine<'a> {
    pub(crate) fn new(source: Source<'a>, limits: Limits) -> Self {
        Self {
            source,
            limits,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            held: 0,
            rows: Rows::new(),
            at: 0,
        }
    }

    /// Follows the program to its end. What comes after it in the file is not looked at.
    pub(crate) fn run(mut self) -> Result<Outcome> {
        self.begin()?;
        loop {
            if !self.source.has(LONGEST) {
                self.source.fill(LONGEST)?;
                self.take_stock()?;
            }
            self.at = self.source.offset();
            match self.source.byte()? {
                plain::BINGET => {
                    let place = self.source.byte()?;
                    self.get(u32::from(place))?;
                }
                plain::LONG_BINGET => {
                    let place = u32::from_le_bytes(self.source.array()?);
                    self.get(place)?;
                }
                plain::MEMOIZE => self.put(self.memo.next())?,
                plain::BINPUT => {
                    let place = self.source.byte()?;
                    self.put(usize::from(place))?;
                }
                plain::LONG_BINPUT => {
                    let place = u32::from_le_bytes(self.source.array()?);
                    self.put(place as usize)?;
                }

                plain::BININT1 => {
                    let byte = self.source.byte()?;
                    self.push(Value::Int(u64::from(byte)));
                }
                plain::BININT2 => {
                    let number = u16::from_le_bytes(self.source.array()?);
                    self.push(Value::Int(u64::from(number)));
                }
                plain::BININT => {
                    let number = i32::from_le_bytes(self.source.array()?);
                    self.push(integer(i64::from(number)));
                }
                plain::LONG1 => {
                    let len = self.source.byte()?;
                    let number = long(self.source.take(usize::from(len))?);
                    self.push(number);
                }
                plain::LONG4 => self.long4()?,
                plain::INT => self.int_line()?,
                plain::BINFLOAT => {
                    let number = f64::from_be_bytes(self.source.array()?);
                    self.push(Value::Float(number));
                }
                plain::NONE => self.push(Value::None),
                plain::NEWTRUE => self.push(Value::Bool(true)),
                plain::NEWFALSE => self.push(Value::Bool(false)),

                plain::SHORT_BINUNICODE => {
                    let len = self.source.byte()?;
                    let text = self.source.take(usize::from(len))?;
                    let id = self.rows.strings.intern(text);
                    self.push(Value::Str(id));
                }
                plain::BINUNICODE => {
                    let len = u32::from_le_bytes(self.source.array()?);
                    self.text(u64::from(len))?;
                }
                plain::BINUNICODE8 => {
                    let len = u64::from_le_bytes(self.source.array()?);
                    self.text(len)?;
                }
                plain::SHORT_BINBYTES => {
                    let len = self.source.byte()?;
                    self.bytes(u64::from(len))?;
                }
                plain::BINBYTES => {
                    let len = u32::from_le_bytes(self.source.array()?);
                    self.bytes(u64::from(len))?;
                }
                plain::BINBYTES8 | plain::BYTEARRAY8 => {
                    let len = u64::from_le_bytes(self.source.array()?);
                    self.bytes(len)?;
                }

                plain::MARK => self.mark()?,
                plain::POP => self.pop_or_unmark()?,
                plain::POP_MARK => {
                    let mark = self.unmark()?;
                    self.stack.truncate(mark);
                }

                plain::EMPTY_DICT => self.open(SlotState::Dict),
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
                plain::TUPLE1 => {
                    let from = self.below(1)?;
                    self.tuple(from);
                }
                plain::TUPLE2 => {
                    let from = self.below(2)?;
                    self.tuple(from);
                }
                plain::TUPLE3 => {
                    let from = self.below(3)?;
                    self.tuple(from);
                }
                plain::TUPLE => {
                    let mark = self.unmark()?;
                    self.tuple(mark);
                }
                plain::EMPTY_SET => self.push(Value::Opaque(Kind::Set)),
                plain::ADDITEMS => {
                    let mark = self.unmark()?;
                    let target = self.target(mark)?;
                    if target != Value::Opaque(Kind::Set) {
                        return Err(self.wrong_target("ADDITEMS", "a set", target));
                    }
                    self.stack.truncate(mark);
                }
                plain::FROZENSET => {
                    let mark = self.unmark()?;
                    self.stack.truncate(mark);
                    self.push(Value::Opaque(Kind::Set));
                }

                // Frames tell Python's reader how much to read ahead. Ours reads as it likes.
                plain::FRAME => drop(self.source.array::<8>()?),
                plain::PROTO => self.protocol()?,
                plain::STOP => return self.stop(),
                other => return Err(refuse(other, self.at)),
            }
        }
    }

    /// Checks that this is a pickle at all.
    fn begin(&mut self) -> Result<()> {
        // As many bytes as tell one kind of file from another.
        self.source.fill(64)?;
        let first = self.source.peek();
        match not_a_pickle(&first[..first.len().min(64)]) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn protocol(&mut self) -> Result<()> {
        match self.source.byte()? {
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
        let machine = self.stack.len() * size_of::<Value>()
            + self.slots.len() * (size_of::<Slot>() + size_of::<u32>())
            + self.held * size_of::<Value>()
            + self.marks.len() * size_of::<usize>();
        if machine as u64 + self.memo.memory() + self.rows.memory() > self.limits.memory {
            return Err(over_memory(&self.limits, self.source.offset()));
        }
        let numbers = self.rows.highest_number().max(self.slots.len()).max(self.memo.boxed());
        if numbers > NUMBERS as usize - SPARE_NUMBERS {
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

    #[cold]
    fn wrong_target(&self, opcode: &str, wanted: &str, found: Value) -> SnapshotError {
        let found = match found {
            Value::Open(slot) => match self.slots[slot as usize].state {
                SlotState::List => "a list".to_owned(),
                SlotState::Dict => "a dictionary".to_owned(),
                SlotState::Closed(_) => "one that already is part of another".to_owned(),
            },
            other => other.describe(),
        };
        self.malformed(format!("{opcode} needs {wanted}, found {found}"))
    }
}

/// The stack and its marks.
impl Machine<'_> {
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
        let Some(value) = self.memo.get(place) else {
            return Err(self.malformed(format!("nothing was memoised as {place}")));
        };
        if let Value::Open(slot) = value {
            self.slots[slot as usize].shared = true;
        }
        self.push(value);
        Ok(())
    }

    #[inline]
    fn put(&mut self, place: usize) -> Result<()> {
        let top = self.below(1)?;
        let value = self.stack[top];
        let Ok(place) = u32::try_from(place) else {
            return Err(self.malformed("more than 2^32 places in the memo"));
        };
        if let Value::Open(slot) = value {
            let slot = &mut self.slots[slot as usize];
            slot.shared |= slot.memo != NOWHERE;
            slot.memo = place;
        }
        self.memo.put(place, value);
        Ok(())
    }
}

/// Numbers and texts.
impl Machine<'_> {
    fn long4(&mut self) -> Result<()> {
        let len = i32::from_le_bytes(self.source.array()?);
        let Ok(len) = u64::try_from(len) else {
            return Err(self.malformed("LONG4 of negative length"));
        };
        if len <= u64::from(u8::MAX) {
            let number = long(self.source.take(len as usize)?);
            self.push(number);
            return Ok(());
        }
        self.source.take_pieces(len, |_| Ok(()))?;
        self.push(Value::HugeInt);
        Ok(())
    }

    /// INT: an integer, or a bool, as a line of text.
    fn int_line(&mut self) -> Result<()> {
        // Twenty digits and a sign are the most that 64 bits need.
        let mut line = Vec::new();
        loop {
            match self.source.byte()? {
                b'\n' => break,
                byte if line.len() < 24 => line.push(byte),
                _ => return Err(self.malformed("INT with more digits than 64 bits need")),
            }
        }
        let value = match line.as_slice() {
            b"00" => Value::Bool(false),
            b"01" => Value::Bool(true),
            digits => {
                let number = std::str::from_utf8(digits).ok().and_then(|text| {
                    let signed = || text.parse().ok().map(integer);
                    text.parse().ok().map(Value::Int).or_else(signed)
                });
                number.ok_or_else(|| self.malformed("INT without a number of 64 bits"))?
            }
        };
        self.push(value);
        Ok(())
    }

    fn text(&mut self, len: u64) -> Result<()> {
        let id = if Source::fits(len) {
            self.rows.strings.intern(self.source.take(len as usize)?)
        } else {
            let (limits, offset) = (self.limits, self.at);
            let mut text = Vec::new();
            self.source.take_pieces(len, |piece| {
                if text.len() as u64 > limits.memory {
                    return Err(over_memory(&limits, offset));
                }
                text.extend_from_slice(piece);
                Ok(())
            })?;
            self.rows.strings.intern(&text)
        };
        self.push(Value::Str(id));
        Ok(())
    }

    fn bytes(&mut self, len: u64) -> Result<()> {
        self.source.take_pieces(len, |_| Ok(()))?;
        self.push(Value::Opaque(Kind::Bytes));
        Ok(())
    }
}

/// Containers.
impl Machine<'_> {
    #[inline]
    fn new_slot(&mut self, state: SlotState) -> Value {
        if let Some(number) = self.vacant.pop() {
            let slot = &mut self.slots[number as usize];
            slot.state = state;
            slot.memo = NOWHERE;
            return Value::Open(number);
        }
        self.slots.push(Slot { state, items: Vec::new(), memo: NOWHERE, shared: false });
        Value::Open(self.slots.len() as u32 - 1)
    }

    #[inline]
    fn open(&mut self, state: SlotState) {
        let value = self.new_slot(state);
        self.push(value);
    }

    /// Puts an empty container under the values from `mark` on.
    fn open_under(&mut self, mark: usize, state: SlotState) {
        let value = self.new_slot(state);
        self.stack.insert(mark, value);
    }

    /// What `value` stands for once something takes it in: a container is complete from then on.
    #[inline]
    fn complete(&mut self, value: Value) -> Value {
        match value {
            Value::Open(slot) => self.close(slot),
            other => other,
        }
    }

    #[inline(never)]
    fn close(&mut self, number: u32) -> Value {
        let slot = &mut self.slots[number as usize];
        let items = std::mem::take(&mut slot.items);
        let value = match slot.state {
            SlotState::Closed(value) => return value,
            SlotState::List => self.rows.list(&items),
            SlotState::Dict => self.rows.dict(&items, self.at).unwrap_or(Value::Opaque(Kind::Dict)),
        };
        self.closed(number, items, value);
        value
    }

    /// Notes that a slot became `value`. It is vacant from then on, unless someone may ask again.
    #[inline]
    fn closed(&mut self, number: u32, mut items: Vec<Value>, value: Value) {
        self.held -= items.len();
        let slot = &mut self.slots[number as usize];
        if slot.shared {
            slot.state = SlotState::Closed(value);
            return;
        }
        if slot.memo != NOWHERE {
            self.memo.replace(slot.memo, Value::Open(number), value);
        }
        // Room for a stack is kept for the next one, but not so much that it adds up unseen.
        if items.capacity() <= 64 && self.vacant.len() < 256 {
            items.clear();
            slot.items = items;
        }
        self.vacant.push(number);
    }

    /// Puts the pairs from `from` on into the dictionary below them. If `whole`, they may be all
    /// that it gets.
    #[inline]
    fn set_items(&mut self, from: usize, whole: bool) -> Result<()> {
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(self.malformed("a key without a value"));
        }
        for at in (from + 1..self.stack.len()).step_by(2) {
            if let Value::Open(slot) = self.stack[at] {
                self.stack[at] = self.close(slot);
            }
        }
        let target = self.target(from)?;
        let Value::Open(number) = target else {
            return Err(self.wrong_target(
                "SETITEMS",
                "a dictionary that is not yet in use",
                target,
            ));
        };
        let slot = &mut self.slots[number as usize];
        if slot.state != SlotState::Dict {
            return Err(self.wrong_target(
                "SETITEMS",
                "a dictionary that is not yet in use",
                target,
            ));
        }
        let items = &self.stack[from..];
        if whole
            && slot.items.is_empty()
            && items.len() < 2 * BATCH
            && let Some(value) = self.rows.dict(items, self.at)
        {
            let items = std::mem::take(&mut slot.items);
            self.closed(number, items, value);
            self.stack.truncate(from);
            self.stack[from - 1] = value;
            return Ok(());
        }
        slot.items.extend_from_slice(items);
        self.held += items.len();
        self.stack.truncate(from);
        Ok(())
    }

    /// Puts the values from `from` on at the end of the list below them.
    #[inline]
    fn append(&mut self, from: usize) -> Result<()> {
        for at in from..self.stack.len() {
            self.stack[at] = self.complete(self.stack[at]);
        }
        let target = self.target(from)?;
        let Value::Open(number) = target else {
            return Err(self.wrong_target("APPENDS", "a list that is not yet in use", target));
        };
        let slot = &mut self.slots[number as usize];
        if slot.state != SlotState::List {
            return Err(self.wrong_target("APPENDS", "a list that is not yet in use", target));
        }
        let before = slot.items.len();
        for &value in &self.stack[from..] {
            let Value::Row(table, row) = value else {
                slot.items.push(value);
                continue;
            };
            match slot.items.last_mut() {
                Some(Value::Rows(run))
                    if run.table == table
                        && u64::from(run.first) + u64::from(run.len) == u64::from(row) =>
                {
                    run.len += 1;
                }
                _ => {
                    if table == Table::Entries {
                        self.rows.entries.begin_list(row);
                    }
                    slot.items.push(Value::Rows(Run { table, first: row, len: 1 }));
                }
            }
        }
        self.held += slot.items.len() - before;
        self.stack.truncate(from);
        Ok(())
    }

    fn tuple(&mut self, from: usize) {
        for at in from..self.stack.len() {
            self.stack[at] = self.complete(self.stack[at]);
        }
        let value = self.rows.tuple(&self.stack[from..]);
        self.stack.truncate(from);
        self.push(value);
    }

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
        Ok(Outcome { root, rows: self.rows, offset: self.source.offset() })
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

#[inline]
fn integer(number: i64) -> Value {
    match u64::try_from(number) {
        Ok(number) => Value::Int(number),
        Err(_) => Value::Negative(number),
    }
}

/// The integer that LONG1 and LONG4 spell: little endian, two's complement.
#[inline]
fn long(bytes: &[u8]) -> Value {
    match *bytes {
        [] => Value::Int(0),
        // An address or a time.
        [ref low @ .., top] if low.len() < 8 => {
            let fill = if top >= 0x80 { 0xff } else { 0 };
            let mut whole = [fill; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            integer(i64::from_le_bytes(whole))
        }
        // From 2⁶³ on, a ninth byte holds the sign.
        [ref low @ .., 0] if low.len() == 8 => {
            let mut whole = [0; 8];
            whole.copy_from_slice(low);
            Value::Int(u64::from_le_bytes(whole))
        }
        _ => Value::HugeInt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_integers_are_read_up_to_64_bits_and_never_wrap() {
        for (bytes, value) in [
            (&[][..], Value::Int(0)),
            (&[0x80, 0x00], Value::Int(128)),
            (&[0x80], Value::Negative(-128)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], Value::Int(i64::MAX as u64)),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80], Value::Negative(i64::MIN)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00], Value::Int(u64::MAX)),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 1], Value::HugeInt),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0xff], Value::HugeInt),
        ] {
            assert_eq!(long(bytes), value, "{bytes:x?}");
        }
    }
}
