//! Stage 3, the short way: trace entries in one go.
//!
//! In:  the bytes after an EMPTY_DICT.
//! Out: the rows of the trace entries that they spell, if they do so as Python does.
//!
//! Nearly all of a snapshot is trace entries, each of some twenty-five opcodes (and eighty more
//! with its stack) that go onto the machine's stack only to be taken off again. This reads the usual
//! ones without the stack, in half the time. It decides nothing: whatever is unusual (a value of
//! another kind, a key that is missing, the end of the buffer) is left alone, the memo is as it was,
//! and the machine reads the same bytes its own way. A test reads every recording both ways.

use tonnage_events::{Action, Address, StackId, StreamId, TraceEntry};

use crate::call_stacks::Call;
use crate::memo::Memo;
use crate::opcode::plain;
use crate::rows::{Rows, Said};
use crate::spelled_stacks::Spelling;
use crate::strings::known;
use crate::value::{StrId, Table, Value};

/// Reads the entries at the beginning of `bytes`, pushes their rows, and returns how many bytes they
/// take: none for what is not one of the usual.
#[inline(never)]
pub(crate) fn read_entries(
    bytes: &[u8],
    memo: &mut Memo,
    rows: &mut Rows,
    stack: &mut Vec<Value>,
) -> usize {
    let mut taken = 0;
    while let Some((row, len)) = read_entry(&bytes[taken..], memo, rows) {
        stack.push(Value::Row(Table::Entries, row));
        taken += len;
        // The next one begins with an EMPTY_DICT of its own.
        if bytes.get(taken) != Some(&plain::EMPTY_DICT) {
            return taken;
        }
        taken += 1;
    }
    // That EMPTY_DICT is for the machine.
    taken.saturating_sub(1)
}

/// Reads the entry at the beginning of `bytes`: its row, and how many bytes it takes.
#[inline(always)]
fn read_entry(bytes: &[u8], memo: &mut Memo, rows: &mut Rows) -> Option<(u32, usize)> {
    // Python memoises it whether it is needed again or not; `write` does not.
    let (memoised, rest) = match bytes {
        [plain::MEMOIZE, plain::MARK, rest @ ..] => (true, rest),
        [plain::MARK, rest @ ..] => (false, rest),
        _ => return None,
    };
    let mut cursor = Cursor { rest, memo, rows };
    // Python keeps the order in which PyTorch sets the keys. Other dictionaries end here.
    if cursor.text_from_memo()? != known::ACTION {
        return None;
    }
    let place = cursor.memo.next_in_order()?;
    if memoised {
        cursor.memo.hold()?;
    }
    let Some((entry, said)) = cursor.entry() else {
        memo.truncate(place);
        return None;
    };
    let len = bytes.len() - cursor.rest.len();
    let row = rows.push_entry(entry, said);
    if memoised {
        memo.fill_with_entry(place, row);
    }
    Some((row, len))
}

/// What is left of the bytes, and what they refer to.
struct Cursor<'b, 'm> {
    rest: &'b [u8],
    memo: &'m mut Memo,
    rows: &'m mut Rows,
}

// All of this is inlined into one function, which was measured to be worth a quarter of the time.
impl Cursor<'_, '_> {
    /// The rest of an entry whose first key was the action.
    #[inline(always)]
    fn entry(&mut self) -> Option<(TraceEntry, Said)> {
        let action = self.text()?;
        let (mut address, mut size, mut stream) = (None, None, None);
        let (mut time_us, mut stack, mut said) = (0, None, Said::NOTHING);
        while !self.accept(plain::SETITEMS) {
            match self.text_from_memo()? {
                // Which of the two is meant, should both be there, is not decided here.
                known::ADDR | known::DEVICE_FREE if address.is_none() => {
                    address = Some(self.unsigned()?);
                }
                known::SIZE => size = Some(self.unsigned()?),
                known::STREAM => stream = Some(self.unsigned()?),
                known::TIME_US => time_us = self.unsigned()?,
                known::COMPILE_CONTEXT => {
                    self.rows.keys.compile_context = true;
                    self.text()?;
                }
                known::USER_METADATA => {
                    self.rows.keys.user_metadata = true;
                    said.user = self.text()?;
                }
                known::INTERNAL_METADATA => said.internal = Some(self.text()?),
                known::POOL_ID => {
                    self.rows.keys.pool_id = true;
                    said.pool = self.pair()?;
                }
                known::FRAMES => {
                    // A cursor of its own, so that the address of this one is nobody's concern
                    // and it stays in registers.
                    let mut inner = Cursor { rest: self.rest, memo: self.memo, rows: self.rows };
                    stack = inner.frames()?;
                    self.rest = inner.rest;
                }
                _ => return None,
            }
        }
        let entry = TraceEntry {
            action: *Action::ALL.get(action.0 as usize)?,
            address: Address(address?),
            size: size?,
            stream: StreamId(stream?),
            time_us,
            stack,
        };
        Some((entry, said))
    }

    /// A pair of integers, known or new. Python memoises each, though no other place names it.
    #[inline(always)]
    fn pair(&mut self) -> Option<(u64, u64)> {
        if let Some(place) = self.place() {
            return match self.memo.get(place)? {
                Value::Pair(number) => self.rows.pairs.get(number as usize).copied(),
                _ => None,
            };
        }
        let pair = (self.unsigned()?, self.unsigned()?);
        if !self.accept(plain::TUPLE2) {
            return None;
        }
        if self.accept(plain::MEMOIZE) {
            let value = self.rows.tuple(&[Value::Int(pair.0), Value::Int(pair.1)]);
            let place = self.memo.hold()?;
            self.memo.put(place, value);
        }
        Some(pair)
    }

