//! The flame graph: what held the peak, by stack. The outermost call is on top; a box is as wide as its share
//! of the bytes.
//!
//! Drawn without a script; with it, a click makes a box as wide as the page, and a word finds boxes.

mod tree;

use maud::{Markup, html};
use tonnage_analysis::report::PeakReport;

use crate::figures::{At, bytes, count, grouped, percent};
use crate::text::shown;
use tree::{Shown, Tree};

/// The height of a box, with the gap below it.
const ROW: usize = 20;

/// The longest label inside a box, and the longest text where the pointer rests.
const LABEL: usize = 60;
const TITLE: usize = 240;

/// Boxes narrower than this have no room for a label.
const NARROW: f64 = 0.03;

/// How deep the report follows a stack.
const DEEPEST: usize = 64;

pub(crate) fn graph(peak: &PeakReport) -> Markup {
    let tree = Tree::of(&peak.stacks, peak.requested, peak.blocks);
    let boxes = tree.largest();
    let rows = boxes.iter().map(|it| it.depth + 1).max().unwrap_or(1);
    let deep = peak.stacks.iter().any(|it| it.frames.len() >= DEEPEST);
    html! {
        h3 #flame-h { "By stack" }
        p.under {
            "As wide as its share of what was live; the outermost call on top. "
            span.program-key { "Your program" } " " span.library-key { "libraries" }
        }
        div.flame-tools hidden {
            label { "Find " input #flame-find type="search" autocomplete="off" spellcheck="false"; }
            button #flame-all type="button" { "Show all" }
            output #flame-said.said aria-live="polite" {}
        }
        svg #flame.flame role="group" aria-labelledby="flame-h" width="100%" height=(rows * ROW) {
            @for it in &boxes { (frame(it, peak.requested)) }
        }
        @if tree.unlisted > 0 {
            p.muted {
                (bytes(tree.unlisted)) " (" (percent(tree.unlisted, peak.requested))
                ") are from smaller stacks and drawn as one box."
            }
        }
        @if boxes.len() < tree.len() {
            p.muted { (grouped(tree.len() - boxes.len())) " boxes too small to see are left out." }
        }
        @if deep { p.muted { "Of stacks deeper than " (DEEPEST) " calls the outermost are left out." } }
    }
}

fn frame(it: &Shown<'_>, whole: u64) -> Markup {
    let size = format!(
        "{}, {}, {}",
        tonnage_events::Bytes(it.bytes),
        percent(it.bytes, whole),
        count(it.blocks, "block", "blocks")
    );
    html! {
        svg.frame.program[it.is_program].narrow[it.wide < NARROW] x=(At(it.at)) y=(it.depth * ROW)
            width=(At(it.wide)) height=(ROW - 1) role="button" tabindex=(if it.depth == 0 { "0" } else { "-1" }) {
            title { (shown(it.name, TITLE)) "\n" (size) }
            rect width="100%" height="100%" {}
            text x="4" y="14" { (shown(label(it.name), LABEL)) }
        }
    }
}

/// `file:line function` without the folders of its file, the function first: what is read at a glance.
fn label(frame: &str) -> &str {
    let folders =
        frame.find(':').map_or(0, |end| frame[..end].rfind(['/', '\\']).map_or(0, |at| at + 1));
    &frame[folders..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_no_folders() {
        for (frame, text) in [
            ("/home/me/train.py:3 step", "train.py:3 step"),
            ("train.py:3 a/b", "train.py:3 a/b"),
            ("everything", "everything"),
            ("", ""),
            ("C:\\x\\t.py:1 f", "C:\\x\\t.py:1 f"),
        ] {
            assert_eq!(label(frame), text);
        }
    }
}
