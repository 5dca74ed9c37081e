//! `tonnage report`: what happened, why, and the one change that helps most.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use tonnage::analysis::report::{RankRow, Ranks, Report, ReportOptions};
use tonnage::{Bytes, Release};

use crate::Answer;
use crate::input::read_snapshot;
use crate::output::{print, print_json};
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

    /// The limit that was in force, which the file does not tell. Bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE")]
    limit: Option<Bytes>,

    /// The memory of the device: with it, memory that others held is told where a request failed
    #[arg(long, value_name = "SIZE")]
    total: Option<Bytes>,

    /// The release whose rules to follow: 2.9, 2.10 or 2.11. Else it is told from the file
    #[arg(long, value_name = "RELEASE")]
    pytorch: Option<Release>,

    /// The device to take, if a file has several. Else the one with most entries
    #[arg(long, value_name = "N")]
    ordinal: Option<usize>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn options(&self) -> ReportOptions {
        ReportOptions {
            limit: self.limit.map(|limit| limit.0),
            total: self.total.map(|total| total.0),
            release: self.pytorch,
            ordinal: self.ordinal,
            ..ReportOptions::default()
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let mut ranks = Vec::new();
    for path in &arguments.files {
        let input = read_snapshot(path)?;
        let _progress = Progress::unmeasured("looking");
        let report =
            Report::of(&input.file, &arguments.options()).with_context(|| input.name.clone())?;
        ranks.push(RankRow { file: input.name, report });
    }
    if let [RankRow { file, report }] = &ranks[..] {
        if arguments.json {
            print_json(&report.to_json(file))?;
        } else {
            print(&report.to_text(file))?;
        }
        return Ok(Answer::Yes);
    }
    let ranks = Ranks::of(ranks).context("no file was given")?;
    if arguments.json {
        print_json(&ranks.to_json())?;
    } else {
        print(&ranks.to_text())?;
    }
    Ok(Answer::Yes)
}
