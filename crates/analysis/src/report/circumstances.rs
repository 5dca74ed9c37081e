//! What the program was doing when it failed, or when most was live.
//!
//! In:  a device, its lifetimes, its iterations, the moment.
//! Out: [`Circumstances`]: what decides which remedy helps there.

use std::ops::Range;

use rustc_hash::FxHashMap;
use tonnage_events::{Action, Frame, StackId};

use super::growth::Grown;
use super::held::Held;
use super::origins::{Function, Work};
use super::purpose::{Purpose, Purposes};
use crate::device_view::DeviceView;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};

/// Whether anything goes backward, as far as the file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learning {
    /// An optimizer or a way back was recorded.
    Trains,
    /// Neither was, but what a way back would need is kept.
    KeepsForAWayBack,
    /// Neither, and nothing is kept.
    OnlyForward,
}

/// What the program was doing.
pub(super) struct Circumstances<'a> {
    /// What is live, and what asked for it.
    pub(super) held: Held<'a>,
    pub(super) learning: Learning,
    /// Whether no iteration was finished before.
    pub(super) first_step: bool,
    /// Whether it was inside the optimizer's step.
    pub(super) in_step: bool,
    /// Bytes live then that the same step asked for and does not keep; with the request that failed.
    pub(super) of_the_step: u64,
    /// The largest of them.
    pub(super) largest_of_the_step: u64,
    /// Bytes live then that are as large as what a loss over classes takes, and how many blocks that is.
    pub(super) of_the_loss: (u64, usize),
    /// Bytes of the largest queue that is filled ahead of its use, beyond two of its blocks.
    pub(super) ahead: u64,
    /// Entries of the last time when gradients were to be set to zero or let go.
    pub(super) zeroed: Option<Range<usize>>,
}

impl<'a> Circumstances<'a> {
    /// `failed`: the entry of the request that ended the job; else the moment is that when most was live.
    pub(super) fn of(
        device: &'a DeviceView<'a>,
        lifetimes: &'a Lifetimes,
        grown: &Grown,
        purposes: &Purposes<'_>,
        failed: Option<usize>,
        most_live: Moment,
    ) -> Self {
        let moment = failed.map_or(most_live, Moment::Event);
        let scope = moment.event().and_then(|event| purposes.step_around(event));
        // Without marks, the stack of the failed request tells.
        let stack = failed.and_then(|event| device.entries[event].stack);
        let in_step = scope.is_some() || purposes.has_file(stack, "/torch/optim/");
        let held = Held::of(device, lifetimes, failed, most_live);
        let live = || lifetimes.iter().enumerate().filter(|(_, it)| it.is_live_after(moment));
        let asked = failed.map_or(0, |event| device.entries[event].size);
        let (mut of_the_step, mut largest) = (0_u64, 0_u64);
        if in_step {
            let makes_states = held.asked.as_ref().is_some_and(|it| it.is_in(Function::States));
            let passes = if makes_states { 0 } else { asked };
            (of_the_step, largest) = (passes, passes);
            for (_, it) in live() {
                let Some(event) = it.allocated.event() else { continue };
                let inside = match &scope {
                    Some(scope) => scope.contains(&event),
                    None => purposes.has_file(it.stack, "/torch/optim/"),
                };
                // What the first step makes and keeps are its states: two of them for each parameter. Where it failed, all
                // that it made is there at the end: then stacks tell.
                let origin = held.origin(it.stack);
                let passes = failed.is_some()
                    && origin.is_in(Function::Foreach)
                    && !origin.is_in(Function::Sgd);
                if inside && (passes || !it.is_live_at_end()) {
                    of_the_step = of_the_step.saturating_add(it.requested);
                    largest = largest.max(it.requested);
                }
            }
        }
        let finished = grown.iterations.as_ref().map_or(0, |loops| {
            let before = |end: usize| moment.event().is_some_and(|event| end <= event);
            loops.ranges.iter().filter(|it| before(it.end)).count()
        });
        Self {
            learning: if held.is_known() {
                learning_by_stacks(device, &held)
            } else {
                learning(device, lifetimes, purposes, moment)
            },
            first_step: finished == 0 || held.is_first_pass(),
            in_step,
            of_the_step,
            largest_of_the_step: largest,
            of_the_loss: if held.is_known() {
                of_the_loss_by_stacks(&held)
            } else {
                of_the_loss(device, lifetimes, purposes, moment, asked)
            },
            ahead: ahead(lifetimes, purposes, moment).max(filled_ahead(&held)),
            zeroed: moment.event().and_then(|event| purposes.zero_grad_before(event)),
            held,
        }
    }
}

