//! What grows from one iteration to the next.
//!
//! In:  a device, its lifetimes, its iterations.
//! Out: a [`Growth`]: what leaks, what longer inputs ask for, and from which lines.
//!
//! # Note \[Staying, leaking, passing\]
//!
//! A block of a loop *stays* if it is still live where the last iteration ends, and was handed out before the one
//! before that began: cuts lie somewhere inside the loop, and what the last iteration uses may come before the last
//! of them. Parameters, optimizer states and workspaces stay; they come once. What comes from the
//! same place again and again and stays each time *leaks*, and then so does what that place asked
//! for in the first iteration and in the last. A place is a stack; without stacks, a size. A stack may be that of
//! several requests; of these the sizes leak that come back.
//!
//! All else *passes*. The most that is passing at once, iteration by iteration, is what inputs decide:
//! it is free of parameters, of optimizer states that the first step makes, and of leaks. So growth by longer
//! inputs is the largest of these less the first that is steady.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use tonnage_events::StackId;

use super::iterations::{IterationSource, Iterations};
use super::lines::Lines;
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
    /// More is reserved, though no more is asked for.
    Fragmentation,
    /// Neither.
    Steady,
    /// No iterations were found.
    Unknown,
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
    /// The first steady iteration, from 0.
    pub steady: usize,
    /// The iteration that asks for most, from 0.
    pub longest: usize,
    /// Reserved memory gained since the first iteration that neither explains.
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
    /// Leak or longer inputs.
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

/// What becomes of each allocation, by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    Leaks,
    Passes,
}

/// Growth, and what the rest of the report takes from the same look.
pub(super) struct Grown {
    pub(super) growth: Growth,
    pub(super) iterations: Option<Iterations>,
    pub(super) fates: Vec<Fate>,
}

/// What a block is known by from one iteration to the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Stack(StackId),
    Size(u64),
    /// All are one, where sizes are all there is and they differ each time.
    Any,
}

fn place_of(it: &Lifetime) -> Place {
    it.stack.map_or(Place::Size(it.requested), Place::Stack)
}

/// What a place that leaks adds to an iteration.
#[derive(Default)]
struct Usual {
    /// The most that stays of one.
    bytes: u64,
    /// The sizes that come back each time; none where they differ.
    sizes: Option<FxHashSet<u64>>,
    /// Which of its requests in an iteration stay, counted from 0.
    turns: FxHashSet<usize>,
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
        let Some(loops) = &iterations else {
            let growth = Growth {
                kind: GrowthKind::Unknown,
                told_by: None,
                iterations: 0,
                leak_per_iteration: 0,
                leak: 0,
                leak_at_peak: 0,
                longer_inputs: 0,
                steady: 0,
                longest: 0,
                fragmentation: 0,
                lines: Vec::new(),
                each: Vec::new(),
            };
            let fates = vec![Fate::Passes; lifetimes.len()];
            return Self { growth, iterations, fates };
        };
        let fates = fates(lifetimes, loops);
        let growth = grow(device, lifetimes, levels, live, peak, loops, &fates, lines);
        Self { growth, iterations, fates }
    }
}

/// The iteration that an allocation begins in; those before the loop count as the first.
fn iteration_of(it: &Lifetime, loops: &Iterations) -> Option<usize> {
    match it.allocated {
        Moment::Before => Some(0),
        Moment::Event(event) if event < loops.ranges[0].start => Some(0),
        Moment::Event(event) => loops.of(event),
        Moment::After => None,
    }
}

fn in_loop(it: &Lifetime, loops: &Iterations) -> bool {
    it.allocated.event().is_some_and(|event| event >= loops.ranges[0].start)
}

