//! Remedies for single operations that take more than they need.

use super::{Found, Remedy};
use crate::report::held::{Block, Held, sum};
use crate::report::origins::{Function, Work};
use crate::report::purpose::Confidence;
use crate::report::verdict::Cause;

/// All pairs of two tensors take so many times the tensors.
const PAIRS: u64 = 64;
/// Times that something has grown.
const GROWN: usize = 3;

/// Blocks that attention writes for all pairs of positions: what softmax gives, in two layers or more, and what is as large.
fn attention_scores<'h>(held: &'h Held<'_>) -> Vec<&'h Block> {
    let softmax = |it: &&Block| it.is_in(Function::Softmax) && it.origin.modules >= 2;
    let of_softmax: Vec<_> = held.of_the_pass().filter(softmax).collect();
    let Some(scores) = of_softmax.iter().map(|it| it.bytes).max() else { return Vec::new() };
    if of_softmax.iter().filter(|it| it.bytes == scores).count() < 2 {
        return Vec::new();
    }
    let like = |it: &&Block| {
        let is_mask = it.is_in(Function::Dropout) && it.bytes.saturating_mul(4) >= scores;
        let is_scores = it.bytes == scores && it.origin.modules >= 2;
        is_scores || (is_mask && it.bytes <= scores)
    };
    held.of_the_pass().filter(|it| it.is_by(Work::Forward)).filter(like).collect()
}

/// The line of the program that asked last, if it was outside all modules: its blocks, with the request that failed.
fn last_line<'h>(held: &'h Held<'_>) -> Vec<&'h Block> {
    let last = held.asked.as_ref().filter(|it| it.is_by(Work::Program) && it.stack.is_some());
    let stack = last.map(|it| it.stack);
    held.with_asked().filter(|it| Some(it.stack) == stack).collect()
}

/// Blocks that are asked for at one line, each larger than the one before, which goes then.
fn grows(held: &Held<'_>, asked: &Block) -> bool {
    let before = held.ever(|it| it.stack == asked.stack && it.event < asked.event);
    let before: Vec<_> = before.collect();
    let sizes = before.iter().map(|it| it.requested).chain([asked.bytes]);
    let sizes: Vec<_> = sizes.filter(|&it| it > 0).collect();
    let in_turn = before.windows(2).all(|pair| pair[0].free_requested > pair[1].allocated);
    sizes.len() > GROWN && sizes.windows(2).all(|pair| pair[0] < pair[1]) && in_turn
}

pub(super) const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "sdpa",
        signature: |scene| {
            let held = scene.held()?;
            let scores = attention_scores(held);
            Found::all_of(held, scores.iter().copied(), Confidence::High)
        },
        cause: Cause::Need,
        change: "let attention write no scores: scaled_dot_product_attention()",
        cost: "none; attention weights cannot be looked at",
        code: &[
            "mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            "model = AutoModel.from_pretrained(name, attn_implementation=\"sdpa\")    # of transformers",
        ],
    },
    Remedy {
        name: "preallocate",
        signature: |scene| {
            let held = scene.held()?;
            let last = || held.live_by(Work::Program).max_by_key(|it| it.bytes).copied();
            let asked = held.asked.or_else(last);
            let asked = asked.filter(|it| it.is_by(Work::Program) && it.stack.is_some())?;
            // It has its last size from the start.
            let bytes = held.saved_without(|it| it.stack == asked.stack, asked.bytes);
            let found = Found::some(bytes, Confidence::High, held.line(&asked));
            found.filter(|_| grows(held, &asked))
        },
        cause: Cause::GrowingTensor,
        change: "write into a tensor that has its size from the start: what grows by cat() is there twice each time",
        cost: "none, where the size is known",
        code: &[
            "all = torch.empty(rows, width, device=\"cuda\")    # before the loop",
            "all[start : start + len(new)] = new    # in it, instead of cat()",
        ],
    },
    Remedy {
        name: "topk",
        signature: |scene| {
            // A sort has its input again, and where each came from, in integers of twice the bytes.
            let held = scene.held()?;
            let line = last_line(held);
            let stack = line.first()?.stack;
            let is_input =
                |bytes: u64| held.blocks.iter().any(|it| it.bytes == bytes && it.stack != stack);
            let has = |bytes: u64| line.iter().any(|it| it.is_as_large_as(bytes));
            let sorted = line
                .iter()
                .find(|it| is_input(it.bytes) && it.bytes.checked_mul(2).is_some_and(has))?;
            Found::some(sum(line.iter().copied()), Confidence::Medium, held.line(sorted))
        },
        cause: Cause::Need,
        change: "if only the best are used, topk() instead of a full sort",
        cost: "none",
        code: &[
            "best = scores.topk(50, dim=1)    # instead of scores.sort(dim=1, descending=True)",
        ],
    },
    Remedy {
        name: "cdist",
        signature: |scene| {
            let held = scene.held()?;
            let line = last_line(held);
            let (asked, stack) = (held.asked?.bytes, line.first()?.stack);
            let equal = line.iter().filter(|it| it.is_as_large_as(asked)).count();
            let inputs = held.blocks.iter().filter(|it| it.stack != stack && !it.is_workspace);
            let largest = inputs.map(|it| it.bytes).max()?;
            let found = Found::some(sum(line.into_iter()), Confidence::Medium, None);
            found.filter(|_| equal >= 2 && asked >= largest.saturating_mul(PAIRS))
        },
        cause: Cause::Need,
        change: "if these are all pairs, let one operation compute them without all differences: torch.cdist(), matmul() or parts",
        cost: "none; rounding may differ",
        code: &[
            "distances = torch.cdist(a, b)    # instead of (a[:, None] - b[None]).square().sum(-1).sqrt()",
        ],
    },
];
