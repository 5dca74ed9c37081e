//! What grows from one iteration to the next.

use maud::{Markup, html};
use tonnage_analysis::HistoryKind;
use tonnage_analysis::report::{Growth, GrowthKind, Report};

use crate::figures::{At, bytes, count, grouped, share};
use crate::text::line;

pub(crate) fn growth(report: &Report) -> Markup {
    let growth = &report.growth;
    if report.history == HistoryKind::None {
        return html! {};
    }
    let Some(told_by) = growth.told_by else {
        return html! {
            section aria-labelledby="growth-h" {
                h2 #growth-h { "Growth" }
                p.under { "No iterations were found." }
            }
        };
    };
    let (told_by, kind) = (told_by.words(), growth.kind.words());
    html! {
        section aria-labelledby="growth-h" {
            h2 #growth-h { "Growth: " (kind) }
            p.under {
                (count(growth.iterations, "iteration", "iterations")) ", told by " (told_by) "."
            }
            (each(growth))
            (kinds(growth))
        }
    }
}

fn kinds(growth: &Growth) -> Markup {
    let kinds = [
        ("leaked", growth.leak),
        ("longer inputs", growth.longer_inputs),
        ("fragmentation", growth.fragmentation),
    ];
    if kinds.iter().all(|&(_, bytes)| bytes == 0) {
        return html! {};
    }
    let named: Vec<_> = growth.lines.iter().filter(|it| it.line.is_some()).collect();
    html! {
        div.two {
            table {
                thead { tr { th scope="col" { "What grew" } th.number scope="col" { "In all" } } }
                tbody { @for (word, size) in kinds { @if size > 0 { tr {
                    th scope="row" { (word) } td.number { (bytes(size)) }
                } } } }
            }
            @if !named.is_empty() { table {
                thead { tr { th scope="col" { "From which line" } th {} th.number scope="col" { "In all" } } }
                tbody { @for it in named { tr {
                    td { (line(it.line.as_deref())) }
                    td { @if it.kind == GrowthKind::Leak { "leaks" } @else { "grows" } }
                    td.number { (bytes(it.bytes)) }
                } } }
            } }
        }
    }
}

/// The width of an iteration's bar and the gap beside it, if there is room.
const BAR: usize = 44;

/// A bar for each iteration; its figures in a table.
fn each(growth: &Growth) -> Markup {
    let each = &growth.each;
    let most = each.iter().map(|it| it.reserved.max(it.requested)).max().unwrap_or(0);
    let wide = 1.0 / each.len().max(1) as f64;
    let left_out = growth.iterations.saturating_sub(each.len());
    html! {
        svg.iterations role="img" width=(each.len() * BAR)
            aria-label="Most reserved and most live bytes of each iteration; the table below has the figures" {
            @for (place, it) in each.iter().enumerate() {
                @let (high, low) = (share(it.reserved, most), share(it.requested, most));
                @let x = At((place as f64 + 0.12) * wide);
                rect.reserved x=(x) width=(At(wide * 0.76)) y=(At(1.0 - high)) height=(At(high)) {}
                rect.requested x=(x) width=(At(wide * 0.76)) y=(At(1.0 - low)) height=(At(low)) {}
            }
        }
        details {
            summary {
                "Each iteration: "
                svg.swatch aria-hidden="true" { rect.requested width="100%" height="100%" {} }
                "most live, "
                svg.swatch aria-hidden="true" { rect.reserved width="100%" height="100%" {} }
                "most reserved"
                @if left_out > 0 {
                    span.muted { " (" (grouped(left_out)) " in the middle are left out)" }
                }
            }
            table {
                thead { tr {
                    th.number scope="col" { "Iteration" } th.number scope="col" { "First entry" }
                    th.number scope="col" { "Most live" } th.number scope="col" { "Not kept" }
                    th.number scope="col" { "Leaked" } th.number scope="col" { "Most reserved" }
                } }
                tbody { @for it in each { tr {
                    td.number { (it.number) } td.number { (grouped(it.first_event)) }
                    td.number { (bytes(it.requested)) } td.number { (bytes(it.passing)) }
                    td.number { (bytes(it.leaked)) } td.number { (bytes(it.reserved)) }
                } } }
            }
        }
    }
}
