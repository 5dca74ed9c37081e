//! Remedies of inference: batches, outputs, caches and streams.

use rustc_hash::FxHashMap;
use tonnage_events::StackId;

use super::{Found, PARTS, Remedy};
use crate::report::held::{Block, Held, sum};
use crate::report::origins::{Function, Work};
use crate::report::purpose::{Confidence, WORKSPACES};
use crate::report::verdict::Cause;

/// Fewer equal blocks are no caches.
const CACHES: usize = 3;
/// As many pages belong to a cache that grows.
const PAGES: usize = 8;
/// As few streams are usual: one that computes, one that copies, one that communicates.
const STREAMS: usize = 4;

/// Equal blocks from one place: how many, and the first.
fn equal_blocks<'h>(
    held: &'h Held<'_>,
    test: impl Fn(&Block) -> bool,
) -> FxHashMap<(Option<StackId>, u64), Vec<&'h Block>> {
    let mut groups = FxHashMap::<_, Vec<_>>::default();
    for it in held.with_asked().filter(|it| test(it)) {
        groups.entry((it.stack, it.bytes)).or_default().push(it);
    }
    groups
}

/// Blocks as large as each other that the program has asked for before its model first worked: most of what is live.
fn made_caches<'h>(held: &'h Held<'_>) -> Option<Vec<&'h Block>> {
    let first = held.first_forward.unwrap_or(usize::MAX);
    let early = |it: &Block| it.is_by(Work::Program) && it.event < first && it.stack.is_some();
    let groups = equal_blocks(held, early).into_values();
    let largest = groups.max_by_key(|it| sum(it.iter().copied()))?;
    let most = sum(largest.iter().copied()) >= held.need() / 2;
    let fails = held.asked.is_some();
    (fails && most && largest.len() >= CACHES && held.model() > 0).then_some(largest)
}

/// Pages that modules ask for by themselves, now and then, and keep.
fn pages<'h>(held: &'h Held<'_>) -> Option<Vec<&'h Block>> {
    let own = |it: &Block| it.is_by(Work::Forward) && it.is_in(Function::OfTheCaller);
    let groups = equal_blocks(held, own).into_values();
    let largest = groups.max_by_key(|it| sum(it.iter().copied()))?;
    let most = sum(largest.iter().copied()) >= held.need() / 4;
    (most && largest.len() >= PAGES).then_some(largest)
}

/// Equal blocks that passes have left behind.
fn outputs<'h>(held: &'h Held<'_>) -> Vec<&'h Block> {
    let first = held.first_forward.unwrap_or(usize::MAX);
    let made =
        |it: &Block| (it.is_by(Work::Forward) || it.is_by(Work::Program)) && it.event >= first;
    let groups = equal_blocks(held, made).into_values().filter(|it| it.len() >= CACHES);
    groups.max_by_key(|it| sum(it.iter().copied())).unwrap_or_default()
}

/// Scratch memory of streams, one for each.
fn workspaces(held: &Held<'_>) -> (u64, usize) {
    let scratch = held.blocks.iter().filter(|it| WORKSPACES.contains(&it.bytes));
    let mut of_streams = FxHashMap::default();
    for it in scratch.filter(|it| it.is_workspace) {
        of_streams.entry(it.stream).or_insert(it.bytes);
    }
    (of_streams.values().copied().max().unwrap_or(0), of_streams.len())
}

pub(super) const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "outputs_to_host",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            let bytes = scene.report.growth.leak_at_peak;
            let found = Found::some(bytes, Confidence::Medium, scene.report.verdict.line.clone());
            let most = bytes >= held.need() / 5 && sum(outputs(held).into_iter()) >= bytes / 2;
            found.filter(|_| scene.leaks() && most && pages(held).is_none())
        },
        cause: Cause::Leak,
        change: "keep outputs in host memory; where copies go by a side stream, wait for the older before the next",
        cost: "a copy over the bus for each",
        code: &[
            "outputs.append(output.cpu())    # where outputs are kept",
            "oldest_copy.synchronize()       # where copies are in flight: before the next is begun",
        ],
    },
    Remedy {
        name: "bounded_cache",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            let pages = pages(held)?;
            let line = pages.first().and_then(|it| held.line(it));
            Found::some(sum(pages.into_iter()) / 2, Confidence::High, line)
        },
        cause: Cause::Leak,
        change: "bound the cache: a window of the last tokens, half of what it has now",
        cost: "what lies before the window is forgotten",
        code: &[
            "cache = collections.deque(maxlen=pages)    # where each layer keeps its keys and values",
        ],
    },
    Remedy {
        name: "cache_of_needed_length",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            let caches = made_caches(held)?;
            let (first, last) = (caches.first()?, caches.last()?);
            // With what is made for each.
            let all = held.with_asked().filter(|it| {
                it.is_by(Work::Program) && (first.event..=last.event).contains(&it.event)
            });
            let bytes = sum(all);
            Found::some(bytes - bytes / PARTS, Confidence::Medium, held.line(first))
        },
        cause: Cause::Need,
        change: "make caches as long as the longest request, not as the longest that the model can serve; an eighth of it, say",
        cost: "longer requests need a cache of their own",
        code: &["cache = Cache(rows, heads, longest_request, width)"],
    },
    Remedy {
        name: "quantised_cache",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            let caches = made_caches(held)?;
            let first = caches.first()?;
            // One of them is unpacked at a time.
            let bytes = sum(caches.iter().copied()).saturating_sub(first.bytes) / 2;
            Found::some(bytes, Confidence::Medium, held.line(first))
        },
        cause: Cause::Need,
        change: "keep keys and values in 8 bits, with a scale for each token, if they have 16",
        cost: "rounding, and time to unpack them",
        code: &[
            "cache = torch.zeros(shape, dtype=torch.int8, device=\"cuda\")    # and its scales",
        ],
    },
    Remedy {
        name: "fewer_streams",
        signature: |scene| {
            let held = scene.held()?;
            let (bytes, streams) = workspaces(held);
            let bytes = bytes.saturating_mul(streams.saturating_sub(2) as u64);
            Found::some(bytes, Confidence::High, None).filter(|_| streams >= STREAMS)
        },
        cause: Cause::Need,
        change: "use two streams, not many: every stream that multiplies matrices gets a workspace",
        cost: "less overlap, as far as there was any",
        code: &[
            "streams = [torch.cuda.Stream() for _ in range(2)]    # taken in turn",
            "export CUBLAS_WORKSPACE_CONFIG=:4096:1    # or a smaller workspace for each",
        ],
    },
    Remedy {
        name: "batch_in_parts",
        signature: |scene| {
            let held = scene.held_in_inference()?;
            held.first_forward?;
            let leaks = scene.report.growth.leak_at_peak;
            // What a loop gathers is as much in the end, whatever its batches.
            let gathered = (scene.report.growth.growing_tensor > 0)
                .then(|| scene.report.verdict.line.clone())
                .flatten();
            let is_gathered = |it: &&Block| gathered.is_some() && held.line(it) == gathered;
            let of_a_batch = held.of_the_pass().filter(|it| !is_gathered(it));
            let bytes = sum(of_a_batch).saturating_sub(leaks);
            let most = bytes >= held.need() / 2 && made_caches(held).is_none();
            let sure = if most { Confidence::Medium } else { Confidence::Low };
            Found::some(bytes - bytes / PARTS, sure, None).filter(|_| !scene.now.in_step)
        },
        cause: Cause::Need,
        change: "give the model its batch in parts, an eighth at a time",
        cost: "more launches; less work at once",
        code: &["output = torch.cat([model(part) for part in batch.chunk(8)])"],
    },
];