/// Whether what happens in these iterations, of `last + 1`, happens again and again: in most of those between the
/// first and the last, or now and then in each quarter of them. The ends of a loop tell nothing by themselves.
fn comes_back(found: &BTreeMap<usize, u64>, last: usize) -> bool {
    let between = last.saturating_sub(1);
    let count = found.range(1..last).count();
    let quarter = |i: usize| 1 + between * i / 4..1 + between * (i + 1) / 4;
    (count >= 1 && count * 10 >= between * 6 && found.range(..last).count() >= 2)
        || (between >= 8 && (0..4).all(|i| found.range(quarter(i)).next().is_some()))
}

/// What stays, by place and iteration.
type Staying = FxHashMap<Place, BTreeMap<usize, u64>>;

fn fates(lifetimes: &Lifetimes, loops: &Iterations) -> Vec<Fate> {
    let last = loops.ranges.len() - 1;
    let end = Moment::Event(loops.end().saturating_sub(1));
    let mut fates = vec![Fate::Passes; lifetimes.len()];
    let mut staying = Staying::default();
    let mut together = BTreeMap::new();
    for (row, it) in lifetimes.iter().enumerate() {
        let Some(iteration) = iteration_of(&it, loops).filter(|_| it.is_live_after(end)) else {
            continue;
        };
        if iteration + 1 < last {
            fates[row] = Fate::Stays;
        }
        if in_loop(&it, loops) {
            for found in [staying.entry(place_of(&it)).or_default(), &mut together] {
                let bytes: &mut u64 = found.entry(iteration).or_default();
                *bytes = bytes.saturating_add(it.requested);
            }
        }
    }
    let middle =
        |found: &BTreeMap<usize, u64>| -> u64 { found.range(1..last).map(|it| it.1).sum() };
    let all = middle(&together);
    staying.retain(|_, found| comes_back(found, last));
    // Sizes that differ from iteration to iteration hide a leak that no place shows.
    let shown: u64 = staying.values().map(middle).sum();
    let filled = together.range(1..last).count();
    let hidden = shown * 2 < all && last >= 4 && filled * 10 >= (last - 1) * 8;
    let place = |it: &Lifetime| if hidden { Place::Any } else { place_of(it) };
    if hidden {
        staying = Staying::from_iter([(Place::Any, together)]);
    }
    let usual = usual(lifetimes, loops, &staying, place);
    // Where a loop begins is told by one of its requests, and others may come before it.
    let first = &loops.ranges[0];
    let eve = first.start.saturating_sub(2 * first.len())..first.start;
    let mut seen = FxHashMap::<(Place, Option<usize>), u64>::default();
    let mut turns = Turns::default();
    for (row, it) in lifetimes.iter().enumerate() {
        let Some(usual) = usual.get(&place(&it)) else { continue };
        let Some(event) = it.allocated.event() else {
            // Leaked by iterations that the history has lost. A size alone does not say so.
            let alike = usual
                .sizes
                .as_ref()
                .map_or(it.requested <= usual.bytes, |sizes| sizes.contains(&it.requested));
            if it.stack.is_some() && it.is_live_after(end) && alike {
                fates[row] = Fate::Leaks;
            }
            continue;
        };
        let iteration = loops.of(event);
        let turn = turns.next(place(&it), iteration);
        if !it.is_live_after(end) || (iteration.is_none() && (hidden || !eve.contains(&event))) {
            continue;
        }
        let known = usual.sizes.as_ref().is_none_or(|sizes| sizes.contains(&it.requested));
        // An iteration that was not finished still holds what it would have freed.
        if !known || (iteration == Some(last) && !usual.turns.contains(&turn)) {
            continue;
        }
        // The first iteration also has what comes once, the last what the next would free.
        let bytes = seen.entry((place(&it), iteration)).or_default();
        if bytes.saturating_add(it.requested) <= usual.bytes {
            *bytes += it.requested;
            fates[row] = Fate::Leaks;
        }
    }
    fates
}

/// Counts the requests of each place in each iteration.
#[derive(Default)]
struct Turns(FxHashMap<Place, (Option<usize>, usize)>);

