//! `tonnage export`: a snapshot for other tools.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tonnage::export::{ExportError, Table, write_csv, write_parquet, write_perfetto};
use tonnage::snapshot::SnapshotFile;

use crate::Answer;
use crate::input::ReadOptions;
use crate::output::{Destination, Existing, grouped, plain, print, print_json, write_file};
use crate::progress::Progress;

/// Convert a PyTorch memory snapshot for other tools
///
/// `perfetto` is a trace for <https://ui.perfetto.dev>: counters, allocations as slices, segments and
/// failures as instants. `parquet` and `csv` are one table with a documented schema; see the guide.
///
/// The file is written whole or not at all. Without `--output` it lies beside FILE and has its name
/// with another ending; there nothing is overwritten unless `--force` is given.
///
/// Exit status: 0, or 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A snapshot (`.pickle`, also compressed); `-` reads standard input
    file: PathBuf,

    /// What to write
    #[arg(long, value_enum)]
    format: Format,

    /// The table, for `parquet` and `csv`: `events`, `allocations`, `segments` or `blocks`. Else
    /// `events`
    #[arg(long, value_name = "TABLE")]
    table: Option<Table>,

    /// Where to write it: a file that is there is replaced, a device or a pipe written to; `-` is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file beside FILE if it is there
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    read: ReadOptions,

    /// Print what was written as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A trace for the Perfetto UI
    Perfetto,
    /// A table for DuckDB, pandas, Polars, Spark
    Parquet,
    /// A table for everything else
    Csv,
}

impl Format {
    /// Its name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Perfetto => "perfetto",
            Self::Parquet => "parquet",
            Self::Csv => "csv",
        }
    }

    fn ending(self) -> &'static str {
        match self {
            Self::Perfetto => "perfetto-trace",
            Self::Parquet => "parquet",
            Self::Csv => "csv",
        }
    }
}

/// What was written.
#[derive(Serialize)]
struct Written<'a> {
    schema: u32,
    file: &'a str,
    format: &'static str,
    table: Option<&'static str>,
    output: String,
    /// Rows of a table, slices of a trace.
    rows: u64,
}

/// The form of the JSON; counts up when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let format = arguments.format;
    if format == Format::Perfetto && arguments.table.is_some() {
        bail!("a Perfetto trace has no tables: leave out --table, or take --format parquet or csv");
    }
    let table = arguments.table.unwrap_or(Table::Events);
    let (output, existing) = match &arguments.output {
        Some(path) => (path.clone(), Existing::Replace),
        None => {
            let existing = if arguments.force { Existing::Replace } else { Existing::Keep };
            (default_output(&arguments.file, format, table)?, existing)
        }
    };
    let destination = Destination::at(&output, existing, std::slice::from_ref(&arguments.file))?;
    let to_stdout = matches!(destination, Destination::Standard);
    if to_stdout && arguments.json {
        bail!(
            "--json describes the file that was written: name one with --output, or leave out --json"
        );
    }
    if to_stdout && format != Format::Csv && std::io::stdout().is_terminal() {
        bail!("{} is not for terminals: name a file with --output, or use a pipe", format.name());
    }
    let input = arguments.read.read_snapshot(&arguments.file)?;
    let needs_history = format == Format::Perfetto || table == Table::Events;
    if needs_history && input.file.traces.iter().all(Vec::is_empty) {
        bail!(
            "{}: the file has no memory history, only the state at the end: call \
             torch.cuda.memory._record_memory_history() before the work, or export \
             `--format csv --table blocks`",
            input.name
        );
    }
    let progress = Progress::bytes(format!("writing {}", output.display()), None);
    let Destination::File(place) = destination else {
        let out = std::io::BufWriter::with_capacity(1 << 16, std::io::stdout());
        return match write(&input.file, format, table, progress.writer(out)) {
            // A reader that has gone away, as `head` does, is no error.
            Err(error) if !error.is_closed_pipe() => Err(error).context("standard output"),
            _ => Ok(Answer::Yes),
        };
    };
    let rows = write_file(&place, |out| {
        write(&input.file, format, table, progress.writer(out))
            .with_context(|| output.display().to_string())
    })?;
    drop(progress);
    let shown = output.display().to_string();
    if arguments.json {
        let table = (format != Format::Perfetto).then(|| table.name());
        let (file, format) = (input.name.as_str(), format.name());
        let written = Written { schema: SCHEMA, file, format, table, output: shown, rows };
        print_json(&serde_json::to_string_pretty(&written)?)?;
    } else {
        let what = match format {
            Format::Perfetto => "slices: open it at https://ui.perfetto.dev".to_owned(),
            _ => format!("rows of {table}"),
        };
        print(&format!("wrote {}: {} {what}\n", plain(&shown), grouped(rows)))?;
    }
    Ok(Answer::Yes)
}

fn write(
    file: &SnapshotFile,
    format: Format,
    table: Table,
    out: impl Write + Send,
) -> Result<u64, ExportError> {
    match format {
        Format::Perfetto => write_perfetto(file, out),
        Format::Parquet => write_parquet(file, table, out),
        Format::Csv => write_csv(file, table, out),
    }
}

/// FILE with another ending: `run.pickle.zst` becomes `run.perfetto-trace` or `run.events.csv`.
fn default_output(file: &Path, format: Format, table: Table) -> anyhow::Result<PathBuf> {
    if file == Path::new("-") {
        bail!("standard input has no name to write beside: name a file with --output");
    }
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut stem = name.as_str();
    for ending in [".zst", ".gz", ".xz"] {
        stem = stem.strip_suffix(ending).unwrap_or(stem);
    }
    for ending in [".pickle", ".pkl"] {
        stem = stem.strip_suffix(ending).unwrap_or(stem);
    }
    let ending = format.ending();
    Ok(file.with_file_name(match format {
        Format::Perfetto => format!("{stem}.{ending}"),
        Format::Parquet | Format::Csv => format!("{stem}.{table}.{ending}"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_beside_has_the_name_with_another_ending() {
        for (file, format, output) in [
            ("run.pickle.zst", Format::Perfetto, "run.perfetto-trace"),
            ("a/run.pickle", Format::Csv, "a/run.events.csv"),
            ("/a/run.pkl.gz", Format::Parquet, "/a/run.events.parquet"),
            ("a.b/run", Format::Csv, "a.b/run.events.csv"),
        ] {
            let got = default_output(Path::new(file), format, Table::Events).unwrap();
            assert_eq!(got, Path::new(output));
        }
        assert!(default_output(Path::new("-"), Format::Csv, Table::Events).is_err());
    }
}
