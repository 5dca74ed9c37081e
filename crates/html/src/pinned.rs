//! Pinned memory of the host.

use maud::{Markup, html};
use tonnage_analysis::report::Report;

use crate::figures::{bytes, grouped};
use crate::ooms::part;
use crate::text::line;

/// Lines that are shown; the JSON has more.
const LINES: usize = 6;

pub(crate) fn pinned(report: &Report) -> Markup {
    let Some(it) = &report.pinned else { return html! {} };
    html! {
        section aria-labelledby="pinned-h" {
            h2 #pinned-h { "Pinned memory of the host" }
            p.under { "Host memory that devices copy from and to; part of no figure above." }
            dl.state {
                (part("reserved", it.reserved)) (part("handed out", it.allocated)) (part("cached", it.cached))
                @if let Some(peak) = it.reserved_peak { (part("reserved at most", peak)) }
                @if let Some(peak) = it.allocated_peak { (part("handed out at most", peak)) }
            }
            @if !it.lines.is_empty() {
                ul {
                    @for held in it.lines.iter().take(LINES) {
                        li {
                            (bytes(held.bytes)) " in " (grouped(held.blocks as u64)) " blocks: "
                            (line(held.line.as_deref()))
                        }
                    }
                }
            }
        }
    }
}
