//! Lists, dictionaries and tuples, from empty to complete.
//!
//! In:  values on the stack, and the container under them that they go into.
//! Out: a container with more in it; once something takes it in, the one value it stands for.

use crate::entry_path::read_entries;
use crate::error::{Result, SnapshotError};
use crate::machine::Machine;
use crate::value::{Kind, Value};

/// Pairs that Python writes in one SETITEMS: a dictionary with as many may have more to come.
const BATCH: usize = 1000;

/// No place in the memo.
pub(super) const NOWHERE: u32 = u32::MAX;

/// A container that may still change, or what became of one that several places refer to.
pub(super) struct Slot {
    pub(super) state: SlotState,
    /// The elements; for a dictionary, keys and values in turn.
    pub(super) items: Vec<Value>,
    /// The place in the memo that refers to it, or [`NOWHERE`].
    pub(super) memo: u32,
    /// Whether more than that and one place on the stack may refer to it.
    pub(super) shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SlotState {
    List,
    Dict,
    /// Complete; the value stands for it.
    Closed(Value),
}

/// Containers.
impl Machine<'_> {
    /// Reads trace entries the short way, if the next ones are as usual.
    #[inline]
    pub(super) fn short_entries(&mut self) -> bool {
        let rest = self.source.rest();
        let taken = read_entries(rest, &mut self.memo, &mut self.rows, &mut self.stack);
        self.source.advance(taken);
        taken > 0
    }

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
    pub(super) fn open(&mut self, state: SlotState) {
        let value = self.new_slot(state);
        self.push(value);
    }

    /// Puts an empty container under the values from `mark` on.
    pub(super) fn open_under(&mut self, mark: usize, state: SlotState) {
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
    pub(super) fn close(&mut self, number: u32) -> Value {
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
    pub(super) fn set_items(&mut self, from: usize, whole: bool) -> Result<()> {
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
    pub(super) fn append(&mut self, from: usize) -> Result<()> {
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
            self.rows.append(&mut slot.items, value);
        }
        self.held += slot.items.len() - before;
        self.stack.truncate(from);
        Ok(())
    }

    /// ADDITEMS: nothing in a snapshot is a set, so only its existence is kept.
    pub(super) fn add_items(&mut self) -> Result<()> {
        let mark = self.unmark()?;
        let target = self.target(mark)?;
        if target != Value::Opaque(Kind::Set) {
            return Err(self.wrong_target("ADDITEMS", "a set", target));
        }
        self.stack.truncate(mark);
        Ok(())
    }

    pub(super) fn tuple(&mut self, from: usize) {
        for at in from..self.stack.len() {
            self.stack[at] = self.complete(self.stack[at]);
        }
        let value = self.rows.tuple(&self.stack[from..]);
        self.stack.truncate(from);
        self.push(value);
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
