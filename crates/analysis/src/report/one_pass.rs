//! Whether what looks like iterations is one pass through equal layers, or a loop that has nothing to do with a failure.
//!
//! In:  a device, lifetimes, the iterations that repetition found, what became of each allocation.
//! Out: yes or no.
//!
//! A forward pass asks for the same again in each layer, frees what is temporary and keeps the rest for the way back:
//! that is what a loop with a leak does. Two things tell them apart:
//!
//! 1. The way back, where the history has it: it frees the latest first and asks for gradients in between. Whoever gives
//!    up a list frees in one go.
//! 2. The layers themselves: there are as many of them, with parameters of the same sizes, as there are iterations, and no
//!    request comes twice in one. A loop over batches goes through all layers each time. A pass that failed did not come to
//!    all of them; where it has no stacks, a layer may ask for the same size twice, but not for each layer of the model.
//!
//! Where a request failed and there are no stacks, few repetitions and tides may be either, if the model has as many parameters: nothing is concluded from them.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;
use tonnage_events::{Action, StackId};

use super::iterations::{IterationSource, Iterations, before};
use super::retention::Retention;
use crate::device_view::DeviceView;
use crate::lifetimes::{Lifetime, Lifetimes};

/// Fewer are a loop by any count: models with three equal parts are everywhere.
const LAYERS: usize = 6;

/// Without stacks, fewer repetitions up to a failure may be layers. Chosen: small models have as many.
const FEW: usize = 8;

pub(super) fn is_one_pass(
    lifetimes: &Lifetimes,
    loops: &Iterations,
    retentions: &[Retention],
    failed: bool,
) -> bool {
    // The optimizer steps once a pass, so its marks cut no layers.
    if loops.source == IterationSource::Annotations {
        return false;
    }
    let failed = match (failed, lifetimes.iter().all(|it| it.stack.is_none())) {
        (false, _) => Failed::No,
        (true, false) => Failed::WithStacks,
        (true, true) => Failed::WithoutStacks,
    };
    (failed == Failed::WithoutStacks && may_be_layers(lifetimes, loops))
        || loops.ranges.len() >= LAYERS
            && (goes_back(lifetimes, loops, retentions)
                || has_as_many_layers(lifetimes, loops, failed))
}

/// Whether what repeats is the way back through equal layers: no loop over batches ends with half of what it began with.
pub(super) fn is_way_back(live: &[u64], loops: &Iterations) -> bool {
    let repeats = loops.source == IterationSource::Repetition;
    repeats && before(live, loops.end()) < before(live, loops.ranges[0].start) / 2
}

/// Where the last request failed, if it was none of the loop's: it comes behind the last iteration, from a stack of no other, so that
/// the program had left the loop. Unless most of what is live then is the loop's, the loop does not tell why.
pub(super) fn failed_elsewhere(device: &DeviceView<'_>, loops: &Iterations) -> Option<usize> {
    let event = device.entries.iter().rposition(|it| it.action == Action::Oom)?;
    let stack = device.entries[event].stack?;
    let before_the_last = loops.ranges[0].start..loops.ranges[loops.ranges.len() - 1].start;
    let asks = |range: Range<usize>| device.entries[range].iter().any(|it| it.stack == Some(stack));
    let repeats = loops.source != IterationSource::Annotations;
    (repeats && event >= loops.end() && !asks(before_the_last)).then_some(event)
}

/// Whether sizes leave it open: ranges that are few, or told by tides, and no more of them than the model has parameters.
fn may_be_layers(lifetimes: &Lifetimes, loops: &Iterations) -> bool {
    let (count, start) = (loops.ranges.len(), loops.ranges[0].start);
    let weak = loops.source == IterationSource::Tides || count < FEW;
    weak && lifetimes.iter().filter(|it| is_parameter(it, start)).count() >= count
}

/// Whether it is there before the ranges begin, and stays.
fn is_parameter(it: &Lifetime, start: usize) -> bool {
    it.allocated.event().is_none_or(|event| event < start) && it.is_live_at_end()
}

