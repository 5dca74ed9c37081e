//! The verdict as a paragraph.
//!
//! In:  a report, and the settings that were tried.
//! Out: what failed and what replay says of it, how much is reserved, what limits the job, and the change that helps.

use tonnage_events::Bytes;

use super::Report;
use super::advice::Basis;
use super::settings::Tried;
use super::verdict::Cause;
use crate::inspect::HistoryKind;

/// How to make a recording that tells.
pub(super) const HOW_TO_RECORD: &str = "call torch.cuda.memory._record_memory_history() before the work and \
     torch.cuda.memory._dump_snapshot(\"memory.pickle\") after it";

/// The verdict: what limits the job, and the one change that helps most.
pub(super) fn paragraph(report: &Report, tried: Option<&Tried>) -> String {
    let peak = &report.peak.reserved;
    let need = report.peak.requested;
    if report.history == HistoryKind::None {
        let cached = peak.bytes.saturating_sub(peak.requested);
        return format!(
            "{} were reserved, {} of them asked for; {} were cached or rounded up. That is the state when the snapshot was \
             taken, not the peak: it does not tell what was needed, nor what a change would save. To learn that, \
             {HOW_TO_RECORD}.",
            Bytes(peak.bytes),
            Bytes(peak.requested),
            Bytes(cached),
        );
    }
    let mut text = match report.failed_requests {
        0 => String::new(),
        1 => "One request failed. ".to_owned(),
        number => format!("{number} requests failed. "),
    };
    if let Some(failure) = &report.failure {
        text += &failure.sentence();
        text.push(' ');
    }
    let share = |bytes: u64| bytes as f64 / peak.bytes.max(1) as f64 * 100.0;
    text += &format!(
        "Reserved memory peaked at {}; {:.0} % of that was asked for and live",
        Bytes(peak.bytes),
        share(peak.requested)
    );
    // Another moment may need far more of it.
    if share(need) > share(peak.requested) + 5.0 {
        text += &format!(" then, and {:.0} % where most was live", share(need).min(100.0));
    }
    text += ". ";
    if report.verdict.cause == Cause::Unknown {
        text += "What limits this job is not known.";
    } else {
        text += match report.verdict.cause {
            Cause::Need => "What limits this job is true need: ",
            Cause::Leak => "What limits this job is a leak: ",
            Cause::LongerInputs => "What limits this job is that its inputs grow: ",
            Cause::GrowingTensor => "What limits this job is a tensor that grows: ",
            Cause::Outside => "What limits this job is memory that is not its own: ",
            _ => "What limits this job is waste: ",
        };
        let mut sentence = report.verdict.text.chars();
        if let Some(first) = sentence.next() {
            text.extend(first.to_lowercase());
            text += sentence.as_str();
        }
    }
    // What serves the failed request is said already.
    let rest = report.advice.iter().find(|it| it.serves.is_none());
    match rest {
        Some(best) if best.basis == Basis::Replayed => {
            text += &format!(" What helps: {}.", best.in_a_line());
        }
        Some(best) => {
            let also =
                if rest.map(std::ptr::from_ref) == report.advice.first().map(std::ptr::from_ref) {
                    "What helps most"
                } else {
                    "What helps besides"
                };
            text += &format!(" {also}: {}.", best.in_a_line());
        }
        None if report.failure.is_none() && tried.is_some() => {
            text += " No setting that was tried reserves noticeably less.";
        }
        None => {}
    }
    text
}
