//! The verdict as a paragraph.
//!
//! In:  a report, and the settings that were tried.
//! Out: what failed, how much is reserved, what limits the job, and the one change that helps most.

use tonnage_events::Bytes;

use super::Report;
use super::settings::Tried;
use super::verdict::Cause;
use crate::inspect::HistoryKind;

/// The verdict: what limits the job, and the one change that helps most.
pub(super) fn paragraph(report: &Report, tried: Option<&Tried>) -> String {
    let peak = &report.peak.reserved;
    let need = report.peak.requested;
    let mut text = match report.failed_requests {
        0 => String::new(),
        1 => "One request failed. ".to_owned(),
        number => format!("{number} requests failed. "),
    };
    if report.history == HistoryKind::None {
        text += &format!("{} are reserved, {} of them asked for. ", Bytes(peak.bytes), Bytes(need));
    } else {
        let share = |bytes: u64| bytes as f64 / peak.bytes.max(1) as f64 * 100.0;
        text += &format!(
            "Reserved memory peaks at {}; {:.0} % of that was asked for and live",
            Bytes(peak.bytes),
            share(peak.requested)
        );
        // Another moment may need far more of it.
        if share(need) > share(peak.requested) + 5.0 {
            text += &format!(" then, and {:.0} % where most was live", share(need).min(100.0));
        }
        text += ". ";
    }
    text += match report.verdict.cause {
        Cause::Need => "What limits this job is true need: ",
        Cause::Leak => "What limits this job is a leak: ",
        Cause::LongerInputs => "What limits this job is that its inputs grow: ",
        Cause::Outside => "What limits this job is memory that is not its own: ",
        _ => "What limits this job is waste: ",
    };
    let mut sentence = report.verdict.text.chars();
    if let Some(first) = sentence.next() {
        text.extend(first.to_lowercase());
        text += sentence.as_str();
    }
    match report.advice.first() {
        Some(best) => {
            text += &format!(" The one change that helps most: {}.", best.in_a_line());
        }
        None if tried.is_some() => {
            text += " No setting that was tried reserves noticeably less.";
        }
        None => {}
    }
    text
}
