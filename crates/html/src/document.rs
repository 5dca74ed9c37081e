//! The whole page: its head, its policy, the order of its parts.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};
use tonnage_analysis::report::Report;

use crate::text::{sentence, shown};
use crate::{advice, growth, ooms, peak, pinned, timeline, verdict, waste};

/// Both without `</style` or `</script`: a test says so.
const STYLE: &str = include_str!("assets/report.css");
const SCRIPT: &str = include_str!("assets/report.js");

/// The longest title: tabs show less.
const TITLE: usize = 120;

/// A page with this content.
pub(crate) fn document(title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="referrer" content="no-referrer";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (shown(title, TITLE)) " · " (BRAND) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (content) }
                footer { "tonnage " (env!("CARGO_PKG_VERSION")) ". Sizes are powers of 1024; entries count from 0." }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// What the page is, above the first heading.
pub(crate) const BRAND: &str = "Tonnage memory report";

/// The report of one file; `over` stands above its name.
pub(crate) fn report(over: &str, file: &str, report: &Report) -> Markup {
    html! {
        (verdict::header(over, file, report))
        (verdict::verdict(report))
        (verdict::figures(report))
        (advice::advice(report))
        (waste::reserved(report))
        (timeline::timeline(report))
        (peak::peak(report))
        (growth::growth(report))
        (ooms::ooms(report))
        (pinned::pinned(report))
        @if !report.notes.is_empty() {
            section aria-labelledby="notes-h" {
                h2 #notes-h { "Not in the file, concluded" }
                ul { @for note in &report.notes { li { (sentence(note)) } } }
            }
        }
    }
}

/// Nothing may be loaded, and nothing may run but the one script and the one style sheet.
fn policy() -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_style_nor_script_ends_its_element_or_names_an_address() {
        for text in [STYLE, SCRIPT] {
            for part in ["</", "<!--", "://", "url(", "@import", "innerHTML", "eval"] {
                assert!(!text.contains(part), "{part}");
            }
        }
    }
}
