//! Tables as Parquet: a row group for each batch, compressed with Snappy.
//!
//! | column kind | Parquet type |
//! | --- | --- |
//! | integer | INT64, annotated as unsigned 64-bit integer |
//! | text | BYTE_ARRAY, annotated as string |
//! | flag | BOOLEAN |

use std::io::Write;
use std::sync::Arc;

use ::parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use ::parquet::schema::types::Type;
use tonnage_snapshot::SnapshotFile;

use crate::error::ExportError;
use crate::rows::{Values, for_each_batch};
use crate::table::{Column, ColumnKind, Table};

impl From<ParquetError> for ExportError {
    fn from(error: ParquetError) -> Self {
        match error {
            // What is written to says more than the library does of it.
            ParquetError::External(source) => match source.downcast::<std::io::Error>() {
                Ok(error) => Self::Io(*error),
                Err(other) => Self::Parquet(other.to_string()),
            },
            other => Self::Parquet(other.to_string()),
        }
    }
}

/// Writes a table as Parquet and returns the number of rows.
///
/// # Errors
///
/// If `out` cannot be written to.
pub fn write_parquet(
    file: &SnapshotFile,
    table: Table,
    out: impl Write + Send,
) -> Result<u64, ExportError> {
    let mut writer = writer(table.name(), table.columns(), out)?;
    let rows = for_each_batch(file, table, |batch| {
        let mut group = writer.next_row_group()?;
        for (values, column) in batch.iter().zip(table.columns()) {
            let Some(mut place) = group.next_column()? else { break };
            write_column(&mut place, values, column)?;
            place.close()?;
        }
        group.close()?;
        Ok(())
    })?;
    writer.close()?;
    Ok(rows)
}

/// Writes columns of another table as Parquet, in one row group: values for each column, all as many.
///
/// # Errors
///
/// If `out` cannot be written to, or a column has values of another kind.
pub fn write_values(
    name: &str,
    columns: &[Column],
    values: &[Values],
    out: impl Write + Send,
) -> Result<(), ExportError> {
    let mut writer = writer(name, columns, out)?;
    let mut group = writer.next_row_group()?;
    for (values, column) in values.iter().zip(columns) {
        let Some(mut place) = group.next_column()? else { break };
        write_column(&mut place, values, column)?;
        place.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

fn writer<W: Write + Send>(
    name: &str,
    columns: &[Column],
    out: W,
) -> Result<SerializedFileWriter<W>, ExportError> {
    let fields = columns.iter().map(|column| field(column).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder(name).with_fields(fields).build()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("tonnage ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    Ok(SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?)
}

fn field(column: &Column) -> Result<Type, ParquetError> {
    let (physical, logical) = match column.kind {
        ColumnKind::Integer => (PhysicalType::INT64, Some(LogicalType::integer(64, false))),
        ColumnKind::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        ColumnKind::Flag => (PhysicalType::BOOLEAN, None),
    };
    let repetition = if column.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    Type::primitive_type_builder(column.name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()
}

fn write_column(
    place: &mut SerializedColumnWriter<'_>,
    values: &Values,
    column: &Column,
) -> Result<(), ParquetError> {
    /// For each value whether it is there, where one can be missing.
    fn levels<T>(values: &[Option<T>], column: &Column) -> Option<Vec<i16>> {
        column.optional.then(|| values.iter().map(|value| i16::from(value.is_some())).collect())
    }
    match values {
        Values::Integer(values) => {
            let present: Vec<_> =
                values.iter().flatten().map(|value| value.cast_signed()).collect();
            let levels = levels(values, column);
            place.typed::<Int64Type>().write_batch(&present, levels.as_deref(), None)?;
        }
        Values::Text(values) => {
            let text = |text: &Arc<str>| ByteArray::from(&**text);
            let present: Vec<_> = values.iter().flatten().map(text).collect();
            let levels = levels(values, column);
            place.typed::<ByteArrayType>().write_batch(&present, levels.as_deref(), None)?;
        }
        Values::Flag(values) => {
            place.typed::<BoolType>().write_batch(values, None, None)?;
        }
    }
    Ok(())
}
