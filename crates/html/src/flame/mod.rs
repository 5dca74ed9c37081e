//! The flame graphs: what held the peak, by stack and by path of modules. The outermost is on top; a box is as wide as
//! its share of the bytes.
//!
//! Drawn without a script; with it, a click makes a box as wide as the page, and a word finds boxes.

mod tree;

use maud::{Markup, html};
use tonnage_analysis::report::{HeldModule, HeldStack, PeakReport};

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

/// By whole stack.
pub(crate) fn by_stack(peak: &PeakReport) -> Markup {
    let deep = peak.stacks.iter().any(|it| it.frames.len() >= DEEPEST);
    let words = html! {
        "As wide as its share of what was live; the outermost call on top. "
        span.program-key { "Your program" } " " span.library-key { "libraries" }
    };
    html! {
        (graph("flame", "By stack", &words, &Tree::of(&peak.stacks, peak.requested, peak.blocks, "(smaller stacks)")))
        @if deep { p.muted { "Of stacks deeper than " (DEEPEST) " calls the outermost are left out." } }
    }
}

/// By the path of modules whose `forward` asked, layer by layer where they can be told apart.
pub(crate) fn by_module(peak: &PeakReport) -> Markup {
    let paths = module_paths(&peak.modules);
    let words = html! { "As wide as its share of what was live; the outermost module on top." };
    let tree = Tree::of(&paths, peak.requested, peak.blocks, "(smaller modules)");
    graph("modules", "By module, inside one another", &words, &tree)
}

fn module_paths(modules: &[HeldModule]) -> Vec<HeldStack> {
    let path = |name: &str| name.split(" > ").map(str::to_owned).collect();
    let mut paths = Vec::new();
    for it in modules {
        let layers = it.layers.iter();
        paths.extend(layers.map(|layer| HeldStack {
            frames: path(&layer.module),
            bytes: layer.bytes,
            blocks: layer.blocks,
        }));
        let told = it.layers.iter().fold((0_u64, 0), |(bytes, blocks), layer| {
            (bytes.saturating_add(layer.bytes), blocks + layer.blocks)
        });
        let (bytes, blocks) = (it.bytes.saturating_sub(told.0), it.blocks.saturating_sub(told.1));
        if bytes > 0 {
            let mut frames: Vec<String> = path(it.module.as_deref().unwrap_or("(no module)"));
            if let Some(last) = frames.last_mut().filter(|_| !it.layers.is_empty()) {
                last.push_str(" (other layers)");
            }
            paths.push(HeldStack { frames, bytes, blocks });
        }
    }
    paths
}

/// A graph and its tools, by names that begin with `id`, which the script knows.
fn graph(id: &str, title: &str, words: &Markup, tree: &Tree<'_>) -> Markup {
    let (boxes, whole) = (tree.largest(), tree.bytes());
    let rows = boxes.iter().map(|it| it.depth + 1).max().unwrap_or(1);
    let heading = format!("{id}-h");
    html! {
        h3 id=(heading) { (title) }
        p.under { (words) }
        div.flame-tools id={ (id) "-tools" } hidden {
            label { "Find " input id={ (id) "-find" } type="search" autocomplete="off" spellcheck="false"; }
            button id={ (id) "-all" } type="button" { "Show all" }
            output.said id={ (id) "-said" } aria-live="polite" {}
        }
        svg.flame id=(id) role="group" aria-labelledby=(heading) width="100%" height=(rows * ROW) {
            @for it in &boxes { (frame(it, whole)) }
        }
        @if tree.unlisted > 0 {
            p.muted {
                (bytes(tree.unlisted)) " (" (percent(tree.unlisted, whole))
                ") are from " (tree.rest.trim_matches(['(', ')'])) " and drawn as one box."
            }
        }
        @if boxes.len() < tree.len() {
            p.muted { (grouped(tree.len() - boxes.len())) " boxes too small to see are left out." }
        }
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
    use tonnage_analysis::report::HeldLayer;

    use super::*;

    #[test]
    fn layers_stand_beside_each_other_and_nothing_is_lost() {
        let layer = |module: &str, bytes| HeldLayer { module: module.to_owned(), bytes, blocks: 1 };
        let layers =
            vec![layer("gpt2:608[1] > nn.linear", 50), layer("gpt2:608[0] > nn.linear", 20)];
        let module = |module: Option<&str>, bytes, blocks, layers| HeldModule {
            module: module.map(str::to_owned),
            indexed: None,
            bytes,
            blocks,
            layers,
        };
        let modules =
            [module(Some("gpt2:608 > nn.linear"), 75, 3, layers), module(None, 10, 1, Vec::new())];
        let paths: Vec<_> =
            module_paths(&modules).into_iter().map(|it| (it.frames.join("/"), it.bytes)).collect();
        let expected = [
            ("gpt2:608[1]/nn.linear", 50),
            ("gpt2:608[0]/nn.linear", 20),
            ("gpt2:608/nn.linear (other layers)", 5),
            ("(no module)", 10),
        ];
        assert_eq!(paths, expected.map(|(path, bytes)| (path.to_owned(), bytes)));
    }

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
