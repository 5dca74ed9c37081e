//! Tables as CSV and as Parquet: the same rows, and the schema that is documented.

#![cfg(feature = "parquet")]

use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use tonnage_analysis::{Lifetimes, devices};
use tonnage_export::{ColumnKind, Table, write_csv, write_parquet};
use tonnage_snapshot::SnapshotFile;

fn open(name: &str) -> SnapshotFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces").join(name);
    tonnage_snapshot::open(&path).unwrap()
}

/// A table's rows as CSV fields, read by the rules of RFC 4180.
fn csv_rows(file: &SnapshotFile, table: Table) -> Vec<Vec<String>> {
    let mut bytes = Vec::new();
    let rows = write_csv(file, table, &mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (mut lines, mut line, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut quoted = false;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => line.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                line.push(std::mem::take(&mut field));
                lines.push(std::mem::take(&mut line));
            }
            c => field.push(c),
        }
    }
    let names = lines.remove(0);
    assert!(names.iter().eq(table.columns().iter().map(|column| column.name)));
    assert_eq!(lines.len() as u64, rows);
    lines
}

fn parquet_rows(file: &SnapshotFile, table: Table) -> Vec<Vec<String>> {
    let mut bytes = Vec::new();
    let rows = write_parquet(file, table, &mut bytes).unwrap();
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows().cast_unsigned(), rows);
    let schema = reader.metadata().file_metadata().schema_descr();
    for (column, documented) in schema.columns().iter().zip(table.columns()) {
        assert_eq!(column.name(), documented.name);
        assert_eq!(column.max_def_level() == 1, documented.optional, "{}", documented.name);
    }
    assert_eq!(schema.num_columns(), table.columns().len());
    let shown = |field: &Field| match field {
        Field::Null => String::new(),
        Field::ULong(value) => value.to_string(),
        Field::Str(text) => text.clone(),
        Field::Bool(value) => value.to_string(),
        other => panic!("no column holds {other:?}"),
    };
    reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().get_column_iter().map(|(_, field)| shown(field)).collect())
        .collect()
}

#[test]
fn csv_and_parquet_hold_the_same_rows() {
    for name in ["gpt2_varlen.default.stacks", "multistream.default", "mlp_seed.tight"] {
        let file = open(&format!("{name}.pickle.zst"));
        for table in Table::ALL {
            let (csv, parquet) = (csv_rows(&file, table), parquet_rows(&file, table));
            assert_eq!(csv.len(), parquet.len(), "{name} {table}");
            for (row, (csv, parquet)) in csv.iter().zip(&parquet).enumerate() {
                assert_eq!(csv, parquet, "{name} {table}: row {row}");
            }
        }
    }
}

#[test]
fn every_entry_allocation_segment_and_block_has_its_row() {
    let file = open("gpt2_varlen.default.stacks.pickle.zst");
    let device = &devices(&file)[0];
    let blocks: usize = file.segments.iter().map(|segment| segment.blocks.len()).sum();
    for (table, rows) in [
        (Table::Events, file.traces[0].len()),
        (Table::Allocations, Lifetimes::of(device).len()),
        (Table::Segments, file.segments.len()),
        (Table::Blocks, blocks),
    ] {
        assert_eq!(csv_rows(&file, table).len(), rows, "{table}");
    }
}

#[test]
fn values_are_of_their_columns_kind_and_missing_only_where_they_may_be() {
    let file = open("gpt2_varlen.default.stacks.pickle.zst");
    for table in Table::ALL {
        for row in csv_rows(&file, table).iter().step_by(97) {
            for (value, column) in row.iter().zip(table.columns()) {
                let fits = match column.kind {
                    _ if value.is_empty() => column.optional,
                    ColumnKind::Integer => value.parse::<u64>().is_ok(),
                    ColumnKind::Flag => value == "true" || value == "false",
                    ColumnKind::Text => true,
                };
                assert!(fits, "{table}.{}: {value}", column.name);
            }
        }
    }
}

#[test]
fn a_file_with_nothing_in_it_gives_tables_without_rows() {
    for table in Table::ALL {
        assert!(csv_rows(&SnapshotFile::default(), table).is_empty());
        assert!(parquet_rows(&SnapshotFile::default(), table).is_empty());
    }
}