    /// A list of frames, known or new.
    #[inline(never)]
    fn frames(&mut self) -> Option<Option<StackId>> {
        if !self.accept(plain::EMPTY_LIST) {
            let place = self.place()?;
            return match self.memo.get(place)? {
                Value::Stack(number) => Some(StackId::new(number)),
                Value::EmptyList => Some(None),
                _ => None,
            };
        }
        if !self.accept(plain::MEMOIZE) {
            return None;
        }
        let place = self.memo.hold()?;
        self.rows.scratch.clear();
        let mut spelling = None;
        if self.accept(plain::MARK) {
            spelling = Spelling::at_beginning_of(self.rest);
            if let Some(spelling) = spelling
                && let Some(number) = self.memo.spelled.get(spelling)
            {
                self.rest = &self.rest[spelling.bytes.len()..];
                self.memo.put(place, Value::Stack(number));
                return Some(StackId::new(number));
            }
            while !self.accept(plain::APPENDS) {
                let frame = self.frame()?;
                self.rows.scratch.push(frame);
            }
        } else {
            // One frame and APPEND; or the list is empty and the next key follows, which can look
            // the same up to there. (A frame without APPEND is found out where the key should be.)
            let before = self.rest;
            let frame = self.frame();
            if self.accept(plain::APPEND) {
                self.rows.scratch.push(frame?);
            } else {
                self.rest = before;
                self.memo.put(place, Value::EmptyList);
                return Some(None);
            }
        }
        let number = self.rows.stacks.stack(&self.rows.scratch);
        if let Some(spelling) = spelling {
            self.memo.spelled.put(spelling, number);
        }
        self.memo.put(place, Value::Stack(number));
        Some(StackId::new(number))
    }

    /// A frame, known or new.
    #[inline(always)]
    fn frame(&mut self) -> Option<u32> {
        let [plain::EMPTY_DICT, plain::MEMOIZE, plain::MARK, rest @ ..] = self.rest else {
            let place = self.place()?;
            return match self.memo.get(place)? {
                Value::Frame(number) => Some(number),
                _ => None,
            };
        };
        self.rest = rest;
        let place = self.memo.hold()?;
        let (mut name, mut filename, mut line) = (None, None, 0);
        while !self.accept(plain::SETITEMS) {
            match self.text_from_memo()? {
                known::NAME => name = Some(self.text()?),
                known::FILENAME => filename = Some(self.text()?),
                known::LINE => line = u32::try_from(self.unsigned()?).ok()?,
                _ => return None,
            }
        }
        let call = Call { name: name?, filename: filename?, line };
        let number = self.rows.stacks.call(call);
        self.memo.put(place, Value::Frame(number));
        Some(number)
    }

    /// Takes `opcode` if it comes next.
    #[inline(always)]
    fn accept(&mut self, opcode: u8) -> bool {
        match self.rest {
            [next, rest @ ..] if *next == opcode => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// The place that BINGET or LONG_BINGET names.
    #[inline(always)]
    fn place(&mut self) -> Option<u32> {
        match *self.rest {
            [plain::BINGET, place, ref rest @ ..] => {
                self.rest = rest;
                Some(u32::from(place))
            }
            [plain::LONG_BINGET, a, b, c, d, ref rest @ ..] => {
                self.rest = rest;
                Some(u32::from_le_bytes([a, b, c, d]))
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn text_from_memo(&mut self) -> Option<StrId> {
        let place = self.place()?;
        self.memo.get_text(place)
    }

    /// A text, from the memo or spelled out and then memoised.
    #[inline(always)]
    fn text(&mut self) -> Option<StrId> {
        let &[plain::SHORT_BINUNICODE, len, ref rest @ ..] = self.rest else {
            return self.text_from_memo();
        };
        let (text, rest) = rest.split_at_checked(usize::from(len))?;
        let (&plain::MEMOIZE, rest) = rest.split_first()? else { return None };
        let id = self.rows.strings.intern(text);
        self.memo.add_text(id);
        self.rest = rest;
        Some(id)
    }

    /// An integer that is not negative.
    #[inline(always)]
    fn unsigned(&mut self) -> Option<u64> {
        let (number, len) = match *self.rest {
            [plain::BININT1, number, ..] => (u64::from(number), 2),
            [plain::BININT2, a, b, ..] => (u64::from(u16::from_le_bytes([a, b])), 3),
            [plain::BININT, a, b, c, d, ..] => {
                (u64::try_from(i32::from_le_bytes([a, b, c, d])).ok()?, 5)
            }
            // The sign is in the last byte. More follows any number, so eight can be looked at.
            [plain::LONG1, len @ 1..=8, ref digits @ ..] => {
                let unused = 64 - 8 * u32::from(len);
                let wide = u64::from_le_bytes(*digits.first_chunk()?) << unused;
                (u64::try_from(wide as i64 >> unused).ok()?, 2 + usize::from(len))
            }
            _ => return None,
        };
        self.rest = &self.rest[len..];
        Some(number)
    }
}
