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
    let rows = ranks.ranks.iter().enumerate().filter(listed);
    let left_out = ranks.ranks.len().saturating_sub(LISTED.max(ranks.limit + 1).min(LISTED + 1));
    let limit = &ranks.ranks[ranks.limit];
    html! {
        section.verdict aria-labelledby="ranks-h" {
            h2 #ranks-h { (grouped(ranks.ranks.len() as u64)) " files side by side" }
            p.lead { (sentence(&ranks.text)) }
            div.wide { table.ranks {
                thead { tr {
                    th scope="col" { "File" } th.bars { span.unseen { "Need and reserved" } }
                    th.number scope="col" { "Reserved" } th.number scope="col" { "Need" }
                    th.number scope="col" { "Waste" } th.number scope="col" { "Failed" }
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
                        td.number { (bytes(peak.reserved.bytes)) } td.number { (bytes(peak.requested)) }
                        td.number { (bytes(report.waste.total())) }
                        td.number { (grouped(report.failed_requests as u64)) }
                        td { (report.verdict.cause.name()) }
                    }
                } }
            } }
            @if left_out > 0 { p.muted { (grouped(left_out as u64)) " files are left out." } }
        }
        (document::report(&limit.file, &limit.report))
    }
}
