//! What grows from one iteration to the next.
//!
//! In:  a device, its lifetimes, its iterations.
//! Out: a [`Growth`]: what leaks, what longer inputs ask for, and from which lines.
//!
//! The most that is *passing* at once (see `retention.rs`), iteration by iteration, is what inputs decide: it is free of
//! parameters, of optimizer states that the first step makes, and of leaks. So growth by longer inputs is the
//! largest of these less the first that is steady.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use tonnage_events::{Action, StackId};

use super::concatenation::grows_by_concatenation;
use super::iterations::{IterationSource, Iterations, before};
use super::lines::Lines;
use super::one_pass::{failed_elsewhere, is_one_pass, is_way_back};
use super::retention::{Retention, iteration_of, retentions};
use crate::device_view::DeviceView;
use crate::levels::Levels;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};

/// Growth below this share of what is reserved at the peak is none.
const STEADY: f64 = 0.02;

/// As many blocks may stay of an iteration that makes nothing: cuBLAS and cuBLASLt take one for each stream.
const WORKSPACES: usize = 4;

/// How many lines are named.
const NAMED: usize = 5;

/// How many iterations are listed; the middle of longer loops is left out.
const LISTED: usize = 64;

/// What a history does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthKind {
    /// Blocks are added in every iteration and never freed.
    Leak,
    /// Later iterations ask for more.
    LongerInputs,
    /// A tensor grows by concatenation.
    GrowingTensor,
    /// More is reserved, though no more is asked for.
    Fragmentation,
    /// Neither.
    Steady,
    /// No iterations were found.
    Unknown,
}

impl GrowthKind {
    /// What happens, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Leak => "memory leaks",
            Self::LongerInputs => "inputs get longer",
            Self::GrowingTensor => "a tensor grows by concatenation",
            Self::Fragmentation => "reserved memory grows more than what is asked for",
            Self::Steady | Self::Unknown => "steady",
        }
    }
}

/// What grows from one iteration to the next.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    /// The largest kind.
    pub kind: GrowthKind,
    /// What iterations were told by; none if there are none.
    pub told_by: Option<IterationSource>,
    /// How many there are.
    pub iterations: usize,
    /// Bytes that stay in an iteration of the leaking kind, on average.
    pub leak_per_iteration: u64,
    /// Bytes that leaked in all, in iterations that the history has lost too.
    pub leak: u64,
    /// Of these, live where reserved memory first peaks.
    pub leak_at_peak: u64,
    /// The most that an iteration asks for beyond the first steady one.
    pub longer_inputs: u64,
    /// The same where a tensor that the loop concatenates is what grows; then `longer_inputs` is 0.
    pub growing_tensor: u64,
    /// Whether that iteration is also the one where most is live, or nearly: else longer inputs limit nothing.
    #[serde(skip)]
    pub(super) longest_is_largest: bool,
    /// The first steady iteration, from 0.
    pub steady: usize,
    /// The iteration that asks for most, from 0.
    pub longest: usize,
    /// Reserved memory gained since the first iteration that more live bytes do not explain.
    pub fragmentation: u64,
    /// The lines that leak or grow, largest first.
    pub lines: Vec<GrowingLine>,
    /// The first and last iterations, in order.
    pub each: Vec<Iteration>,
}

/// A line that asks for more and more.
#[derive(Clone, Debug, Serialize)]
pub struct GrowingLine {
    /// The line; none without stacks.
    pub line: Option<String>,
    /// Leak, longer inputs or a growing tensor.
    pub kind: GrowthKind,
    /// Bytes it added in all.
    pub bytes: u64,
    /// Blocks it leaked.
    pub blocks: usize,
}

/// One iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Iteration {
    /// Its number, from 0.
    pub number: usize,
    /// Its first entry.
    pub first_event: usize,
    /// Most live requested bytes in it.
    pub requested: u64,
    /// Of these, the most that it does not keep.
    pub passing: u64,
    /// Most reserved bytes in it.
    pub reserved: u64,
    /// Bytes that leaked in it.
    pub leaked: u64,
}

/// Growth, and what the rest of the report takes from the same look.
pub(super) struct Grown {
    pub(super) growth: Growth,
    pub(super) iterations: Option<Iterations>,
    pub(super) retentions: Vec<Retention>,
}

