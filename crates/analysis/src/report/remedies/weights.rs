//! Remedies for models and copies of them.

use super::{Found, Remedy};
use crate::report::held::{Block, Held, sum};
use crate::report::origins::{Function, Work};
use crate::report::purpose::Confidence;
use crate::report::verdict::Cause;

/// Bytes of each model: one begins where another line moves it to the device, or where the first sizes of the first come again.
fn models(held: &Held<'_>) -> Vec<u64> {
    let blocks: Vec<_> = held.live_by(Work::Model).collect();
    let mut models = Vec::<u64>::new();
    let mut last = None;
    for (place, it) in blocks.iter().enumerate() {
        let line = held.line(it);
        let again = begins_again(&blocks, place) && (1..FIRST).all(|it| !begins_again(&blocks, it));
        match models.last_mut() {
            Some(model) if line == last && !again => *model = model.saturating_add(it.bytes),
            _ => models.push(it.bytes),
        }
        last = line;
    }
    models
}

/// As many parameters tell a model's beginning; where they come again sooner, they are layers that are alike.
const FIRST: usize = 8;

fn begins_again(blocks: &[&Block], place: usize) -> bool {
    let sizes = |from: usize| blocks.get(from..from + FIRST).map(|it| it.iter().map(|it| it.bytes));
    sizes(place).zip(sizes(0)).is_some_and(|(here, first)| here.eq(first))
}

/// Weights that autocast has written in half their bytes.
fn cast_weights<'h>(held: &'h Held<'_>) -> impl Iterator<Item = &'h Block> + Clone {
    held.blocks.iter().chain(&held.asked).filter(|it| {
        let is_cast = it.bytes.checked_mul(2).is_some_and(|it| held.is_size_of_a_parameter(it));
        is_cast && it.is_by(Work::Forward) && it.is_in(Function::Linear)
    })
}

/// Fewer copies of weights are those that are being used.
const CAST: usize = 3;

pub(super) const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "weights_to_host",
        signature: |scene| {
            let held = scene.held()?;
            let copies = held.live_by(Work::Copy);
            let copies: Vec<_> =
                copies.filter(|it| held.is_size_of_a_parameter(it.bytes)).collect();
            Found::all_of(held, copies.iter().copied(), Confidence::High)
        },
        cause: Cause::Need,
        change: "keep copies of the weights in host memory",
        cost: "a copy over the bus where they are taken or averaged",
        code: &["kept = {name: value.cpu() for name, value in model.state_dict().items()}"],
    },
    Remedy {
        name: "load_to_host",
        signature: |scene| {
            let held = scene.held()?;
            let loaded = held.live_by(Work::Load);
            let loaded: Vec<_> =
                loaded.filter(|it| held.is_size_of_a_parameter(it.bytes)).collect();
            Found::all_of(held, loaded.iter().copied(), Confidence::High)
        },
        cause: Cause::Need,
        change: "load the file into host memory, and let go of it once the model has its weights",
        cost: "none",
        code: &["saved = torch.load(path, map_location=\"cpu\")"],
    },
    Remedy {
        name: "autocast_cache_off",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            let (bytes, count) = (sum(cast_weights(held)), cast_weights(held).count());
            let largest = cast_weights(held).map(|it| it.bytes).max()?;
            let all = sum(held.of_the_pass().filter(|it| it.is_by(Work::Forward)));
            // One is there while it is used.
            let found = Found::some(bytes - largest, Confidence::Medium, None);
            found.filter(|_| count >= CAST && bytes >= all - all / 4)
        },
        cause: Cause::Need,
        change: "let autocast not keep every weight a second time: cache_enabled=False, or a model in bfloat16",
        cost: "weights are converted each time they are used",
        code: &["with torch.autocast(\"cuda\", torch.bfloat16, cache_enabled=False):"],
    },
    Remedy {
        name: "one_model_at_a_time",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            let models = models(held);
            let all = held.model();
            let large = models.iter().filter(|&&it| it >= all / 10).count();
            let largest = models.iter().copied().max()?;
            let found = Found::some(all.saturating_sub(largest), Confidence::Medium, None);
            found.filter(|_| large >= 2)
        },
        cause: Cause::Need,
        change: "have the model on the device whose turn it is, and the others in host memory",
        cost: "each turn moves a model over the bus",
        code: &["output = model.cuda()(batch)", "model.cpu()    # before the next model's turn"],
    },
    Remedy {
        name: "bf16_weights",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            let model = held.model();
            // What the model computes is as narrow as its weights.
            let computed = sum(held.of_the_pass().filter(|it| it.is_by(Work::Forward)));
            let found = Found::some(model.saturating_add(computed) / 2, Confidence::Low, None);
            found.filter(|_| model >= held.need() / 2)
        },
        cause: Cause::Need,
        change: "if the weights are float32, load the model in bfloat16",
        cost: "rounding; most models serve as well",
        code: &[
            "model = model.to(torch.bfloat16).cuda()    # or from_pretrained(…, dtype=torch.bfloat16)",
        ],
    },
];
