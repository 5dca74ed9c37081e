//! Tables as Arrow arrays: a record batch for each batch of rows.
//!
//! In:  a file and a [`Table`].
//! Out: record batches, for programs in the same process that take Arrow's C interface.
//!
//! | column kind | Arrow type |
//! | --- | --- |
//! | integer | `UInt64` |
//! | text | `Dictionary(Int32, Utf8)`: most texts repeat, stacks a thousand times |
//! | flag | `Boolean` |
//!
//! All batches of a column share one dictionary, so that readers need not unify any.

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Int32Array, RecordBatch, StringArray, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use rustc_hash::FxHashMap;
use tonnage_snapshot::SnapshotFile;

use crate::arrow_events::event_batches;
use crate::error::ExportError;
use crate::rows::{Values, for_each_batch};
use crate::table::{Column, ColumnKind, Table};

impl From<ArrowError> for ExportError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error.to_string())
    }
}

/// The columns of a table, as Arrow names them.
#[must_use]
pub fn arrow_schema(table: Table) -> SchemaRef {
    let field = |column: &Column| Field::new(column.name, kind(column.kind), column.optional);
    Arc::new(Schema::new(table.columns().iter().map(field).collect::<Vec<_>>()))
}

fn kind(kind: ColumnKind) -> DataType {
    match kind {
        ColumnKind::Integer => DataType::UInt64,
        ColumnKind::Text => {
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
        }
        ColumnKind::Flag => DataType::Boolean,
    }
}

/// All rows of a table, in batches.
///
/// # Errors
///
/// If a column has more texts than Arrow can number.
pub fn arrow_batches(file: &SnapshotFile, table: Table) -> Result<Vec<RecordBatch>, ExportError> {
    match table {
        Table::Events => event_batches(file),
        _ => row_batches(file, table),
    }
}

/// All rows of any table, taken row by row.
pub(crate) fn row_batches(
    file: &SnapshotFile,
    table: Table,
) -> Result<Vec<RecordBatch>, ExportError> {
    let mut columns: Vec<_> = table.columns().iter().map(|it| Gathered::new(it.kind)).collect();
    for_each_batch(file, table, |batch| {
        for (values, column) in batch.iter().zip(&mut columns) {
            column.take(values)?;
        }
        Ok(())
    })?;
    let columns = columns.into_iter().map(Gathered::finish).collect::<Result<Vec<_>, _>>()?;
    let batches = columns.first().map_or(0, Vec::len);
    let schema = arrow_schema(table);
    let batch = |number: usize| {
        let arrays = columns.iter().map(|column| Arc::clone(&column[number])).collect();
        Ok(RecordBatch::try_new(Arc::clone(&schema), arrays)?)
    };
    (0..batches).map(batch).collect()
}

/// A column of all batches so far.
enum Gathered {
    Plain(Vec<ArrayRef>),
    Texts { keys: Vec<Int32Array>, texts: Texts },
}

impl Gathered {
    fn new(kind: ColumnKind) -> Self {
        match kind {
            ColumnKind::Text => Self::Texts { keys: Vec::new(), texts: Texts::default() },
            ColumnKind::Integer | ColumnKind::Flag => Self::Plain(Vec::new()),
        }
    }

    /// Takes the column's values of one batch.
    fn take(&mut self, values: &Values) -> Result<(), ExportError> {
        match (self, values) {
            (Self::Plain(arrays), Values::Integer(values)) => {
                // Most columns have every value: then nothing says which are missing.
                let all: Option<Vec<u64>> = values.iter().copied().collect();
                let array = all.map_or_else(|| values.iter().collect(), UInt64Array::from);
                arrays.push(Arc::new(array));
            }
            (Self::Plain(arrays), Values::Flag(values)) => {
                arrays.push(Arc::new(BooleanArray::from(values.clone())));
            }
            (Self::Texts { keys, texts }, Values::Text(values)) => keys.push(texts.keys(values)?),
            _ => debug_assert!(false, "a column has values of its kind"),
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<ArrayRef>, ExportError> {
        match self {
            Self::Plain(arrays) => Ok(arrays),
            Self::Texts { keys, texts } => {
                let dictionary = texts.dictionary();
                keys.into_iter().map(|keys| Texts::column(keys, &dictionary)).collect()
            }
        }
    }
}

/// The most bytes that the texts of a column can have together.
pub(crate) const MOST_TEXT: usize = i32::MAX as usize;

/// More than that.
pub(crate) fn too_much_text() -> ExportError {
    ExportError::Arrow("its texts take more than 2 GiB: export it as Parquet".to_owned())
}

/// Texts of a column, each once, by number.
#[derive(Default)]
pub(crate) struct Texts {
    all: Vec<Arc<str>>,
    bytes: usize,
    numbers: FxHashMap<Arc<str>, i32>,
}

impl Texts {
    /// The numbers of these texts.
    fn keys(&mut self, values: &[Option<Arc<str>>]) -> Result<Int32Array, ExportError> {
        // Within a batch equal texts are one text, in one place: most are not looked at.
        let mut known: FxHashMap<*const u8, i32> = FxHashMap::default();
        let mut last = None;
        let mut key = |text: &Arc<str>| -> Result<i32, ExportError> {
            let place = text.as_ptr();
            match last {
                Some((there, number)) if there == place => return Ok(number),
                _ => {}
            }
            let number = match known.get(&place) {
                Some(&number) => number,
                None => *known.entry(place).or_insert(self.number(text)?),
            };
            last = Some((place, number));
            Ok(number)
        };
        values.iter().map(|text| text.as_ref().map(&mut key).transpose()).collect()
    }

    /// The number of this text.
    pub(crate) fn number(&mut self, text: &Arc<str>) -> Result<i32, ExportError> {
        if let Some(&number) = self.numbers.get(text) {
            return Ok(number);
        }
        self.bytes += text.len();
        let number = i32::try_from(self.all.len()).ok();
        let number = number.filter(|_| self.bytes <= MOST_TEXT).ok_or_else(too_much_text)?;
        self.all.push(Arc::clone(text));
        self.numbers.insert(Arc::clone(text), number);
        Ok(number)
    }
    /// The texts, in the order of their numbers.
    pub(crate) fn dictionary(self) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(self.all.iter().map(|it| &**it)))
    }

    /// A column of texts by their numbers.
    pub(crate) fn column(keys: Int32Array, dictionary: &ArrayRef) -> Result<ArrayRef, ExportError> {
        let array = DictionaryArray::<Int32Type>::try_new(keys, Arc::clone(dictionary))?;
        Ok(Arc::new(array))
    }
}