/// A loss over classes has the scores of all of them several times: as they are, as logarithms, on the way back. The way
/// back has no stack: those of the same size count.
fn of_the_loss(
    device: &DeviceView<'_>,
    lifetimes: &Lifetimes,
    purposes: &Purposes<'_>,
    moment: Moment,
    asked: u64,
) -> (u64, usize) {
    let is_loss = |stack: Option<StackId>| {
        let named = |frame: &Frame| matches!(&*frame.name, "cross_entropy" | "log_softmax");
        stack.is_some_and(|stack| device.file.stacks.frames(stack).iter().any(named))
    };
    let until = lifetimes.iter().filter(|it| it.allocated <= moment && is_loss(it.stack));
    let Some(scores) = until.map(|it| it.requested).max() else { return (0, 0) };
    let like =
        |bytes: u64| bytes == scores || bytes == scores / 2 || bytes == scores.saturating_mul(2);
    let live = lifetimes.iter().enumerate().filter(|(_, it)| it.is_live_after(moment));
    let passing = live.filter(|(row, it)| {
        like(it.requested)
            && matches!(purposes.of(*row, it).0, Purpose::Activations | Purpose::Temporary)
    });
    let (bytes, blocks) = passing
        .fold((0_u64, 0), |(sum, blocks), (_, it)| (sum.saturating_add(it.requested), blocks + 1));
    // A failed request is rounded.
    let failed = asked > 0 && (scores..=scores.saturating_add(512)).contains(&asked);
    if failed { (bytes.saturating_add(asked), blocks + 1) } else { (bytes, blocks) }
}

/// The same where stacks tell what asked for the scores: not only what an iteration frees counts, so that a pass of which no
/// way back was seen is understood too.
fn of_the_loss_by_stacks(held: &Held<'_>) -> (u64, usize) {
    let of_losses = held.ever(|it| it.is_in(Function::Loss)).map(|it| it.requested);
    let failed = held.asked.iter().filter(|it| it.is_in(Function::Loss)).map(|it| it.bytes);
    let Some(scores) = of_losses.chain(failed).max() else { return (0, 0) };
    let like = held.with_asked().filter(|it| {
        let passes = matches!(it.origin.work, Work::Forward | Work::Back | Work::Program);
        let sizes = [scores, scores / 2, scores.saturating_mul(2)];
        passes && !held.is_gradient(it) && sizes.iter().any(|&size| it.is_as_large_as(size))
    });
    like.fold((0, 0), |(sum, blocks), it| (sum.saturating_add(it.bytes), blocks + 1))
}

/// Fewer blocks of one kind that are asked for before the model works are no queue: a model has as many parts.
const FILLED: usize = 8;

/// What is asked for at one line outside all modules, always as large, one right after the other, before any is used.
fn filled_ahead(held: &Held<'_>) -> u64 {
    let mut queues = FxHashMap::<(StackId, u64), Vec<usize>>::default();
    for it in held.live_by(Work::Program) {
        if let Some(stack) = it.stack {
            queues.entry((stack, it.bytes)).or_default().push(it.event);
        }
    }
    let beyond = queues.iter().filter_map(|(&(_, bytes), events)| {
        let (&first, &last) = (events.first()?, events.last()?);
        let used_later = held.first_forward.is_some_and(|works| works > last && first < last);
        let is_queue = held.is_known() && events.len() >= FILLED && used_later;
        is_queue.then(|| bytes.saturating_mul(events.len() as u64 - 2))
    });
    beyond.max().unwrap_or(0)
}

/// Fewer blocks of one kind are no queue.
const QUEUE: usize = 3;