impl Grown {
    pub(super) fn of(
        device: &DeviceView<'_>,
        lifetimes: &Lifetimes,
        levels: &Levels,
        live: &[u64],
        peak: Moment,
        lines: &mut Lines<'_>,
    ) -> Self {
        let iterations = Iterations::find(device, lifetimes, live);
        let Some(loops) = &iterations else { return Self::without_iterations(lifetimes) };
        if is_way_back(live, loops) {
            return Self::without_iterations(lifetimes);
        }
        let mut retentions = retentions(lifetimes, loops);
        leave_out_unfinished(device, lifetimes, loops, &mut retentions);
        let growth = grow(device, lifetimes, levels, live, peak, loops, &retentions, lines);
        // Layers look like a loop that keeps what each of them makes, or that asks for more as the pass goes on.
        let larger = growth.longer_inputs.max(growth.growing_tensor);
        let grows = growth.leak > 0 || larger > 0;
        let start = loops.ranges[0].start;
        let failed = device.entries[start..].iter().any(|it| it.action == Action::Oom);
        if grows && is_one_pass(lifetimes, loops, &retentions, failed) {
            return Self::without_iterations(lifetimes);
        }
        let most = growth.leak.max(larger);
        if failed_elsewhere(device, loops).is_some_and(|event| most < before(live, event) / 2) {
            return Self::without_iterations(lifetimes);
        }
        Self { growth, iterations, retentions }
    }

    fn without_iterations(lifetimes: &Lifetimes) -> Self {
        let growth = Growth {
            kind: GrowthKind::Unknown,
            told_by: None,
            iterations: 0,
            leak_per_iteration: 0,
            leak: 0,
            leak_at_peak: 0,
            longer_inputs: 0,
            growing_tensor: 0,
            longest_is_largest: false,
            steady: 0,
            longest: 0,
            fragmentation: 0,
            lines: Vec::new(),
            each: Vec::new(),
        };
        Self { growth, iterations: None, retentions: vec![Retention::Passes; lifetimes.len()] }
    }
}

/// Where a request fails in the last iteration or behind it, what that one holds is no leak yet, unless it is as much as the others
/// leaked.
fn leave_out_unfinished(
    device: &DeviceView<'_>,
    lifetimes: &Lifetimes,
    loops: &Iterations,
    retentions: &mut [Retention],
) {
    let last = loops.ranges.len() - 1;
    let entries = device.entries.get(loops.ranges[last].start..).unwrap_or_default();
    if !entries.iter().any(|it| it.action == Action::Oom) {
        return;
    }
    let mut leaked = vec![0_u64; last + 1];
    let mut of_last = Vec::new();
    for (row, it) in
        lifetimes.iter().enumerate().filter(|&(row, _)| retentions[row] == Retention::Leaks)
    {
        let Some(iteration) = it.allocated.event().and_then(|event| loops.of(event)) else {
            continue;
        };
        leaked[iteration] = leaked[iteration].saturating_add(it.requested);
        if iteration == last {
            of_last.push(row);
        }
    }
    let unfinished = leaked[last];
    let inner = &mut leaked[1.min(last)..last];
    inner.sort_unstable();
    let usual = inner.get(inner.len() / 2).copied().unwrap_or(0);
    if unfinished < usual - usual / 10 {
        for row in of_last {
            retentions[row] = Retention::Passes;
        }
    }
}

/// Whether the first iteration is like those that follow. It is not if what precedes the loop is part of it, or if
/// it makes what stays, as the first step of an optimizer does; workspaces of libraries do not count.
fn begins_steady(lifetimes: &Lifetimes, loops: &Iterations, retentions: &[Retention]) -> bool {
    let made = |(row, it): &(usize, Lifetime)| {
        retentions[*row] == Retention::Stays
            && it.allocated.event().is_some_and(|event| loops.ranges[0].contains(&event))
    };
    !loops.includes_setup && lifetimes.iter().enumerate().filter(made).count() <= WORKSPACES
}

/// Whether live bytes rise from one iteration to the next by at least half of what leaks.
fn rises(live: &[u64], loops: &Iterations, each: &[Iteration]) -> bool {
    let inner = 1..each.len().saturating_sub(1).max(1);
    let kept = each[inner.clone()].iter().fold(0_u64, |sum, it| sum.saturating_add(it.leaked));
    let [from, to] = [inner.start, inner.end].map(|at| {
        let start = loops.ranges.get(at).map_or(loops.end(), |it| it.start);
        before(live, start)
    });
    to.saturating_sub(from) >= kept / 2
}

