//! Remedies of training: batches, activations and graphs.

use super::{Found, Remedy, Scene, kept};
use crate::report::circumstances::Learning;
use crate::report::held::{Block, Held, sum};
use crate::report::origins::Work;
use crate::report::purpose::Confidence;
use crate::report::verdict::Cause;

/// A share of the activations, by a low or a medium confidence.
fn of_activations(scene: &Scene<'_>, confidence: Confidence) -> Option<Found> {
    let bytes = scene.activations()? / 2;
    Found::some(bytes, confidence, scene.line_of_activations())
}

/// What is kept of a pass that one line began, or outside all modules: whichever keeps most.
fn largest_pass<'h>(held: &'h Held<'_>) -> Vec<&'h Block> {
    let kept: Vec<_> = kept(held).collect();
    let mut callers: Vec<_> = kept.iter().map(|it| it.origin.caller).collect();
    callers.sort_unstable();
    callers.dedup();
    let of = |caller| kept.iter().copied().filter(move |it| it.origin.caller == caller);
    let largest = callers.into_iter().max_by_key(|&caller| sum(of(caller)));
    largest.map_or(Vec::new(), |caller| of(caller).collect())
}

/// Whether the line that began the pass has never led to a way back, where others have.
fn never_went_back(held: &Held<'_>) -> bool {
    let pass = held.pass();
    let now: Vec<_> = largest_pass(held);
    let Some(caller) = now.first().and_then(|it| it.origin.caller) else { return false };
    let is_forward = |it: &Block| it.origin.work == Work::Forward && it.event < pass;
    let before = || held.ever(is_forward).map(|it| held.origin(it.stack).caller);
    let goes_back_now = held.asked.is_some_and(|it| it.is_by(Work::Back))
        || held.live_by(Work::Back).any(|it| it.event >= pass);
    held.went_back
        && !goes_back_now
        && before().next().is_some()
        && before().all(|it| it != Some(caller))
}

/// What the pass before keeps although its way back is done: as much as the pass under way.
fn kept_graph<'h>(held: &'h Held<'_>) -> impl Iterator<Item = &'h Block> + Clone {
    let pass = held.pass();
    let before = held.passes.iter().rev().nth(1).copied().unwrap_or(pass);
    held.blocks.iter().filter(move |it| {
        let kept = it.is_by(Work::Forward) || it.is_by(Work::Program);
        kept && before > 0 && (before..pass).contains(&it.event)
    })
}

/// Blocks of a usual way back that are neither gradients nor gone again.
const ON_THE_WAY_BACK: usize = 6;

