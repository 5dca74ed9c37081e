//! `tonnage report`: what happened, why, and the one change that helps most.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use tonnage::Bytes;
use tonnage::analysis::report::{Layout, RankRow, Ranks, Report, ReportOptions};
use tonnage::html::{ranks_html, report_html};
use tonnage::snapshot::SnapshotFile;

use crate::Answer;
use crate::ask::Named;
use crate::circumstances::Circumstances;
use crate::input::ReadOptions;
use crate::output::{Destination, Existing, plain, print, print_json, write_file};
use crate::progress::Progress;

/// Say what limits a job's memory, why, and what to change
///
/// The verdict first: true need or waste, and the one change that helps most, with the bytes it saves
/// by replay. Then reserved memory by cause, what held the peak, what grows from one iteration to
/// the next, failed requests, advice.
///
/// Several files are taken as the ranks of one job, or as runs of it: which is the limit, and why.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Snapshots (`.pickle`, also compressed); `-` reads standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    circumstances: Circumstances,

    /// Write the report as one HTML file that needs nothing else: with drawings of memory over time and a
    /// flame graph. A file that is there is replaced, a device or a pipe written to; `-` is standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    read: ReadOptions,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn options(&self) -> ReportOptions {
        let it = self.circumstances;
        ReportOptions {
            limit: it.limit.map(|limit| limit.0),
            total: it.total.map(|total| total.0),
            release: it.pytorch,
            ordinal: it.ordinal,
            ..ReportOptions::default()
        }
    }
}

/// The page: of one file its report alone.
#[must_use]
pub fn report_page(reported: &Ranks) -> String {
    match &reported.ranks[..] {
        [one] => report_html(&one.file, &one.report),
        _ => ranks_html(reported),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let html = match &arguments.html {
        Some(path) => Some((path, Destination::at(path, Existing::Replace, &arguments.files)?)),
        None => None,
    };
    if arguments.json && matches!(html, Some((_, Destination::Standard))) {
        bail!(
            "--json and --html - both write to standard output: name a file for the page, or leave out --json"
        );
    }
    let reported = look(arguments)?;
    match html {
        Some((_, Destination::Standard)) => print(&report_page(&reported))?,
        Some((path, Destination::File(place))) => {
            write_file(&place, |out| {
                out.write_all(report_page(&reported).as_bytes())
                    .with_context(|| format!("cannot write {}", path.display()))
            })?;
            if !arguments.json {
                let shown = path.display().to_string();
                print(&format!("wrote {}: open it in a browser\n", plain(&shown)))?;
            }
        }
        None if !arguments.json => print(&reported.to_text_in(layout()))?,
        None => {}
    }
    if arguments.json {
        print_json(&reported.to_json())?;
    }
    Ok(Answer::Yes)
}

/// As wide as the terminal; whole where a file or a pipe reads. Colours are taken out there by whoever prints.
pub(crate) fn layout() -> Layout {
    let terminal = std::io::stdout().is_terminal();
    let size = || ratatui::crossterm::terminal::size().ok();
    let columns = terminal.then(size).flatten().map(|(columns, _)| usize::from(columns));
    Layout { columns: columns.filter(|&columns| columns > 0), colours: true }
}

/// Reads each file once and looks at it.
fn look(arguments: &Arguments) -> anyhow::Result<Ranks> {
    let mut rows = Vec::new();
    for path in &arguments.files {
        let input = arguments.read.read_snapshot(path)?;
        rows.push(look_at(arguments, &input.name, &input.file)?);
    }
    Ranks::of(rows).context("no file was given")
}

/// The report on files that are read already.
pub(crate) fn answer(arguments: &Arguments, inputs: &[Named<'_>]) -> anyhow::Result<Ranks> {
    let rows = inputs.iter().map(|&(name, file)| look_at(arguments, name, file));
    Ranks::of(rows.collect::<Result<_, _>>()?).context("no file was given")
}

/// The report on these files as text, if this limit was in force.
pub(crate) fn of_files(files: &[PathBuf], limit: Option<Bytes>) -> anyhow::Result<String> {
    let arguments = Arguments {
        files: files.to_vec(),
        circumstances: Circumstances { limit, ..Circumstances::default() },
        html: None,
        read: ReadOptions::default(),
        json: false,
    };
    Ok(look(&arguments)?.to_text_in(layout()))
}

fn look_at(arguments: &Arguments, name: &str, file: &SnapshotFile) -> anyhow::Result<RankRow> {
    let _progress = Progress::unmeasured("looking");
    let report = Report::of(file, &arguments.options()).with_context(|| name.to_owned())?;
    Ok(RankRow { file: name.to_owned(), report })
}