#[allow(clippy::too_many_arguments, reason = "what one look at a history yields")]
fn grow(
    device: &DeviceView<'_>,
    lifetimes: &Lifetimes,
    levels: &Levels,
    live: &[u64],
    peak: Moment,
    loops: &Iterations,
    retentions: &[Retention],
    lines: &mut Lines<'_>,
) -> Growth {
    let usual = usual_requests(lifetimes, loops);
    let passes = |row: usize, it: &Lifetime| {
        retentions[row] == Retention::Passes && !usual.comes_after_the_loop(row, it, loops)
    };
    let passing = lifetimes.iter().enumerate().filter(|(row, it)| passes(*row, it));
    let passing = super::moments::live_after(passing.map(|(_, it)| it), device.entries.len());
    let most = |of: &dyn Fn(usize) -> u64, range: &std::ops::Range<usize>| {
        range.clone().map(of).max().unwrap_or(0)
    };
    let reserved = |event: usize| levels.after()[event].reserved;
    let mut each: Vec<_> = loops
        .ranges
        .iter()
        .enumerate()
        .map(|(number, range)| Iteration {
            number,
            first_event: range.start,
            requested: most(&|event| live[event], range),
            passing: most(&|event| passing[event], range),
            reserved: most(&reserved, range),
            leaked: 0,
        })
        .collect();
    let (mut leak, mut leak_at_peak, mut leak_before) = (0_u64, 0_u64, 0_u64);
    for (_, it) in
        lifetimes.iter().enumerate().filter(|&(row, _)| retentions[row] == Retention::Leaks)
    {
        leak = leak.saturating_add(it.requested);
        if it.is_live_after(peak) {
            leak_at_peak = leak_at_peak.saturating_add(it.requested);
        }
        if it.allocated == Moment::Before {
            leak_before = leak_before.saturating_add(it.requested);
        } else if let Some(iteration) = iteration_of(&it, loops) {
            each[iteration].leaked = each[iteration].leaked.saturating_add(it.requested);
        }
    }
    // What the loop gathered and freed before the peak was no leak. Nor is what a way back through equal layers makes:
    // it looks like a loop that keeps its gradients, but gives back more than it keeps.
    let freed_later =
        leak_at_peak < leak / 2 && peak.event().is_some_and(|event| event >= loops.end());
    if freed_later || !rises(live, loops, &each) {
        (leak, leak_at_peak, leak_before) = (0, 0, 0);
    }
    let first = usize::from(!begins_steady(lifetimes, loops, retentions));
    let longest = (first..each.len()).max_by_key(|&i| (each[i].passing, usize::MAX - i));
    let longest = longest.unwrap_or(first);
    let longer_inputs = each[longest].passing.saturating_sub(each[first].passing);
    let largest = each.iter().map(|it| it.requested).max().unwrap_or(0);
    let longest_is_largest = each[longest].requested >= largest - largest / 20;
    let reserved_peak = levels.peak(|level| level.reserved).map_or(0, |peak| peak.bytes);
    let gained = |of: fn(&Iteration) -> u64| {
        each.iter().map(of).max().unwrap_or(0).saturating_sub(of(&each[0]))
    };
    let fragmentation = gained(|it| it.reserved).saturating_sub(gained(|it| it.requested));
    let small = (reserved_peak as f64 * STEADY) as u64;
    let top = |iteration: usize| {
        let range = loops.ranges[iteration].clone();
        Moment::Event(range.max_by_key(|&event| (passing[event], usize::MAX - event)).unwrap_or(0))
    };
    let (was, is) = (top(first), top(longest));
    let added = |it: &Lifetime, retention: Retention| {
        let sign = i64::from(it.is_live_after(is)) - i64::from(it.is_live_after(was));
        if retention == Retention::Passes { sign * signed(it.requested) } else { 0 }
    };
    let most_grown = by_stack(lifetimes, retentions, added).into_iter().max_by_key(|it| it.1);
    let is_tensor = most_grown.is_some_and(|(stack, (bytes, _))| {
        bytes >= signed(longer_inputs / 2) && grows_by_concatenation(lifetimes, stack)
    });
    let of_larger = if is_tensor { GrowthKind::GrowingTensor } else { GrowthKind::LongerInputs };
    let kinds = [
        (leak, GrowthKind::Leak),
        (longer_inputs, of_larger),
        (fragmentation, GrowthKind::Fragmentation),
    ];
    let largest = kinds.into_iter().max_by_key(|&(bytes, _)| bytes);
    let kind = largest.filter(|&(bytes, _)| bytes > small).map_or(GrowthKind::Steady, |it| it.1);
    let mut named =
        growing_lines(lifetimes, retentions, lines, GrowthKind::Leak, |it, retention| {
            if leak > 0 && retention == Retention::Leaks { signed(it.requested) } else { 0 }
        });
    if longer_inputs > 0 {
        named.extend(growing_lines(lifetimes, retentions, lines, of_larger, added));
    }
    Growth {
        kind,
        told_by: Some(loops.source),
        iterations: each.len(),
        leak_per_iteration: leak.saturating_sub(leak_before) / each.len().max(1) as u64,
        leak,
        leak_at_peak,
        longer_inputs: if is_tensor { 0 } else { longer_inputs },
        growing_tensor: if is_tensor { longer_inputs } else { 0 },
        longest_is_largest,
        steady: first,
        longest,
        fragmentation,
        lines: named,
        each: shortened(each),
    }
}

