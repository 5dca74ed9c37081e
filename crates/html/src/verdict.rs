//! What a reader wants first: the verdict, and the figures behind it.

use maud::{Markup, html};
use tonnage_analysis::report::{LimitSource, Report};

use crate::figures::{bytes, grouped, percent};
use crate::text::{name, sentence};

/// The file, and what the report rests on; `over` stands above its name.
pub(crate) fn header(over: &str, file: &str, report: &Report) -> Markup {
    html! {
        header {
            p.brand { (over) }
            h1 { (name(file)) }
            ul.facts {
                li { "device " (report.device) }
                li { (report.history.with_entries(report.events)) }
                li {
                    "settings: "
                    @if report.conf.is_empty() { "defaults" } @else { (name(&report.conf)) }
                }
                @if let Some(limit) = report.limit { li { "limit " (bytes(limit)) } }
                @if let Some(total) = report.total { li { "device memory " (bytes(total)) } }
            }
        }
    }
}

/// The paragraph.
pub(crate) fn verdict(report: &Report) -> Markup {
    let verdict = &report.verdict;
    html! {
        section #verdict.verdict aria-labelledby="verdict-h" {
            h2 #verdict-h {
                "Verdict: " span.cause { (verdict.cause.name()) } " " (bytes(verdict.bytes))
            }
            p.lead { (sentence(&verdict.text)) }
        }
    }
}

/// The figures that the rest explains.
pub(crate) fn figures(report: &Report) -> Markup {
    let reserved = &report.peak.reserved;
    let waste = report.waste.total();
    html! {
        dl.figures {
            (figure("Reserved, at its peak", reserved.bytes, "obtained from the device"))
            (figure("Requested", reserved.requested, "asked for and live then"))
            (figure("Waste", waste, &format!("{} of reserved then", percent(waste, reserved.bytes))))
            @if report.peak.requested > reserved.requested {
                (figure("Need", report.peak.requested, "live at once, at another moment"))
            }
            @if let Some(failure) = &report.failure {
                (figure("Limit", failure.limit.bytes, match failure.limit.source {
                    LimitSource::Given => "as given",
                    LimitSource::Concluded => "at least, concluded",
                    LimitSource::FullDevice => "all that the device had for it",
                }))
            } @else if let Some(limit) = report.limit {
                (figure("Limit", limit, &format!("{} reserved", percent(reserved.bytes, limit))))
            }
            @if let Some(tried) = report.settings.as_ref().filter(|it| report.failure.is_none() && it.saving() > 0) {
                (figure("With the best settings", tried.reserved, "reserved, by replay"))
            }
        }
    }
}

fn figure(word: &str, size: u64, more: &str) -> Markup {
    html! {
        div {
            dt { (word) }
            dd { strong { (bytes(size)) } span { (grouped(size)) " bytes" } span { (more) } }
        }
    }
}
