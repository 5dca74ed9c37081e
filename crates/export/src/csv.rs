//! Tables as CSV: a line of names, then a line for each row; missing values are empty.
//!
//! Texts are quoted as RFC 4180 has it where they need to be; lines end with a line feed.

use std::io::Write;

use tonnage_snapshot::SnapshotFile;

use crate::error::ExportError;
use crate::rows::{Values, for_each_batch};
use crate::table::Table;

/// Writes a table as CSV and returns the number of rows.
///
/// # Errors
///
/// If `out` cannot be written to.
pub fn write_csv(
    file: &SnapshotFile,
    table: Table,
    mut out: impl Write,
) -> Result<u64, ExportError> {
    let names: Vec<_> = table.columns().iter().map(|column| column.name).collect();
    writeln!(out, "{}", names.join(","))?;
    let mut lines = String::new();
    let rows = for_each_batch(file, table, |batch| {
        let rows = match &batch[0] {
            Values::Integer(values) => values.len(),
            Values::Text(values) => values.len(),
            Values::Flag(values) => values.len(),
        };
        for row in 0..rows {
            for (place, values) in batch.iter().enumerate() {
                if place > 0 {
                    lines.push(',');
                }
                match values {
                    Values::Integer(values) => {
                        if let Some(value) = values[row] {
                            lines += &value.to_string();
                        }
                    }
                    Values::Text(values) => {
                        push_quoted(&mut lines, values[row].as_deref().unwrap_or_default());
                    }
                    Values::Flag(values) => lines += if values[row] { "true" } else { "false" },
                }
            }
            lines.push('\n');
            if lines.len() > 1 << 16 {
                out.write_all(lines.as_bytes())?;
                lines.clear();
            }
        }
        Ok(())
    })?;
    out.write_all(lines.as_bytes())?;
    out.flush()?;
    Ok(rows)
}

fn push_quoted(line: &mut String, text: &str) {
    if text.contains(['"', ',', '\n', '\r']) {
        line.push('"');
        *line += &text.replace('"', "\"\"");
        line.push('"');
    } else {
        *line += text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_a_line_is_quoted() {
        for (text, quoted) in [
            ("plain", "plain"),
            ("(0, 0)", "\"(0, 0)\""),
            ("a\"b", "\"a\"\"b\""),
            ("a\nb", "\"a\nb\""),
        ] {
            let mut line = String::new();
            push_quoted(&mut line, text);
            assert_eq!(line, quoted);
        }
    }
}