/// What is asked for at one line outside all modules, always as large, and goes in the order in which it came.
fn ahead(lifetimes: &Lifetimes, purposes: &Purposes<'_>, moment: Moment) -> u64 {
    let mut queues = FxHashMap::<(StackId, u64), Vec<Lifetime>>::default();
    for it in lifetimes.iter() {
        if let Some(stack) = it.stack.filter(|_| it.allocated.event().is_some()) {
            queues.entry((stack, it.requested)).or_default().push(it);
        }
    }
    let beyond = queues.iter().filter_map(|(&(stack, bytes), all)| {
        let live = all.iter().filter(|it| it.is_live_after(moment)).count();
        // They go in the order in which they came, one now and then: a list that is given up goes in one go.
        let gone: Vec<_> = all.iter().filter_map(|it| it.free_requested.event()).collect();
        let apart = gone.windows(2).filter(|pair| pair[1] > pair[0] + 2).count();
        let is_queue = live >= QUEUE && gone.is_sorted() && apart >= QUEUE.max(gone.len() / 2);
        let of_a_module = purposes.has_file(Some(stack), "/torch/nn/modules/module.py")
            || purposes.has_file(Some(stack), "/torch/optim/");
        (is_queue && !of_a_module).then(|| bytes.saturating_mul(live as u64 - 2))
    });
    beyond.max().unwrap_or(0)
}

/// An optimizer leaves marks, a way back leaves its frames; what is kept for one is live long after its layer.
fn learning(
    device: &DeviceView<'_>,
    lifetimes: &Lifetimes,
    purposes: &Purposes<'_>,
    moment: Moment,
) -> Learning {
    if trains(device) {
        return Learning::Trains;
    }
    let (mut asked, mut kept) = (0_u64, 0_u64);
    for (row, it) in lifetimes.iter().enumerate().filter(|(_, it)| it.allocated <= moment) {
        if matches!(purposes.of(row, &it).0, Purpose::Activations | Purpose::Temporary) {
            asked = asked.saturating_add(it.requested);
            if it.is_live_after(moment) {
                kept = kept.saturating_add(it.requested);
            }
        }
    }
    if kept > asked / 4 { Learning::KeepsForAWayBack } else { Learning::OnlyForward }
}

/// Fewer requests of a pass tell nothing; as many as [`SURE`] have had time to go.
const TELLING: usize = 20;
const SURE: usize = 40;

/// The same where stacks tell what asked for what: with a graph, most that a pass asks for is kept; without, little is.
fn learning_by_stacks(device: &DeviceView<'_>, held: &Held<'_>) -> Learning {
    let (all, kept) = held.kept_of_the_pass();
    if held.went_back || trains(device) {
        Learning::Trains
    } else if all >= TELLING && kept * 10 >= all * if all < SURE { 7 } else { 4 } {
        Learning::KeepsForAWayBack
    } else {
        Learning::OnlyForward
    }
}

/// Whether something is trained: an optimizer leaves marks, a way back leaves its frames.
fn trains(device: &DeviceView<'_>) -> bool {
    let steps = || device.file.annotations.iter().any(|it| it.name.starts_with("Optimizer."));
    let stacks = &device.file.stacks;
    let goes_back =
        |frame: &Frame| &*frame.name == "backward" && frame.filename.contains("/torch/autograd/");
    let mut all = (0..stacks.len()).filter_map(|number| StackId::new(u32::try_from(number).ok()?));
    steps() || all.any(|stack| stacks.frames(stack).iter().any(goes_back))
}

/// Where a model that has no iterations begins to work: at the first call of a module, or the first free.
pub(super) fn work_begins(device: &DeviceView<'_>) -> usize {
    let stacks = &device.file.stacks;
    let calls = |frame: &Frame| {
        &*frame.name == "_call_impl" && frame.filename.ends_with("/nn/modules/module.py")
    };
    let begins = |entry: &tonnage_events::TraceEntry| {
        let called = || entry.stack.is_some_and(|stack| stacks.frames(stack).iter().any(calls));
        entry.action == Action::FreeRequested || (entry.action == Action::Alloc && called())
    };
    device.entries.iter().position(begins).unwrap_or(device.entries.len())
}
