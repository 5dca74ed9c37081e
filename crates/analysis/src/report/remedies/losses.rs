//! Remedies for scores of many classes.

use super::{Found, PARTS, Remedy};
use crate::report::held::{Block, Held, sum};
use crate::report::origins::{Function, Work};
use crate::report::purpose::{Confidence, Purpose};
use crate::report::verdict::Cause;

/// Sizes that differ by less than this part are those of one tensor, with or without its last position.
const ALIKE: u64 = 50;

fn is_like(bytes: u64, other: u64) -> bool {
    bytes.abs_diff(other) <= other / ALIKE
}

/// Scores that a line copies to twice their bytes, right behind the layer that makes them, for a loss.
fn upcast<'h>(held: &'h Held<'_>) -> Option<&'h Block> {
    let pass = held.pass();
    let for_a_loss = |it: &Block| it.is_in(Function::Loss);
    let pairs = held.blocks.windows(2).filter(|pair| {
        let [scores, copy] = [&pair[0], &pair[1]];
        scores.is_in(Function::Linear)
            && scores.event >= pass
            && copy.bytes == scores.bytes.saturating_mul(2)
            && !copy.is_in(Function::Linear)
            && held.with_asked().any(|it| for_a_loss(it) && is_like(it.bytes, copy.bytes))
    });
    pairs.map(|pair| &pair[1]).max_by_key(|it| it.bytes)
}

/// Blocks of the program that are as large as the scores, written right behind one of twice the size at the same line: integers
/// for every class, and the same as numbers.
fn one_hot<'h>(held: &'h Held<'_>) -> Option<&'h Block> {
    let pass = held.pass();
    let scores =
        |bytes: u64| held.blocks.iter().any(|it| it.is_in(Function::Linear) && it.bytes == bytes);
    let mut targets = held.live_by(Work::Program).filter(|it| it.event >= pass);
    targets.find(|it| {
        let wide = |other: &Block| {
            let doubled = it.bytes.checked_mul(2) == Some(other.bytes);
            other.stack == it.stack && doubled && other.event < it.event
        };
        scores(it.bytes) && held.ever(wide).next().is_some()
    })
}

pub(super) const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "loss_in_parts",
        signature: |scene| {
            let (bytes, blocks) = scene.now.of_the_loss;
            let line = scene.line_of(Purpose::Activations);
            let found = Found::some(bytes - bytes / PARTS, Confidence::Medium, line);
            found.filter(|_| blocks >= 2)
        },
        cause: Cause::Need,
        change: "compute the loss over all classes in parts of the sequence, so that not all scores are there at once",
        cost: "the last layer runs forward twice",
        code: &[
            "def part(hidden, labels):    # instead of one cross_entropy over all of them",
            "    return F.cross_entropy(head(hidden), labels, reduction=\"sum\")",
            "parts = zip(hidden.flatten(0, 1).chunk(8), labels.flatten().chunk(8))",
            "loss = sum(checkpoint(part, *it, use_reentrant=False) for it in parts) / labels.numel()",
        ],
    },
    Remedy {
        name: "no_upcast",
        signature: |scene| {
            let held = scene.held()?;
            let copy = upcast(held)?;
            let same = |it: &&Block| it.event > copy.event && is_like(it.bytes, copy.bytes);
            // What is made of the copy is as wide.
            let others = sum(held.blocks.iter().filter(same)) / 2;
            let bytes = copy.bytes.saturating_add(others);
            Found::some(bytes, Confidence::High, held.line(copy))
        },
        cause: Cause::Need,
        change: "give the loss its scores as they are, without float(): it computes in float32 by itself",
        cost: "none",
        code: &["loss = F.cross_entropy(logits, labels)    # instead of logits.float()"],
    },
    Remedy {
        name: "class_indices",
        signature: |scene| {
            let held = scene.held()?;
            let targets = one_hot(held)?;
            Found::some(targets.bytes, Confidence::High, held.line(targets))
        },
        cause: Cause::Need,
        change: "give the loss class indices instead of a row of zeros and a one for each",
        cost: "none",
        code: &["loss = F.cross_entropy(logits, classes)    # instead of one-hot targets"],
    },
    Remedy {
        name: "last_logits",
        signature: |scene| {
            // A linear layer that outweighs everything else of the pass.
            let held = scene.held_in_inference()?;
            let scores = held.of_the_pass().filter(|it| it.is_in(Function::Linear));
            let scores = scores.max_by_key(|it| it.bytes)?;
            let others = held.of_the_pass().filter(|it| it.stack != scores.stack);
            let largest = others.map(|it| it.bytes).max()?;
            let outweighs = scores.bytes >= largest.saturating_mul(8)
                && scores.bytes >= held.need() / 3
                && held.kept_of_the_pass().0 > 20;
            let bytes = held.saved_without(|it| it.stack == scores.stack, 0);
            Found::some(bytes, Confidence::Medium, held.line(scores)).filter(|_| outweighs)
        },
        cause: Cause::Need,
        change: "compute scores only where they are used: the last position of a prompt",
        cost: "none, where the other positions are not used",
        code: &[
            "logits = model(input_ids=prompts, logits_to_keep=1).logits    # or head(hidden[:, -1:])",
        ],
    },
];