/// Whether a request failed, and what there is to tell whether that was in the first pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    No,
    WithStacks,
    WithoutStacks,
}

/// Whether most of what is kept is freed later, latest first and with requests in between.
fn goes_back(lifetimes: &Lifetimes, loops: &Iterations, retentions: &[Retention]) -> bool {
    let kept = || {
        lifetimes.iter().zip(retentions).filter(|&(_, &retention)| retention == Retention::Leaks)
    };
    let mut freed: Vec<(usize, usize)> = kept()
        .filter_map(|(it, _)| Some((it.free_requested.event()?, it.allocated.event()?)))
        .collect();
    if freed.len() < LAYERS || freed.len() * 10 < kept().count() * 8 {
        return false;
    }
    freed.sort_unstable();
    let mut asked: Vec<usize> = lifetimes.iter().filter_map(|it| it.allocated.event()).collect();
    asked.sort_unstable();
    // Several blocks of one layer may go together, in any order: layers are compared, not blocks.
    let layer = |event: usize| loops.of(event);
    let (mut steps, mut back) = (0, 0);
    for pair in freed.windows(2) {
        let [(freed_first, first), (freed_next, next)] = [pair[0], pair[1]];
        let (Some(first), Some(next)) = (layer(first), layer(next)) else { continue };
        if first != next {
            let place = asked.partition_point(|&event| event < freed_first);
            let in_between = asked.get(place).is_some_and(|&event| event < freed_next);
            steps += 1;
            back += usize::from(next < first && in_between);
        }
    }
    steps + 1 >= LAYERS && back * 10 >= steps * 8
}

/// A stack and a size; without stacks, a size and those that are asked for before and after it.
type Request = (Option<StackId>, u64, [u64; 2]);

fn has_as_many_layers(lifetimes: &Lifetimes, loops: &Iterations, failed: Failed) -> bool {
    let count = loops.ranges.len();
    let size = |row: Option<usize>| {
        row.filter(|&row| row < lifetimes.len()).map_or(0, |row| lifetimes.get(row).requested)
    };
    let key = |row: usize, it: &Lifetime| -> Request {
        match it.stack {
            Some(stack) => (Some(stack), it.requested, [0; 2]),
            None => (None, it.requested, [size(row.checked_sub(1)), size(row.checked_add(1))]),
        }
    };
    let start = loops.ranges[0].start;
    let mut parameters = BTreeMap::<u64, usize>::new();
    // In which iteration a request came last, how often it did there, and in how many it came often.
    let often = if failed == Failed::WithoutStacks { count - 1 } else { 2 };
    let mut requests = FxHashMap::<Request, (usize, usize, usize)>::default();
    for (row, it) in lifetimes.iter().enumerate() {
        let event = it.allocated.event();
        if is_parameter(&it, start) {
            *parameters.entry(it.requested).or_default() += 1;
        } else if let Some(at) = event.and_then(|event| loops.of(event)) {
            let known = requests.entry(key(row, &it)).or_insert((usize::MAX, 0, 0));
            let times = if known.0 == at { known.1 + 1 } else { 1 };
            *known = (at, times, known.2 + usize::from(times == often));
        }
    }
    let comes_often = requests.values().any(|&(_, _, often)| often * 2 >= count);
    // The ends of the loop may be one off, or be cut.
    let is_of_layers = |&&number: &&usize| {
        let layers = (number + count / 2) / count;
        let as_many = layers >= 1 && number.abs_diff(layers * count) <= 2 * layers;
        // Without stacks, the way forth and the way back may look like one loop.
        let twice = failed == Failed::WithoutStacks && count.abs_diff(2 * number) <= 4;
        as_many || twice || (failed != Failed::No && number >= count)
    };
    let all: usize = parameters.values().sum();
    let of_layers: usize = parameters.values().filter(is_of_layers).sum();
    !comes_often && of_layers >= LAYERS && of_layers * 2 >= all
}
