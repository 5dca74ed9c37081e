//! Several files side by side, and the report of the one that is the limit.

use maud::{Markup, html};
use tonnage_analysis::report::Ranks;

use crate::document;
use crate::figures::{At, bytes, grouped, share};
use crate::text::{name, sentence};

/// The most files that the table lists; the limit is always among them.
const LISTED: usize = 1_000;

pub(crate) fn ranks(ranks: &Ranks) -> Markup {
    let most = ranks.ranks.iter().map(|it| it.report.peak.reserved.bytes).max().unwrap_or(0);
    let listed = |&(place, _): &(usize, _)| place < LISTED || place == ranks.limit;
    let rows: Vec<_> = ranks.ranks.iter().enumerate().filter(listed).collect();
    let left_out = ranks.ranks.len() - rows.len();
    html! {
        header {
            p.brand { (document::BRAND) }
            h1 #ranks-h { (grouped(ranks.ranks.len())) " files side by side" }
        }
        section.verdict aria-labelledby="ranks-h" {
            p.lead { (sentence(&ranks.text)) }
            div.wide { table.ranks {
                thead { tr {
                    th scope="col" { "File" } th.bars { span.unseen { "Need and reserved" } }
                    th.number scope="col" { "Reserved" } th.number.exact scope="col" { "Need" }
                    th.number scope="col" { "Waste" } th.number.exact scope="col" { "Failed" }
                    th scope="col" { "Cause" }
                } }
                tbody { @for (place, row) in rows {
                    @let (report, peak) = (&row.report, &row.report.peak);
                    tr.limit[place == ranks.limit] {
                        th scope="row" {
                            (name(&row.file))
                            @if place == ranks.limit { " " span.cause { "the limit" } }
                        }
                        td.bars { svg.bar aria-hidden="true" {
                            rect.rest width=(At(share(peak.reserved.bytes, most))) height="100%" {}
                            rect width=(At(share(peak.requested, most))) height="100%" {}
                        } }
                        td.number { (bytes(peak.reserved.bytes)) } td.number.exact { (bytes(peak.requested)) }
                        td.number { (bytes(report.waste.total())) }
                        td.number.exact { (grouped(report.failed_requests)) }
                        td { (report.verdict.cause.name()) }
                    }
                } }
            } }
            @if left_out > 0 { p.muted { (grouped(left_out)) " files are left out." } }
        }
        @if let Some(limit) = ranks.ranks.get(ranks.limit) {
            (document::report("The report of the limit", &limit.file, &limit.report))
        }
    }
}
