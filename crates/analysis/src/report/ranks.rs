//! One file or several side by side: the ranks of one job, or runs of it.
//!
//! In:  a [`Report`] for each file.
//! Out: [`Ranks`]: who reserves most, how far apart they are, and why; what `tonnage report` prints.

use std::fmt::Write;

use serde::Serialize;
use tonnage_events::Bytes;

use super::Report;
use super::text::{Layout, wrapped};
use super::verdict::Cause;

/// Reports of one file or several.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// One row for each file, in their order.
    pub ranks: Vec<RankRow>,
    /// The row that reserves most.
    pub limit: usize,
    /// Bytes that it reserves more than the one that reserves least.
    pub imbalance: u64,
    /// What that means; of one file its verdict.
    pub text: String,
}

/// One file.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// Its name.
    pub file: String,
    /// Its report.
    pub report: Report,
}

/// The form of the JSON; counts up when a field changes its meaning or goes. `docs/schema/report.json` describes it.
const SCHEMA: u32 = 2;

/// The same for one file as for several.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    files: &'a [RankRow],
    fullest: usize,
    imbalance: u64,
    text: &'a str,
}

impl Ranks {
    /// Compares the reports of files; none if there are none.
    #[must_use]
    pub fn of(ranks: Vec<RankRow>) -> Option<Self> {
        let reserved = |row: &RankRow| row.report.peak.reserved.bytes;
        let limit = (0..ranks.len()).max_by_key(|&it| (reserved(&ranks[it]), usize::MAX - it))?;
        let least = (0..ranks.len()).min_by_key(|&it| (reserved(&ranks[it]), it))?;
        let imbalance = reserved(&ranks[limit]) - reserved(&ranks[least]);
        let text = match &ranks[..] {
            [one] => one.report.verdict.text.clone(),
            _ => explain(&ranks, limit, least, imbalance),
        };
        Some(Self { ranks, limit, imbalance, text })
    }

    /// As one JSON object.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self) -> String {
        let Self { ranks, limit, imbalance, text } = self;
        let (fullest, imbalance) = (*limit, *imbalance);
        let json = Json { schema: SCHEMA, files: ranks, fullest, imbalance, text };
        serde_json::to_string_pretty(&json).expect("numbers and strings can be written")
    }

    /// As text: of several files the table, then the report of the one that is the limit.
    #[must_use]
    pub fn to_text_in(&self, layout: Layout) -> String {
        if let [one] = &self.ranks[..] {
            return one.report.to_text_in(&one.file, layout);
        }
        let mut text = String::new();
        wrapped(&mut text, layout, "", &self.text);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n{:>12}{:>12}{:>12}{:>9}  {:<15}file",
            "reserved", "requested", "waste", "failed", "cause"
        );
        for (place, row) in self.ranks.iter().enumerate() {
            let report = &row.report;
            let mark = if place == self.limit { "  (the limit)" } else { "" };
            let figures = format!(
                "{:>12}{:>12}{:>12}{:>9}  {:<15}",
                Bytes(report.peak.reserved.bytes).to_string(),
                Bytes(report.peak.reserved.requested).to_string(),
                Bytes(report.waste.total()).to_string(),
                report.failed_requests,
                report.verdict.cause.name(),
            );
            layout.row(&mut text, &figures, &format!("{}{mark}", row.file));
        }
        let row = &self.ranks[self.limit];
        let _ = write!(text, "\n{}", row.report.to_text_in(&row.file, layout));
        text
    }
}

/// Which part of the difference is the largest.
fn explain(ranks: &[RankRow], limit: usize, least: usize, imbalance: u64) -> String {
    let (most, other) = (&ranks[limit], &ranks[least]);
    let (a, b) = (&most.report, &other.report);
    let share = imbalance as f64 / a.peak.reserved.bytes.max(1) as f64 * 100.0;
    if share < 1.0 {
        return format!(
            "{} files, balanced: all reserve {} at their peak, within 1 %. What limits them: {}.",
            ranks.len(),
            Bytes(a.peak.reserved.bytes),
            a.verdict.cause.name()
        );
    }
    let of = |report: &Report, cause: Cause| {
        report.causes.iter().find(|it| it.cause == cause).map_or(0, |it| it.bytes)
    };
    // Leaks and longer inputs are part of the need.
    let differs = a.causes.iter().map(|it| {
        let more = it.bytes.saturating_sub(of(b, it.cause));
        (more, it.cause)
    });
    let special = |cause: Cause| u8::from(cause != Cause::Need);
    let largest = differs.max_by_key(|&(more, cause)| (more, special(cause)));
    let why = match largest {
        Some((more, Cause::Need)) => format!("it has {} more live at once", Bytes(more)),
        Some((more, cause)) => format!("it has {} more of `{}`", Bytes(more), cause.name()),
        None => "their requests differ".to_owned(),
    };
    format!(
        "{} is the limit of {} files: it reserves {} at its peak, {} ({share:.0} %) more than {}; {why}.",
        most.file,
        ranks.len(),
        Bytes(a.peak.reserved.bytes),
        Bytes(imbalance),
        other.file
    )
}
