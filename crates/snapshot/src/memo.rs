//! Stage 3: the machine's memo, where a pickle keeps what it will name again.
//!
//! In:  values, under the numbers the pickle gives them.
//! Out: the same values.
//!
//! Python memoises every dictionary, list and text, needed again or not: two of them for each
//! trace entry. So a place costs four bytes: a kind, and the number that the value already has in
//! the table it lives in. The few values that have no such number get one in `boxed`. And places
//! that have not been asked for in a while go into chunks, in which a trace entry costs a bit
//! (`memo_chunk.rs`): of a million entries, the memo would otherwise be a sixth of all memory.

use std::collections::HashMap;

use crate::memo_chunk::{CHUNK, MemoChunk};
use crate::rows::{taken, taken_by_map};
use crate::spelled_stacks::SpelledStacks;
use crate::value::{StrId, Table, Value};

/// A value in four bytes: the kind in the upper four bits, a number in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed(u32);

impl Packed {
    #[inline]
    fn new(kind: u32, number: u32) -> Self {
        Self(kind << NUMBER_BITS | number & (NUMBERS - 1))
    }

    /// A trace entry.
    #[inline]
    pub(crate) fn entry(row: u32) -> Self {
        Self::new(ENTRY, row)
    }

    /// Whether it is a frame.
    #[inline]
    fn is_frame(self) -> bool {
        self.0 >> NUMBER_BITS == FRAME
    }

    /// The row of a trace entry; `None` for anything else.
    #[inline]
    pub(crate) fn as_entry(self) -> Option<u32> {
        (self.0 >> NUMBER_BITS == ENTRY).then_some(self.0 & (NUMBERS - 1))
    }
}

/// Numbers below this can be packed.
pub(crate) const NUMBERS: u32 = 1 << NUMBER_BITS;
const NUMBER_BITS: u32 = 28;

const BOXED: u32 = 0;
const STR: u32 = 1;
const OPEN: u32 = 2;
const ENTRY: u32 = 3;
const FRAME: u32 = 4;
const STACK: u32 = 5;
const SEGMENT: u32 = 6;
const BLOCK: u32 = 7;
const PAIR: u32 = 8;

/// The first places stay out of chunks: keys are among them, and are asked for with every entry.
/// Chosen: the keys of a snapshot with ten thousand blocks are.
const FRONT: usize = 1 << 15;

/// The memo.
///
/// The places from 0 on, as Python numbers them, are in three parts. The first [`FRONT`] are the
/// beginning of `dense`; then come those in `chunks`; then the latest, which are the rest of `dense`.
#[derive(Default)]
pub(crate) struct Memo {
    dense: Vec<Packed>,
    chunks: Vec<MemoChunk>,
    /// Places in chunks.
    in_chunks: usize,
    /// Bytes of the chunks: counted along, since they are asked for with every buffer of input.
    chunk_bytes: usize,
    /// Places beyond, for pickles that number them otherwise.
    sparse: HashMap<u32, Packed>,
    boxed: Vec<Value>,
    /// Lists of frames, by the places that they name.
    pub(crate) spelled: SpelledStacks,
}

/// Where a place is kept.
enum Spot {
    Dense(usize),
    Chunk { chunk: usize, at: usize },
}

