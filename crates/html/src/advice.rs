//! What to change, with lines to copy.

use maud::{Markup, html};
use tonnage_analysis::report::Report;

use crate::figures::bytes;
use crate::text::{capital, name, sentence, shown};

/// The longest line to copy; the report makes none that are longer.
const LINE: usize = 600;

pub(crate) fn advice(report: &Report) -> Markup {
    if report.advice.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="advice-h" {
            h2 #advice-h { "What to change" }
            ol.advice {
                @for it in &report.advice {
                    li {
                        p.saves {
                            @if let Some(served) = it.serves { strong { (bytes(served)) } " served" }
                            @else { strong { (bytes(it.bytes)) } " saved" }
                            ", " (it.basis.words())
                        }
                        div {
                            p { (sentence(&capital(&it.change))) "." }
                            @if let Some(line) = &it.line { p.where { "At " (name(line)) } }
                            @if !it.code.is_empty() { pre { code { @for line in &it.code { (shown(line, LINE)) "\n" } } } }
                            p.muted {
                                "Costs: " (it.cost) ". Confidence: " (it.confidence.name()) "."
                            }
                        }
                    }
                }
            }
        }
    }
}