impl Turns {
    /// Which one the next is, from 0.
    fn next(&mut self, place: Place, iteration: Option<usize>) -> usize {
        let (latest, turns) = self.0.entry(place).or_default();
        if *latest != iteration {
            (*latest, *turns) = (iteration, 0);
        }
        *turns += 1;
        *turns - 1
    }
}

/// What each of the places that leak adds to an iteration, told by those between the first and the last.
fn usual(
    lifetimes: &Lifetimes,
    loops: &Iterations,
    leaking: &Staying,
    place: impl Fn(&Lifetime) -> Place,
) -> FxHashMap<Place, Usual> {
    let last = loops.ranges.len() - 1;
    let end = Moment::Event(loops.end().saturating_sub(1));
    // In how many iterations a place asks for this size and keeps it, the last of these, and the bytes.
    let mut sizes = FxHashMap::<(Place, u64), (usize, usize, u64)>::default();
    let mut turns = Turns::default();
    let mut usual = FxHashMap::<Place, Usual>::default();
    for it in lifetimes.iter() {
        let at = it.allocated.event().and_then(|event| loops.of(event));
        let Some(iteration) = at.filter(|at| (1..last).contains(at)) else { continue };
        let place = place(&it);
        let Some(found) = leaking.get(&place) else { continue };
        let turn = turns.next(place, Some(iteration));
        if it.is_live_after(end) {
            let (times, latest, bytes) = sizes.entry((place, it.requested)).or_default();
            *times += usize::from(*times == 0 || *latest != iteration);
            (*latest, *bytes) = (iteration, bytes.saturating_add(it.requested));
            let usual = usual.entry(place).or_default();
            usual.turns.insert(turn);
            usual.bytes = found.range(1..last).map(|(_, &bytes)| bytes).max().unwrap_or(0);
        }
    }
    // Sizes that come back in a third of the iterations that keep something are those that leak, if they are most.
    let mut known = FxHashMap::<Place, (u64, FxHashSet<u64>)>::default();
    for (&(place, size), &(times, _, bytes)) in &sizes {
        let found = leaking.get(&place).map_or(0, |found| found.range(1..last).count());
        if times * 3 >= found {
            let (sum, sizes) = known.entry(place).or_default();
            *sum = sum.saturating_add(bytes);
            sizes.insert(size);
        }
    }
    for (place, (sum, sizes)) in known {
        let all: u64 = leaking[&place].range(1..last).map(|(_, &bytes)| bytes).sum();
        if let Some(usual) = usual.get_mut(&place).filter(|_| sum * 2 >= all) {
            usual.sizes = Some(sizes);
        }
    }
    usual
}

/// Whether the first iteration is like those that follow. It is not if what precedes the loop is part of it, or if
/// it makes what stays, as the first step of an optimizer does; workspaces of libraries do not count.
fn begins_steady(lifetimes: &Lifetimes, loops: &Iterations, fates: &[Fate]) -> bool {
    let made = |(row, it): &(usize, Lifetime)| {
        fates[*row] == Fate::Stays
            && it.allocated.event().is_some_and(|event| loops.ranges[0].contains(&event))
    };
    !loops.includes_setup && lifetimes.iter().enumerate().filter(made).count() <= WORKSPACES
}

