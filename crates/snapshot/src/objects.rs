//! The way in for a snapshot whose objects are in memory already: what `torch.cuda.memory._snapshot()` returns,
//! walked by whoever can look into it.
//!
//! In:  values, from the innermost outwards: numbers and texts, then the dictionaries and lists that hold them.
//! Out: a [`SnapshotFile`] and its history, or the first thing that is wrong.
//!
//! The same rows are made as from a pickle (stage 4), so that both ways end with the same file.

use crate::entries::Entries;
use crate::error::{Result, SnapshotError};
use crate::finish::Finish;
use crate::history_columns::HistoryColumns;
use crate::limits::Limits;
use crate::machine::{Outcome, Root};
use crate::rows::Rows;
use crate::snapshot_file::SnapshotFile;
use crate::value::{Kind, Value};

/// A value that was taken in. It means something to the [`ObjectReader`] that gave it, and to no other.
#[derive(Clone, Copy, Debug)]
pub struct Object(Value);

impl Object {
    /// `None`.
    pub const NONE: Self = Self(Value::None);
    /// An integer of more than 64 bits.
    pub const HUGE: Self = Self(Value::HugeInt);
    /// Something that no snapshot has a use for.
    pub const OTHER: Self = Self(Value::Opaque(Kind::Set));

    /// Whether it is a call of a stack: the same object then always means the same call.
    #[must_use]
    pub fn is_frame(self) -> bool {
        matches!(self.0, Value::Frame(_))
    }
}

impl From<bool> for Object {
    fn from(value: bool) -> Self {
        Self(Value::Bool(value))
    }
}

impl From<u64> for Object {
    fn from(value: u64) -> Self {
        Self(Value::Int(value))
    }
}

impl From<i64> for Object {
    fn from(value: i64) -> Self {
        Self(u64::try_from(value).map_or(Value::Negative(value), Value::Int))
    }
}

impl From<f64> for Object {
    fn from(value: f64) -> Self {
        Self(Value::Float(value))
    }
}

/// Elements of a list, or keys and values of a dictionary in turn.
#[derive(Debug, Default)]
pub struct Items(Vec<Value>);

impl Items {
    /// None are left; the room is.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Takes in the objects of a snapshot.
pub struct ObjectReader {
    rows: Rows,
    limits: Limits,
}

impl ObjectReader {
    /// Nothing was taken in yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { rows: Rows::new(Entries::in_columns()), limits }
    }

    /// A text, in UTF-8; what is not becomes a replacement character.
    pub fn text(&mut self, text: &[u8]) -> Object {
        Object(Value::Str(self.rows.strings.intern(text)))
    }

    /// Puts an element at the end of a list.
    pub fn append(&mut self, items: &mut Items, item: Object) {
        self.rows.append(&mut items.0, item.0);
    }

    /// Puts a key and its value into a dictionary.
    pub fn set(&self, items: &mut Items, key: Object, value: Object) {
        items.0.extend([key.0, value.0]);
    }

    /// A list, complete.
    pub fn list(&mut self, items: &Items) -> Object {
        Object(self.rows.list(&items.0))
    }

    /// A tuple, complete.
    pub fn tuple(&mut self, items: &Items) -> Object {
        Object(self.rows.tuple(&items.0))
    }

    /// A dictionary, complete.
    pub fn dict(&mut self, items: &Items) -> Object {
        let value = self.rows.dict(&items.0, 0);
        Object(value.unwrap_or(Value::Opaque(Kind::Dict)))
    }

    /// Refuses what takes more than it may. To be asked now and then.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Limit`].
    pub fn take_stock(&self) -> Result<()> {
        // Things have numbers of 32 bits.
        let full = self.rows.highest_number() >= u32::MAX as usize / 2;
        if full || self.rows.memory() > self.limits.memory {
            return Err(SnapshotError::Limit {
                limit: "memory",
                allowed: self.limits.memory,
                unit: "bytes of memory",
                offset: 0,
            });
        }
        Ok(())
    }

    /// The file, from the keys and values of the whole, with the histories of its devices apart from it, by columns.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Shape`] with the path of what is wrong, or [`SnapshotError::Limit`].
    pub fn finish(self, whole: Items) -> Result<(SnapshotFile, Vec<HistoryColumns>)> {
        let Self { rows, limits } = self;
        let outcome = Outcome { root: Root::Dict(whole.0), rows, offset: 0, trailing: 0 };
        Finish { limits: &limits, offset: 0 }.file(outcome)
    }
}