/// What the iterations before the last ask for.
struct UsualRequests {
    stacks: FxHashSet<StackId>,
    /// The most requests of one of them.
    most: usize,
    /// The row of the last iteration's first request, and how many it has.
    first_of_last: usize,
    of_last: usize,
}

/// As many requests may come after a loop that ends with its last iteration.
const AFTER_A_LOOP: usize = 2;

fn usual_requests(lifetimes: &Lifetimes, loops: &Iterations) -> UsualRequests {
    let last = loops.ranges.len() - 1;
    let mut requests = vec![0_usize; last + 1];
    let mut usual = UsualRequests {
        stacks: FxHashSet::default(),
        most: 0,
        first_of_last: usize::MAX,
        of_last: 0,
    };
    for (row, it) in lifetimes.iter().enumerate() {
        let Some(at) = it.allocated.event().and_then(|event| loops.of(event)) else { continue };
        requests[at] += 1;
        if at < last {
            usual.stacks.extend(it.stack);
        } else {
            usual.first_of_last = usual.first_of_last.min(row);
        }
    }
    usual.most = requests[..last].iter().copied().max().unwrap_or(0);
    usual.of_last = requests[last];
    usual
}

impl UsualRequests {
    /// Whether an allocation of the last iteration is none of the loop's: its stack is of no other iteration; without
    /// stacks, it is one of at most two that come after as many as any other has.
    fn comes_after_the_loop(&self, row: usize, it: &Lifetime, loops: &Iterations) -> bool {
        let last = loops.ranges.len() - 1;
        if it.allocated.event().and_then(|event| loops.of(event)) != Some(last) {
            return false;
        }
        match it.stack {
            Some(stack) => !self.stacks.contains(&stack),
            // Rows are in the order of their requests.
            None => {
                self.of_last <= self.most + AFTER_A_LOOP
                    && row.saturating_sub(self.first_of_last) >= self.most
            }
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The lines that add most; `added` says how much an allocation adds.
fn growing_lines(
    lifetimes: &Lifetimes,
    retentions: &[Retention],
    lines: &mut Lines<'_>,
    kind: GrowthKind,
    added: impl Fn(&Lifetime, Retention) -> i64,
) -> Vec<GrowingLine> {
    let mut by_line = BTreeMap::<Option<String>, (i64, usize)>::new();
    for (stack, (bytes, blocks)) in by_stack(lifetimes, retentions, added) {
        let sum = by_line.entry(lines.of(stack)).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1 + blocks);
    }
    let mut found: Vec<_> = by_line
        .into_iter()
        .filter(|&(_, (bytes, _))| bytes > 0)
        .map(|(line, (bytes, blocks))| GrowingLine { line, kind, bytes: bytes as u64, blocks })
        .collect();
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.line.cmp(&b.line)));
    found.truncate(NAMED);
    found
}

/// What each stack adds, and with how many blocks.
fn by_stack(
    lifetimes: &Lifetimes,
    retentions: &[Retention],
    added: impl Fn(&Lifetime, Retention) -> i64,
) -> FxHashMap<Option<StackId>, (i64, usize)> {
    let mut stacks = FxHashMap::<Option<StackId>, (i64, usize)>::default();
    for (row, it) in lifetimes.iter().enumerate() {
        let bytes = added(&it, retentions[row]);
        if bytes != 0 {
            let sum = stacks.entry(it.stack).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1 + usize::from(bytes > 0));
        }
    }
    stacks
}

/// Without the middle, if there are many.
fn shortened(mut each: Vec<Iteration>) -> Vec<Iteration> {
    if each.len() > LISTED {
        each.drain(LISTED / 2..each.len() - LISTED / 2);
    }
    each
}
