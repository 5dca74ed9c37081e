//! Reserved memory where it first peaks, taken apart: a bar, its legend, and whom to blame.

use maud::{Markup, html};
use tonnage_analysis::HistoryKind;
use tonnage_analysis::report::{Blame, Report};

use crate::figures::{At, bytes, count, grouped, percent, share};
use crate::text::line;

/// One part of the bar.
struct Part<'a> {
    name: &'static str,
    meaning: &'static str,
    bytes: u64,
    line: Option<&'a str>,
}

pub(crate) fn reserved(report: &Report) -> Markup {
    let peak = &report.peak.reserved;
    let requested = Part {
        name: "requested",
        meaning: "asked for and live",
        bytes: peak.requested,
        line: None,
    };
    let waste = report.waste.kinds.iter().filter(|it| it.bytes > 0).map(|it| Part {
        name: it.kind.name(),
        meaning: it.kind.meaning(),
        bytes: it.bytes,
        line: it.lines.first().and_then(|it| it.line.as_deref()),
    });
    let mut parts: Vec<_> = [requested].into_iter().chain(waste).collect();
    let is_state = report.history == HistoryKind::None;
    if is_state {
        // What is free now says nothing of why.
        parts.truncate(1);
        let meaning = "not live: cached, pending or rounded up";
        parts.push(Part { name: "cached", meaning, bytes: report.waste.total(), line: None });
    }
    let has_lines = parts.iter().any(|it| it.line.is_some());
    html! {
        section aria-labelledby="reserved-h" {
            h2 #reserved-h { "Reserved memory" }
            p.under {
                @match report.history {
                    HistoryKind::None => "When the snapshot was taken. ",
                    _ => { "Where it first peaks, after entry " (grouped(peak.event)) ". " },
                }
                "Every byte counts once."
            }
            (stacked(&parts, peak.bytes))
            table.parts {
                thead { tr {
                    th scope="col" { "Part" } th.number scope="col" { "Size" }
                    th.number.exact scope="col" { "Bytes" } th.number scope="col" { "Share" }
                    @if has_lines { th.exact scope="col" { "Line to blame" } }
                } }
                tbody { @for part in &parts { (row(part, peak.bytes, has_lines)) } }
                tfoot { tr {
                    th scope="row" { "reserved" } td.number { (bytes(peak.bytes)) }
                    td.number.exact { (grouped(peak.bytes)) } td.number { "100.0 %" }
                    @if has_lines { td.exact {} }
                } }
            }
            @if !is_state { (blame(&report.blame)) }
        }
    }
}

fn stacked(parts: &[Part<'_>], whole: u64) -> Markup {
    let mut at = 0.0;
    let placed = parts.iter().map(|part| {
        let wide = share(part.bytes, whole);
        at += wide;
        (part, at - wide, wide)
    });
    let placed: Vec<_> = placed.collect();
    let said: Vec<_> =
        parts.iter().map(|part| format!("{} {}", part.name, percent(part.bytes, whole))).collect();
    html! {
        svg.stacked role="img" aria-label=(said.join(", ")) {
            @for (part, at, wide) in placed {
                rect class={ "fill-" (part.name) } x=(At(at)) width=(At(wide)) height="100%" {
                    title { (part.name) ": " (percent(part.bytes, whole)) }
                }
            }
        }
    }
}

fn row(part: &Part<'_>, whole: u64, has_lines: bool) -> Markup {
    html! {
        tr {
            th scope="row" {
                svg.swatch aria-hidden="true" {
                    rect class={ "fill-" (part.name) } width="100%" height="100%" {}
                }
                (part.name) " " span.muted { (part.meaning) }
            }
            td.number { (bytes(part.bytes)) }
            td.number.exact { (grouped(part.bytes)) }
            td.number { (percent(part.bytes, whole)) }
            @if has_lines { td.exact { @if part.line.is_some() { (line(part.line)) } } }
        }
    }
}

/// For each kind the lines and the largest blocks.
fn blame(blame: &[Blame]) -> Markup {
    html! {
        @for it in blame.iter().filter(|it| !it.blocks.is_empty()) {
            details {
                summary { "Blocks to blame for " (it.kind) " " span.muted { (bytes(it.bytes)) } }
                div.two {
                    table {
                        thead { tr {
                            th scope="col" { "Line" } th.number scope="col" { "Of no use" }
                            th.number scope="col" { "Blocks" }
                        } }
                        tbody { @for it in &it.lines { tr {
                            td { (line(it.line.as_deref())) } td.number { (bytes(it.bytes)) }
                            td.number { (grouped(it.blocks)) }
                        } } }
                    }
                    table {
                        thead { tr {
                            th scope="col" { (count(it.blocks.len(), "Largest block", "Largest blocks")) }
                            th.number scope="col" { "Size" } th.number scope="col" { "Of no use" }
                            th.number scope="col" { "Stream" }
                        } }
                        tbody { @for it in &it.blocks { tr {
                            td { code { (format!("{:#x}", it.address)) } }
                            td.number { (bytes(it.size)) } td.number { (bytes(it.wasted)) }
                            td.number { (it.stream) }
                        } } }
                    }
                }
            }
        }
    }
}
