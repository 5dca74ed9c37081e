//! Remedies for what an optimizer takes: its steps, its states, gradients.

use super::{Found, Remedy};
use crate::report::held::{Block, Held, sum};
use crate::report::origins::{Function, Work};
use crate::report::purpose::{Confidence, Purpose};
use crate::report::verdict::Cause;

/// Rows of a table that a step uses are few where its gradient is so many times as large as anything that the step computes.
const DENSE: u64 = 16;

/// A block of the program that has all gradients side by side.
fn flat_gradients<'h>(held: &'h Held<'_>) -> Option<&'h Block> {
    let gradients = sum(held.blocks.iter().filter(|it| held.is_gradient(it)));
    let model = held.model();
    let all = |bytes: u64| bytes.abs_diff(model) <= model / 100;
    let mut flat = held.with_asked().filter(|it| it.is_by(Work::Program) && all(it.bytes));
    flat.find(|_| model > 0 && gradients >= model - model / 10)
}

/// Gradients as large as a table of embeddings.
fn of_tables<'h>(held: &'h Held<'_>) -> Vec<&'h Block> {
    if held.ever(|it| it.is_in(Function::Embedding)).next().is_none() {
        return Vec::new();
    }
    let pass = held.pass();
    let computed = held.ever(|it| it.origin.work == Work::Forward && it.event >= pass);
    let largest = computed.map(|it| it.requested).max().unwrap_or(u64::MAX);
    let gradients = held.with_asked().filter(|it| held.is_gradient(it));
    gradients.filter(|it| it.bytes / DENSE >= largest).collect()
}

pub(super) const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "single_tensor_step",
        signature: |scene| {
            // Temporaries of all parameters at once, instead of those of one.
            let now = scene.now;
            let bytes = now.of_the_step.saturating_sub(now.largest_of_the_step);
            let shown = now.held.asked.is_some_and(|it| it.is_in(Function::Foreach));
            let sure = if shown { Confidence::High } else { Confidence::Medium };
            Found::some(bytes, sure, None).filter(|_| now.in_step)
        },
        cause: Cause::Need,
        change: "let the optimizer's step make no copies of all parameters at once: fused=True, or foreach=False",
        cost: "none with fused=True; foreach=False takes more launches",
        code: &[
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)    # or foreach=False",
        ],
    },
    Remedy {
        name: "smaller_states",
        signature: |scene| {
            let held = scene.held()?;
            let states = held.with_asked().filter(|it| it.is_in(Function::AdamStates));
            let fails = held.asked.is_some_and(|it| it.is_in(Function::States));
            let sure = if fails { Confidence::Medium } else { Confidence::Low };
            Found::all_of(held, states, sure)
        },
        cause: Cause::Need,
        change: "an optimizer with smaller states: factored ones, or states of 8 bits",
        cost: "other steps: the learning rate may have to change",
        code: &["optimizer = torch.optim.Adafactor(model.parameters())    # instead of Adam"],
    },
    Remedy {
        name: "set_to_none",
        signature: |scene| {
            // They were there before gradients were to go, and still are.
            let held = scene.held()?;
            let zeroed = scene.now.zeroed.as_ref()?;
            let goes_forward = held.pass() >= zeroed.end;
            let kept = held.blocks.iter().filter(|it| held.is_gradient(it));
            let kept = kept.filter(|it| it.event < zeroed.start);
            let bytes = sum(kept);
            Found::some(bytes, Confidence::High, None).filter(|_| goes_forward)
        },
        cause: Cause::Need,
        change: "let gradients go instead of setting them to zero: zero_grad(set_to_none=True)",
        cost: "none",
        code: &["optimizer.zero_grad(set_to_none=True)"],
    },
    Remedy {
        name: "clip_by_tensor",
        signature: |scene| {
            let held = scene.held()?;
            let flat = flat_gradients(held)?;
            Found::some(flat.bytes, Confidence::High, held.line(flat))
        },
        cause: Cause::Need,
        change: "make no flat copy of all gradients: clip_grad_norm_() takes the norm tensor by tensor",
        cost: "none",
        code: &["torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"],
    },
    Remedy {
        name: "sparse_gradients",
        signature: |scene| {
            let held = scene.held()?;
            let dense = of_tables(held);
            Found::some(sum(dense.into_iter()), Confidence::High, None)
        },
        cause: Cause::Need,
        change: "make gradients of the rows that a step uses, not of whole tables: Embedding(sparse=True)",
        cost: "an optimizer that takes them: SGD, SparseAdam, Adagrad",
        code: &["table = torch.nn.Embedding(rows, width, sparse=True)"],
    },
    Remedy {
        name: "gradient_as_bucket_view",
        signature: |scene| {
            let held = scene.held()?;
            let buckets = sum(held.blocks.iter().filter(|it| it.is_in(Function::Buckets)));
            // A gradient is made before it is copied into its bucket.
            let largest = held.live_by(Work::Model).map(|it| it.bytes).max().unwrap_or(0);
            Found::some(buckets.saturating_sub(largest), Confidence::High, None)
        },
        cause: Cause::Need,
        change: "let gradients lie in the buckets that are reduced: gradient_as_bucket_view=True",
        cost: "none; gradients may not be detached in place",
        code: &["model = DistributedDataParallel(model, gradient_as_bucket_view=True)"],
    },
    Remedy {
        name: "states_in_host_memory",
        signature: |scene| {
            // Inside the step they are needed where they are.
            let bytes = scene.bytes_for(Purpose::Optimizer);
            Found::some(bytes, Confidence::Low, None).filter(|_| !scene.now.in_step)
        },
        cause: Cause::Need,
        change: "keep the optimizer's states in host memory",
        cost: "each step moves them over the bus",
        code: &[
            "def states_to(device):    # around optimizer.step(): states_to(\"cuda\"), step, states_to(\"cpu\")",
            "    for state in optimizer.state.values():",
            "        state.update({k: v.to(device) for k, v in state.items() if torch.is_tensor(v)})",
        ],
    },
];