pub(super) const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "smaller_batch",
        signature: |scene| {
            let first = scene.now.first_step && scene.report.failure.is_some();
            let sure = if first { Confidence::Medium } else { Confidence::Low };
            let kept = of_activations(scene, sure)?.bytes;
            let Some(held) = scene.held() else { return Found::some(kept, sure, None) };
            // The gradients of the first half are there while the second goes forward. Where they outweigh that half, only a
            // batch that stays smaller helps: as far as activations outweigh gradients.
            let all = sum(held.of_the_pass());
            let there = sum(held.blocks.iter().filter(|it| held.is_gradient(it)));
            let to_come = held.model().saturating_sub(there);
            let bytes = match (all / 2).saturating_sub(to_come) {
                0 => all.saturating_sub(to_come.max(all / 2)),
                bytes => bytes,
            };
            Found::some(bytes, sure, None)
        },
        cause: Cause::Need,
        change: "half the batch, two steps of accumulation",
        cost: "two passes for each step of the optimizer",
        code: &[
            "for half in batch.chunk(2):    # in the training loop, instead of one pass",
            "    (loss_of(half) / 2).backward()",
            "optimizer.step()",
        ],
    },
    Remedy {
        name: "no_grad",
        signature: |scene| {
            let keeps = scene.now.learning == Learning::KeepsForAWayBack;
            let first = scene.now.first_step;
            let Some(held) = scene.held() else {
                // The first layers of a training look the same: there it is one of two readings.
                let all = scene.activations()?;
                let bytes = if first { all / 2 } else { all - all / 10 };
                let sure = if first { Confidence::Low } else { Confidence::Medium };
                let found = Found::some(bytes, sure, scene.line_of_activations());
                return found.filter(|_| keeps);
            };
            let elsewhere = never_went_back(held);
            // What the pass works on it needs anyway: about as much as it asked for last.
            let asked = held.asked.map_or(0, |it| it.bytes);
            let bytes = sum(largest_pass(held).into_iter()).saturating_sub(asked);
            let sure = if first && !elsewhere { Confidence::Low } else { Confidence::Medium };
            let found = Found::some(bytes, sure, scene.line_of_activations());
            found.filter(|_| keeps || elsewhere)
        },
        cause: Cause::Need,
        change: "if nothing is trained here, keep nothing for a way back: torch.no_grad()",
        cost: "none",
        code: &["with torch.no_grad():    # around the pass", "    output = model(batch)"],
    },
    Remedy {
        name: "no_retain_graph",
        signature: |scene| {
            let held = scene.held()?;
            let kept = kept_graph(held);
            let now = sum(held.of_the_pass().filter(|it| it.is_by(Work::Forward)));
            let as_much = sum(kept.clone()) >= now / 2 && now > 0;
            // What every iteration keeps is a leak, and told as that.
            let alone = held.went_back && !scene.leaks();
            Found::all_of(held, kept, Confidence::Medium).filter(|_| as_much && alone)
        },
        cause: Cause::Need,
        change: "let the graph of a step go before the next is built: backward() without retain_graph=True, and no tensor kept that holds it",
        cost: "none",
        code: &["loss.backward()    # instead of loss.backward(retain_graph=True)"],
    },
    Remedy {
        name: "no_create_graph",
        signature: |scene| {
            // A way back keeps few blocks at a time, but those of gradients; one that can be differentiated keeps all.
            let held = scene.held()?;
            let kept = held.of_the_pass().filter(|it| it.is_by(Work::Back));
            let kept = kept.filter(|it| held.asked.is_none_or(|asked| asked.event != it.event));
            let bytes = sum(kept.clone());
            let many = kept.count() >= ON_THE_WAY_BACK && bytes >= held.need() / 4;
            let fails = held.asked.is_some_and(|it| it.is_by(Work::Back));
            let found = Found::some(bytes, Confidence::Medium, scene.line_of_activations());
            found.filter(|_| many && fails)
        },
        cause: Cause::Need,
        change: "if gradients are not differentiated again, make no graph of them: without create_graph=True",
        cost: "none, unless a penalty or a second derivative needs it",
        code: &["grads = torch.autograd.grad(loss, parameters)    # without create_graph=True"],
    },
    Remedy {
        name: "backward_for_each_pass",
        signature: |scene| {
            // Each pass keeps its graph, and nothing goes back in between.
            let keeps = scene.now.learning == Learning::KeepsForAWayBack;
            // What has gone back leaves its gradients; beside them one pass is there at a time.
            let alone = scene.held().and_then(|held| {
                let (before, round) = held.one_round()?;
                let gradients = held.model();
                let left = before.saturating_add(gradients).saturating_add(round);
                Some(held.need().saturating_sub(left))
            });
            let leak = scene.report.growth.leak_at_peak;
            let bytes = alone.map_or(leak, |bytes| bytes.min(leak));
            let line = scene.report.verdict.line.clone();
            let again = scene.held().is_none_or(|held| held.rounds() > 1);
            let found = Found::some(bytes, Confidence::Medium, line);
            found.filter(|_| scene.leaks() && keeps && again)
        },
        cause: Cause::Leak,
        change: "go back in each pass where losses are summed, or keep no graph: every loss holds the activations of its pass",
        cost: "none",
        code: &["(loss / passes).backward()    # in each pass, instead of one backward of the sum"],
    },
    Remedy {
        name: "freeze",
        signature: |scene| {
            // A large model and a small one, each moved to the device by a line of its own, are a backbone and its head.
            let held = scene.held().filter(|_| scene.activations().is_some())?;
            let mut parts = held.live_by(Work::Model).collect::<Vec<_>>();
            parts.sort_by_key(|it| it.event);
            let last = held.line(parts.last()?)?;
            let is_head = |it: &&Block| held.line(it).as_ref() == Some(&last);
            let (head, all) = (sum(parts.iter().copied().filter(is_head)), held.model());
            let kept = sum(held.of_the_pass().filter(|it| it.is_by(Work::Forward)));
            let gradients = sum(held.blocks.iter().filter(|it| held.is_gradient(it)));
            // Without a graph one layer at a time is there.
            let bytes = (kept - kept / held.layers().max(1)).saturating_add(gradients);
            let sure = if held.asked.is_some() { Confidence::Medium } else { Confidence::Low };
            let found = Found::some(bytes, sure, None);
            found.filter(|_| head > 0 && head < all / 20)
        },
        cause: Cause::Need,
        change: "if only the last part is trained, freeze the rest: requires_grad_(False)",
        cost: "none, where the rest is not to be trained",
        code: &[
            "backbone.requires_grad_(False)    # before the optimizer is made",
            "optimizer = torch.optim.AdamW(head.parameters())",
        ],
    },
    Remedy {
        name: "checkpoint",
        signature: |scene| {
            let trains = scene.now.learning == Learning::Trains;
            let half = of_activations(scene, Confidence::Low).filter(|_| trains)?;
            let bytes = scene.held().and_then(of_layers).unwrap_or(half.bytes);
            Found::some(bytes, half.confidence, half.line)
        },
        cause: Cause::Need,
        change: "checkpoint the span that keeps most of the activations",
        cost: "about a third more time: the span runs forward twice",
        code: &[
            "from torch.utils.checkpoint import checkpoint",
            "x = checkpoint(span, x, use_reentrant=False)    # in forward, instead of x = span(x)",
        ],
    },
    Remedy {
        name: "activations_in_host_memory",
        signature: |scene| {
            let trains = scene.now.learning == Learning::Trains;
            of_activations(scene, Confidence::Low).filter(|_| trains)
        },
        cause: Cause::Need,
        change: "keep activations in host memory until the way back needs them",
        cost: "all of them cross the bus twice in each step",
        code: &[
            "with torch.autograd.graph.save_on_cpu(pin_memory=True):    # around the forward",
            "    loss = model(batch)",
        ],
    },
];

/// Fewer layers are not worth a checkpoint each.
const LAYERS: u64 = 4;

/// What a checkpoint of every layer saves: all that layers keep but what goes into each, and one layer that runs again.
fn of_layers(held: &Held<'_>) -> Option<u64> {
    let layers = held.layers();
    let forward: Vec<_> = held.of_the_pass().filter(|it| it.is_by(Work::Forward)).collect();
    let times = |stack| forward.iter().filter(|it| it.stack == stack).count() as u64;
    let mut kept: Vec<_> = forward.iter().filter(|it| times(it.stack) >= layers).collect();
    let bytes = kept.iter().fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
    // Statistics of norms are small.
    kept.retain(|it| it.bytes >= bytes / layers / 50);
    let input = kept.iter().map(|it| it.bytes).min()?;
    let needed = (bytes / layers).saturating_add(input.saturating_mul(layers));
    (layers >= LAYERS).then(|| bytes.saturating_sub(needed))
}
