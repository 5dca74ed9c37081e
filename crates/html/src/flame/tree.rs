//! Stacks with common beginnings, joined into a tree.
//!
//! In:  the report's stacks, outermost call first.
//! Out: [`Shown`] boxes, at most [`MOST`]: the largest, each with the calls that lead to it.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_analysis::call_site;
use tonnage_analysis::report::HeldStack;
use tonnage_events::Frame;

/// The most boxes of a graph, and the narrowest: a third of a dot on a wide page.
const MOST: usize = 2_000;
const NARROWEST: f64 = 0.0003;

struct Node<'a> {
    name: &'a str,
    parent: usize,
    depth: usize,
    bytes: u64,
    blocks: usize,
}

/// The stacks as a tree; its root is first.
pub(super) struct Tree<'a> {
    nodes: Vec<Node<'a>>,
    /// Bytes of stacks that the report does not list.
    pub(super) unlisted: u64,
    /// What they are called.
    pub(super) rest: &'static str,
}

/// A box to draw. Places and widths are shares of the whole.
pub(super) struct Shown<'a> {
    pub(super) name: &'a str,
    pub(super) depth: usize,
    pub(super) at: f64,
    pub(super) wide: f64,
    pub(super) bytes: u64,
    pub(super) blocks: usize,
    /// Whether it is of the user's program.
    pub(super) is_program: bool,
}

impl<'a> Tree<'a> {
    pub(super) fn of(
        stacks: &'a [HeldStack],
        bytes: u64,
        blocks: usize,
        rest: &'static str,
    ) -> Self {
        let root = Node { name: "everything", parent: 0, depth: 0, bytes, blocks };
        let mut tree = Self { nodes: vec![root], unlisted: 0, rest };
        let mut known = FxHashMap::<(usize, &str), usize>::default();
        let (mut listed, mut listed_blocks) = (0_u64, 0_usize);
        for stack in stacks {
            listed = listed.saturating_add(stack.bytes);
            listed_blocks += stack.blocks;
            let nameless = ["(no stack)"];
            let frames: &mut dyn Iterator<Item = &str> = if stack.frames.is_empty() {
                &mut nameless.into_iter()
            } else {
                &mut stack.frames.iter().map(String::as_str)
            };
            let mut at = 0;
            for name in frames {
                at = *known.entry((at, name)).or_insert_with(|| tree.add(name, at));
                let node = &mut tree.nodes[at];
                node.bytes = node.bytes.saturating_add(stack.bytes);
                node.blocks += stack.blocks;
            }
        }
        tree.unlisted = bytes.saturating_sub(listed);
        if tree.unlisted > 0 {
            let rest = tree.add(rest, 0);
            tree.nodes[rest].bytes = tree.unlisted;
            tree.nodes[rest].blocks = blocks.saturating_sub(listed_blocks);
        }
        tree
    }

    fn add(&mut self, name: &'a str, parent: usize) -> usize {
        let depth = self.nodes[parent].depth + 1;
        self.nodes.push(Node { name, parent, depth, bytes: 0, blocks: 0 });
        self.nodes.len() - 1
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> u64 {
        self.nodes[0].bytes
    }

    /// How many boxes there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The boxes that are drawn, each behind the one it is part of.
    pub(super) fn largest(&self) -> Vec<Shown<'a>> {
        let whole = self.nodes[0].bytes.max(1) as f64;
        // A call has no more bytes than the one that leads to it, which therefore comes first.
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|&it| (u64::MAX - self.nodes[it].bytes, self.nodes[it].depth, it));
        order.truncate(MOST);
        let mut starts = vec![None; self.nodes.len()];
        let mut filled = vec![0_u64; self.nodes.len()];
        let mut shown = Vec::new();
        for it in order {
            let node = &self.nodes[it];
            let wide = node.bytes as f64 / whole;
            let start: Option<u64> = if it == 0 { Some(0) } else { starts[node.parent] };
            let Some(start) = start.filter(|_| it == 0 || wide >= NARROWEST) else { continue };
            let at = if it == 0 { 0 } else { start.saturating_add(filled[node.parent]) };
            if it != 0 {
                filled[node.parent] = filled[node.parent].saturating_add(node.bytes);
            }
            starts[it] = Some(at);
            shown.push(Shown {
                name: node.name,
                depth: node.depth,
                at: at as f64 / whole,
                wide: if it == 0 { 1.0 } else { wide },
                bytes: node.bytes,
                blocks: node.blocks,
                is_program: is_program(node.name),
            });
        }
        shown
    }
}

/// Whether a frame, as `file:line function`, is of the user's program.
fn is_program(frame: &str) -> bool {
    let file = frame.char_indices().filter(|&(_, c)| c == ':').map(|(at, _)| at).find(|&at| {
        let rest = &frame[at + 1..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        digits > 0 && rest[digits..].starts_with(' ')
    });
    let Some(end) = file else { return false };
    let filename = Arc::from(&frame[..end]);
    call_site(&[Frame { name: Arc::from(""), filename, line: 0 }]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &[&str], bytes: u64) -> HeldStack {
        HeldStack { frames: frames.iter().map(|&it| it.to_owned()).collect(), bytes, blocks: 1 }
    }

    #[test]
    fn common_calls_are_one_box_and_boxes_lie_inside_their_callers() {
        let stacks = [
            stack(&["a", "b", "c"], 50),
            stack(&["a", "b"], 20),
            stack(&["d", "c"], 20),
            stack(&[], 5),
        ];
        let tree = Tree::of(&stacks, 100, 9, "(smaller stacks)");
        let shown = tree.largest();
        let names: Vec<_> =
            shown.iter().map(|it| (it.name, it.depth, it.bytes, (it.at * 100.0) as u64)).collect();
        assert_eq!(
            names,
            [
                ("everything", 0, 100, 0),
                ("a", 1, 70, 0),
                ("b", 2, 70, 0),
                ("c", 3, 50, 0),
                ("d", 1, 20, 70),
                ("c", 2, 20, 70),
                ("(no stack)", 1, 5, 90),
                ("(smaller stacks)", 1, 5, 95),
            ]
        );
        assert_eq!(tree.unlisted, 5);
    }

    #[test]
    fn a_graph_of_many_stacks_has_a_bound() {
        let names: Vec<String> = (0..3_000).map(|it| format!("f{it}")).collect();
        let stacks: Vec<_> = names.iter().map(|it| stack(&["main", it], 1)).collect();
        let tree = Tree::of(&stacks, 3_000, 3_000, "(smaller stacks)");
        assert_eq!(tree.len(), 3_002);
        assert_eq!(tree.largest().len(), MOST);
    }

    #[test]
    fn frames_of_libraries_are_not_the_program() {
        for (frame, program) in [
            ("train.py:7 step", true),
            ("/v/lib/python3.12/site-packages/torch/a.py:7 f", false),
            ("a:b.py:12 operator new(int)", true),
            ("(no stack)", false),
            ("x.cpp:3 y", false),
        ] {
            assert_eq!(is_program(frame), program, "{frame}");
        }
    }
}
