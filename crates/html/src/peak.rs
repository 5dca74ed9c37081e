//! What held the memory when most was live: by purpose, by line, by module, by a library's line, the largest blocks, by stack.

use maud::{Markup, html};
use tonnage_analysis::report::{Holder, PeakReport, Report};

use crate::figures::{bar, bytes, count, duration, grouped, percent};
use crate::flame;
use crate::text::{line, name};

pub(crate) fn peak(report: &Report) -> Markup {
    let peak = &report.peak;
    let has_lines = peak.sites.iter().any(|it| it.line.is_some());
    html! {
        section aria-labelledby="peak-h" {
            h2 #peak-h { "What was live when most was" }
            p.under {
                (bytes(peak.requested)) " in " (count(peak.blocks, "block", "blocks"))
                ", after entry " (grouped(peak.event))
                @if let Some(iteration) = peak.iteration { ", in iteration " (grouped(iteration)) }
                "."
            }
            div.two {
                div { h3 { "By purpose" } (purposes(peak)) }
                @if has_lines { div { h3 { "By line" } (lines(peak)) } }
                @if !peak.modules.is_empty() { div { h3 { "By module" } (modules(peak)) } }
                @if !peak.libraries.is_empty() {
                    div { h3 { "By line of a library" } (libraries(peak)) }
                }
            }
            @if !peak.modules.is_empty() { (flame::by_module(peak)) }
            @if has_lines { (flame::by_stack(peak)) }
            h3 { "Largest blocks" }
            (largest(peak))
        }
    }
}

fn purposes(peak: &PeakReport) -> Markup {
    let most = peak.purposes.first().map_or(0, |it| it.bytes);
    html! {
        table {
            thead { tr {
                th scope="col" { "Purpose" } th.bars { span.unseen { "Share of the largest" } }
                th.number scope="col" { "Size" } th.number scope="col" { "Blocks" }
                th scope="col" { "Sure" }
            } }
            tbody { @for it in &peak.purposes { tr {
                th scope="row" { (it.purpose.name()) }
                td.bars { (bar(it.bytes, most)) } td.number { (bytes(it.bytes)) }
                td.number { (grouped(it.blocks)) } td.muted { (it.confidence.name()) }
            } } }
        }
    }
}

fn lines(peak: &PeakReport) -> Markup {
    let most = peak.sites.first().map_or(0, |it| it.bytes);
    let listed: u64 = peak.sites.iter().fold(0, |sum, it| sum.saturating_add(it.bytes));
    let rest = peak.requested.saturating_sub(listed);
    html! {
        table {
            thead { tr {
                th scope="col" { "Line" } th.bars { span.unseen { "Share of the largest" } }
                th.number scope="col" { "Size" } th.number scope="col" { "Blocks" }
            } }
            tbody {
                @for it in &peak.sites { tr {
                    td { (line(it.line.as_deref())) }
                    td.bars { (bar(it.bytes, most)) } td.number { (bytes(it.bytes)) }
                    td.number { (grouped(it.blocks)) }
                } }
                @if rest > 0 { tr {
                    td.muted { "all other lines" }
                    td.bars { (bar(rest, most)) } td.number { (bytes(rest)) } td {}
                } }
            }
        }
    }
}

fn modules(peak: &PeakReport) -> Markup {
    let most = peak.modules.first().map_or(0, |it| it.bytes);
    html! {
        table {
            thead { tr {
                th scope="col" { "Module" } th.bars { span.unseen { "Share of the largest" } }
                th.number scope="col" { "Size" } th.number scope="col" { "Blocks" }
            } }
            tbody { @for it in &peak.modules { tr {
                td { @match it.indexed.as_ref().or(it.module.as_ref()) {
                    Some(module) => { (name(module)) }
                    None => { span.muted { "(no module)" } }
                } }
                td.bars { (bar(it.bytes, most)) } td.number { (bytes(it.bytes)) }
                td.number { (grouped(it.blocks)) }
            } } }
        }
    }
}

fn libraries(peak: &PeakReport) -> Markup {
    let most = peak.libraries.first().map_or(0, |it| it.bytes);
    html! {
        table {
            thead { tr {
                th scope="col" { "Line" } th.bars { span.unseen { "Share of the largest" } }
                th.number scope="col" { "Size" } th.number scope="col" { "Blocks" }
            } }
            tbody { @for it in &peak.libraries { tr {
                td { @match &it.line {
                    Some(line) => { (name(line)) }
                    None => { span.muted { "(no line of a library)" } }
                } }
                td.bars { (bar(it.bytes, most)) } td.number { (bytes(it.bytes)) }
                td.number { (grouped(it.blocks)) }
            } } }
        }
    }
}

fn largest(peak: &PeakReport) -> Markup {
    let has_lines = peak.top.iter().any(|it| it.line.is_some());
    html! {
        table.largest {
            thead { tr {
                th.number scope="col" { "Size" } th.number.exact scope="col" { "Share" }
                th scope="col" { "Purpose (sure)" } th scope="col" { "Lived" }
                @if has_lines { th scope="col" { "Line" } }
            } }
            tbody { @for it in &peak.top { tr {
                td.number { (bytes(it.bytes)) }
                td.number.exact { (percent(it.bytes, peak.requested)) }
                td { (it.purpose.name()) " " span.muted { "(" (it.confidence.name()) ")" } } td { (lived(it)) }
                @if has_lines { td { (line(it.line.as_deref())) } }
            } } }
        }
    }
}

fn lived(it: &Holder) -> String {
    match (it.lived_us, it.allocated, it.freed) {
        (Some(us), _, _) => duration(us),
        (None, _, None) => "never freed".to_owned(),
        (None, None, Some(_)) => "older than the history".to_owned(),
        (None, Some(from), Some(to)) => count(to.saturating_sub(from), "entry", "entries"),
    }
}