#[allow(clippy::too_many_arguments, reason = "what one look at a history yields")]
fn grow(
    device: &DeviceView<'_>,
    lifetimes: &Lifetimes,
    levels: &Levels,
    live: &[u64],
    peak: Moment,
    loops: &Iterations,
    fates: &[Fate],
    lines: &mut Lines<'_>,
) -> Growth {
    let passing = lifetimes.iter().zip(fates).filter(|&(_, &fate)| fate == Fate::Passes);
    let passing = super::live_after(passing.map(|(it, _)| it), device.entries.len());
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
    for (_, it) in lifetimes.iter().enumerate().filter(|&(row, _)| fates[row] == Fate::Leaks) {
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
    // What the loop gathered and freed before the peak was no leak.
    if leak_at_peak < leak / 2 && peak.event().is_some_and(|event| event >= loops.end()) {
        (leak, leak_at_peak, leak_before) = (0, 0, 0);
    }
    let first = usize::from(!begins_steady(lifetimes, loops, fates));
    let longest = (first..each.len()).max_by_key(|&i| (each[i].passing, usize::MAX - i));
    let longest = longest.unwrap_or(first);
    let longer_inputs = each[longest].passing.saturating_sub(each[first].passing);
    let reserved_peak = levels.peak(|level| level.reserved).map_or(0, |peak| peak.bytes);
    let gained = each.iter().map(|it| it.reserved).max().unwrap_or(0);
    let stayed: u64 = lifetimes
        .iter()
        .enumerate()
        .filter(|(row, it)| fates[*row] == Fate::Stays && in_loop(it, loops))
        .map(|(_, it)| it.requested)
        .sum();
    let fragmentation = gained
        .saturating_sub(each[first].reserved)
        .saturating_sub(leak.saturating_add(longer_inputs).saturating_add(stayed));
    let small = (reserved_peak as f64 * STEADY) as u64;
    let kinds = [
        (leak, GrowthKind::Leak),
        (longer_inputs, GrowthKind::LongerInputs),
        (fragmentation, GrowthKind::Fragmentation),
    ];
    let largest = kinds.into_iter().max_by_key(|&(bytes, _)| bytes);
    let kind = largest.filter(|&(bytes, _)| bytes > small).map_or(GrowthKind::Steady, |it| it.1);
    let mut named = growing_lines(lifetimes, fates, lines, GrowthKind::Leak, |it, fate| {
        if leak > 0 && fate == Fate::Leaks { signed(it.requested) } else { 0 }
    });
    let top = |iteration: usize| {
        let range = loops.ranges[iteration].clone();
        Moment::Event(range.max_by_key(|&event| (passing[event], usize::MAX - event)).unwrap_or(0))
    };
    let (was, is) = (top(first), top(longest));
    if longer_inputs > 0 {
        named.extend(growing_lines(
            lifetimes,
            fates,
            lines,
            GrowthKind::LongerInputs,
            |it, fate| {
                let sign = i64::from(it.is_live_after(is)) - i64::from(it.is_live_after(was));
                if fate == Fate::Passes { sign * signed(it.requested) } else { 0 }
            },
        ));
    }
    Growth {
        kind,
        told_by: Some(loops.source),
        iterations: each.len(),
        leak_per_iteration: leak.saturating_sub(leak_before) / each.len().max(1) as u64,
        leak,
        leak_at_peak,
        longer_inputs,
        steady: first,
        longest,
        fragmentation,
        lines: named,
        each: shortened(each),
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The lines that add most; `added` says how much an allocation adds.
fn growing_lines(
    lifetimes: &Lifetimes,
    fates: &[Fate],
    lines: &mut Lines<'_>,
    kind: GrowthKind,
    added: impl Fn(&Lifetime, Fate) -> i64,
) -> Vec<GrowingLine> {
    let mut stacks = FxHashMap::<Option<StackId>, (i64, usize)>::default();
    for (row, it) in lifetimes.iter().enumerate() {
        let bytes = added(&it, fates[row]);
        if bytes != 0 {
            let sum = stacks.entry(it.stack).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1 + usize::from(bytes > 0));
        }
    }
    let mut by_line = BTreeMap::<Option<String>, (i64, usize)>::new();
    for (stack, (bytes, blocks)) in stacks {
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

/// Without the middle, if there are many.
fn shortened(mut each: Vec<Iteration>) -> Vec<Iteration> {
    if each.len() > LISTED {
        each.drain(LISTED / 2..each.len() - LISTED / 2);
    }
    each
}