impl Memo {
    /// The place that the next MEMOIZE fills.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        (self.dense.len() + self.in_chunks + self.sparse.len()) as u32
    }

    /// Where a place is kept, or would be.
    #[inline]
    fn spot(&self, place: u32) -> Spot {
        let place = place as usize;
        if place < FRONT {
            return Spot::Dense(place);
        }
        match place.checked_sub(self.in_chunks) {
            Some(index) if index >= FRONT => Spot::Dense(index),
            _ => Spot::Chunk { chunk: (place - FRONT) / CHUNK, at: (place - FRONT) % CHUNK },
        }
    }

    #[inline]
    fn packed(&self, place: u32) -> Option<Packed> {
        let dense = match self.spot(place) {
            Spot::Dense(index) => self.dense.get(index).copied(),
            Spot::Chunk { chunk, at } => self.chunks.get(chunk).map(|chunk| chunk.get(at)),
        };
        dense.or_else(|| self.sparse.get(&place).copied())
    }

    /// What lies at a place, if anything was put there.
    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<Value> {
        self.packed(place).map(|packed| self.unpack(packed))
    }

    /// The text at a place, if that is what lies there.
    #[inline]
    pub(crate) fn get_text(&self, place: u32) -> Option<StrId> {
        let front = self.dense.get(place as usize).filter(|_| (place as usize) < FRONT);
        let packed = match front {
            Some(packed) => packed.0,
            None => self.get_far(place)?.0,
        };
        (packed >> NUMBER_BITS == STR).then_some(StrId(packed & (NUMBERS - 1)))
    }

    #[inline(never)]
    fn get_far(&self, place: u32) -> Option<Packed> {
        self.packed(place)
    }

    /// Puts `value` at `place`.
    #[inline]
    pub(crate) fn put(&mut self, place: u32, value: Value) {
        let packed = self.pack(value);
        let before = match self.spot(place) {
            Spot::Dense(index) if index == self.dense.len() => {
                self.dense.push(packed);
                match self.sparse.is_empty() {
                    true => None,
                    false => self.sparse.remove(&place),
                }
            }
            Spot::Dense(index) => match self.dense.get_mut(index) {
                Some(old) => Some(std::mem::replace(old, packed)),
                None => self.sparse.insert(place, packed),
            },
            Spot::Chunk { chunk, at } => {
                let chunk = &mut self.chunks[chunk];
                let before = chunk.get(at);
                self.chunk_bytes -= chunk.memory();
                chunk.set(at, packed);
                self.chunk_bytes += chunk.memory();
                Some(before)
            }
        };
        if before.is_some_and(Packed::is_frame) {
            self.spelled.forget();
        }
    }

    /// Moves all but the first places into chunks. Called once per buffer of input, when no place is
    /// [held](Memo::hold).
    pub(crate) fn pack_chunks(&mut self) {
        let full = self.dense.len().saturating_sub(FRONT) / CHUNK * CHUNK;
        if full == 0 {
            return;
        }
        for places in self.dense[FRONT..FRONT + full].chunks_exact(CHUNK) {
            let chunk = MemoChunk::new(places);
            self.chunk_bytes += chunk.memory();
            self.chunks.push(chunk);
        }
        self.dense.drain(FRONT..FRONT + full);
        self.in_chunks += full;
    }

    /// Puts a text where MEMOIZE does. Only after [`Memo::next_in_order`], which says whether that is
    /// the end.
    #[inline]
    pub(crate) fn add_text(&mut self, text: StrId) {
        self.dense.push(Packed::new(STR, text.0));
    }

    /// Puts an entry at a place that [`Memo::hold`] gave out.
    #[inline]
    pub(crate) fn fill_with_entry(&mut self, place: u32, row: u32) {
        if let Some(held) = self.dense.get_mut(place as usize - self.in_chunks) {
            *held = Packed::entry(row);
        }
    }

    /// The place that the next MEMOIZE fills; `None` if the places were not filled in order.
    #[inline]
    pub(crate) fn next_in_order(&self) -> Option<u32> {
        self.sparse.is_empty().then(|| self.next())
    }

    /// Leaves room where MEMOIZE puts the next value, and returns the place; `None` if the places
    /// were not filled in order. Nothing of use lies there until a value is put.
    #[inline]
    pub(crate) fn hold(&mut self) -> Option<u32> {
        let place = self.next_in_order()?;
        self.dense.push(Packed::new(BOXED, NUMBERS - 1));
        Some(place)
    }

    /// Forgets what lies at `place`, which [`Memo::next_in_order`] told since the last chunks were
    /// turned, and behind. The same bytes are read again, so the same frames come to lie there.
    #[cold]
    pub(crate) fn truncate(&mut self, place: u32) {
        self.dense.truncate(place as usize - self.in_chunks);
    }

    /// Puts `new` at `place` if `old` is there.
    #[inline]
    pub(crate) fn replace(&mut self, place: u32, old: Value, new: Value) {
        if self.get(place) == Some(old) {
            self.put(place, new);
        }
    }

    /// Whether the places run out. There are 2³² of them.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.dense.len() + self.in_chunks + self.sparse.len() > (u32::MAX - NUMBERS) as usize
    }

    /// How many values have a number in the memo only.
    pub(crate) fn boxed(&self) -> usize {
        self.boxed.len()
    }

    /// Bytes held, about.
    pub(crate) fn memory(&self) -> u64 {
        let (len, capacity) = (self.sparse.len(), self.sparse.capacity());
        (taken(&self.dense)
            + taken(&self.chunks)
            + self.chunk_bytes
            + taken_by_map(len, capacity, size_of::<(u32, Packed)>())
            + self.spelled.memory()
            + taken(&self.boxed)) as u64
    }

    /// `value` in four bytes. Numbers are below [`NUMBERS`], or the row, text or slot would not
    /// have been made.
    #[inline]
    fn pack(&mut self, value: Value) -> Packed {
        let (kind, number) = match value {
            Value::Str(StrId(number)) => (STR, number),
            Value::Open(number) => (OPEN, number),
            Value::Row(Table::Entries, number) => (ENTRY, number),
            Value::Row(Table::Segments, number) => (SEGMENT, number),
            Value::Row(Table::Blocks, number) => (BLOCK, number),
            Value::Frame(number) => (FRAME, number),
            Value::Stack(number) => (STACK, number),
            Value::Pair(number) => (PAIR, number),
            other => {
                // The same list of rows, or the same empty one, is often memoised in a row.
                if self.boxed.last() != Some(&other) {
                    self.boxed.push(other);
                }
                (BOXED, self.boxed.len() as u32 - 1)
            }
        };
        Packed::new(kind, number)
    }

    #[inline]
    fn unpack(&self, packed: Packed) -> Value {
        let number = packed.0 & (NUMBERS - 1);
        match packed.0 >> NUMBER_BITS {
            STR => Value::Str(StrId(number)),
            OPEN => Value::Open(number),
            ENTRY => Value::Row(Table::Entries, number),
            SEGMENT => Value::Row(Table::Segments, number),
            BLOCK => Value::Row(Table::Blocks, number),
            FRAME => Value::Frame(number),
            STACK => Value::Stack(number),
            PAIR => Value::Pair(number),
            _ => self.boxed.get(number as usize).copied().unwrap_or(Value::None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Run;

    #[test]
    fn every_kind_of_value_comes_back_as_it_was() {
        let values = [
            Value::None,
            Value::Int(u64::MAX),
            Value::Float(0.5),
            Value::Str(StrId(NUMBERS - 1)),
            Value::Open(3),
            Value::Row(Table::Entries, 4),
            Value::Row(Table::Segments, 5),
            Value::Row(Table::Blocks, 6),
            Value::Row(Table::Annotations, 7),
            Value::Rows(Run { table: Table::Entries, first: 8, len: 9 }),
            Value::Frame(10),
            Value::Stack(11),
            Value::Pair(12),
            Value::Bad(13),
        ];
        let mut memo = Memo::default();
        for (place, &value) in values.iter().enumerate() {
            assert_eq!(memo.next(), place as u32);
            memo.put(place as u32, value);
        }
        for (place, &value) in values.iter().enumerate() {
            assert_eq!(memo.get(place as u32), Some(value));
        }
        assert_eq!(memo.get(values.len() as u32), None);
    }

    #[test]
    fn places_in_chunks_are_found_and_can_be_filled_again() {
        let values = |place: u32| match place % 3 {
            0 => Value::Row(Table::Entries, place / 3),
            1 => Value::Str(StrId(7)),
            _ => Value::Stack(place % 100),
        };
        let count = 3 * FRONT as u32 + 100;
        let mut memo = Memo::default();
        for place in 0..count {
            memo.put(place, values(place));
            // As often as buffers end: anywhere.
            if place % 997 == 0 {
                memo.pack_chunks();
            }
        }
        assert!(memo.in_chunks > FRONT, "{}", memo.in_chunks);
        assert_eq!(memo.next(), count);
        for place in 0..count {
            assert_eq!(memo.get(place), Some(values(place)));
        }
        for place in (0..count).step_by(5) {
            memo.put(place, Value::Int(u64::from(place)));
        }
        for place in 0..count {
            let value = if place % 5 == 0 { Value::Int(u64::from(place)) } else { values(place) };
            assert_eq!(memo.get(place), Some(value));
        }
        assert_eq!((memo.get(count), memo.get(u32::MAX)), (None, None));
    }

    #[test]
    fn spellings_are_forgotten_when_a_frame_makes_way() {
        use crate::opcode::plain;
        use crate::spelled_stacks::Spelling;

        let bytes = [plain::BINGET, 1, plain::BINGET, 2, plain::APPENDS];
        let spelling = Spelling::at_beginning_of(&bytes).unwrap();
        for (place, is_known) in [(0, true), (1, false), (2, false), (3, true)] {
            let mut memo = Memo::default();
            memo.put(0, Value::Str(StrId(7)));
            memo.put(1, Value::Frame(5));
            memo.put(2, Value::Frame(6));
            memo.spelled.put(spelling, 9);
            memo.put(place, Value::Frame(8));
            assert_eq!(memo.spelled.get(spelling).is_some(), is_known, "{place}");
        }
    }

    #[test]
    fn an_entry_and_its_usual_text_cost_about_a_byte() {
        let mut memo = Memo::default();
        for row in 0..1_000_000 {
            memo.put(memo.next(), Value::Row(Table::Entries, row));
            memo.put(memo.next(), Value::Str(StrId(80)));
            if row % 1000 == 0 {
                memo.pack_chunks();
            }
        }
        // With what growing takes.
        assert!(memo.memory() < 1_500_000, "{}", memo.memory());
    }

    #[test]
    fn a_place_far_away_costs_no_more_than_a_near_one() {
        let mut memo = Memo::default();
        memo.put(u32::MAX, Value::Bool(true));
        memo.put(1, Value::Bool(false));
        assert!(memo.memory() < 768, "{}", memo.memory());
        assert_eq!(memo.get(u32::MAX), Some(Value::Bool(true)));
        // The place between is filled later, and the one behind it moves without being lost.
        memo.put(0, Value::None);
        assert_eq!(memo.get(1), Some(Value::Bool(false)));
        memo.put(1, Value::Int(1));
        assert_eq!(memo.get(1), Some(Value::Int(1)));
        assert_eq!(memo.next(), 3);
    }
}
