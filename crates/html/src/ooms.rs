//! Requests that failed.

use maud::{Markup, html};
use tonnage_analysis::report::{OomReport, Report};

use crate::figures::{bytes, grouped};
use crate::text::{capital, line, sentence};

pub(crate) fn ooms(report: &Report) -> Markup {
    if report.failed_requests == 0 {
        return html! {};
    }
    let left_out = report.failed_requests.saturating_sub(report.ooms.len());
    html! {
        section aria-labelledby="ooms-h" {
            h2 #ooms-h { "Failed requests: " (grouped(report.failed_requests)) }
            @if left_out > 0 {
                p.under { "The first ones and the last are explained, " (grouped(left_out)) " between them are not." }
            }
            // The first and the last tell most.
            @if let Some(first) = report.ooms.first() { (failed(first)) }
            @if let Some(between) = report.ooms.get(1..report.ooms.len().saturating_sub(1)).filter(|it| !it.is_empty()) {
                details {
                    summary { (grouped(between.len())) " more after the first" }
                    @for it in between { (failed(it)) }
                }
            }
            @if report.ooms.len() > 1 { @if let Some(last) = report.ooms.last() { (failed(last)) } }
        }
    }
}

fn failed(it: &OomReport) -> Markup {
    html! {
        article.failed {
            h3 {
                (bytes(it.bytes)) " after entry " (grouped(it.event)) " on stream " (it.stream)
                @if it.fatal { ": it ended the job" } @else { ": the job went on" }
            }
            @if it.line.is_some() { p { "Asked for at " (line(it.line.as_deref())) } }
            p { (sentence(&capital(&it.why))) "." }
            dl.state {
                (part("reserved", it.reserved)) (part("live", it.requested)) (part("pending", it.pending))
                (part("cached", it.cached)) (part("largest free block", it.largest_free))
                (part("free on the device", it.device_free))
                @if let Some(outside) = it.outside {
                    (part(if it.outside_at_least { "outside this allocator, at least" } else { "outside this allocator" }, outside))
                }
            }
            @if !it.would_have.is_empty() {
                p { "What would have helped:" }
                ul { @for would in &it.would_have { li { (sentence(would)) } } }
            }
            @if !it.would_not_have.is_empty() {
                p { "What would not:" }
                ul { @for would_not in &it.would_not_have { li { (sentence(would_not)) } } }
            }
        }
    }
}

/// A figure with its name, for a list of them.
pub(crate) fn part(word: &str, size: u64) -> Markup {
    html! { div { dt { (word) } dd { (bytes(size)) } } }
}
