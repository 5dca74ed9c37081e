//! What becomes of each allocation of a loop: it stays, leaks or passes.
//!
//! In:  lifetimes and the iterations.
//! Out: a [`Fate`] for each allocation.
//!
//! A block of a loop *stays* if it is still live where the last iteration ends, and was handed out before the one
//! before that began: cuts lie somewhere inside the loop, and what the last iteration uses may come before the last
//! of them. Parameters, optimizer states and workspaces stay; they come once.
//!
//! What comes from the same place again and again and stays each time *leaks*, and then so does what that place
//! asked for in the first iteration and in the last. A place is a stack; without stacks, a size. A stack may be that
//! of several requests; of these the sizes leak that come back.
//!
//! All else *passes*.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::StackId;

use super::iterations::Iterations;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};

/// What becomes of each allocation, by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    Leaks,
    Passes,
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
    /// The same for the first two iterations and the last two: optimizer states of the same size come with those,
    /// gradients stay of these. A stack tells them apart, a size does not.
    at_ends: u64,
    /// The sizes that come back each time; none where they differ.
    sizes: Option<FxHashSet<u64>>,
    /// Which of its requests in an iteration stay, counted from 0.
    turns: FxHashSet<usize>,
    /// Of these, how many entries the longest that did not stay lived: a leak now and then.
    passed: FxHashMap<usize, usize>,
}

/// The iteration that an allocation begins in; those before the loop count as the first.
pub(super) fn iteration_of(it: &Lifetime, loops: &Iterations) -> Option<usize> {
    match it.allocated {
        Moment::Before => Some(0),
        Moment::Event(event) if event < loops.ranges[0].start => Some(0),
        Moment::Event(event) => loops.of(event),
        Moment::After => None,
    }
}

pub(super) fn in_loop(it: &Lifetime, loops: &Iterations) -> bool {
    it.allocated.event().is_some_and(|event| event >= loops.ranges[0].start)
}

/// Whether what happens in these iterations, of `last + 1`, happens again and again: in most of those between the
/// first and the last, now and then in each quarter of them, or in turns. The ends of a loop tell nothing by themselves.
fn comes_back(found: &BTreeMap<usize, u64>, last: usize) -> bool {
    let between = last.saturating_sub(1);
    let count = found.range(1..last).count();
    let quarter = |i: usize| 1 + between * i / 4..1 + between * (i + 1) / 4;
    (count >= 1 && count * 10 >= between * 6 && found.range(..last).count() >= 2)
        || (between >= 8 && (0..4).all(|i| found.range(quarter(i)).next().is_some()))
        || comes_in_turns(found, last)
}

/// Whether these iterations, of which there are at least three, are equally far apart from the first to the last, and the
/// same bytes stay of each: what every epoch does once.
fn comes_in_turns(found: &BTreeMap<usize, u64>, last: usize) -> bool {
    let at: Vec<usize> = found.keys().copied().collect();
    let [first, second, .., latest] = at[..] else { return false };
    let gap = second - first;
    let mut bytes = found.values();
    let each = bytes.next();
    gap >= 2
        && at.windows(2).all(|pair| pair[1] - pair[0] == gap)
        && first <= gap
        && latest + gap > last
        && bytes.all(|it| Some(it) == each)
}

/// How many entries lie between its request and its free, if both are there.
fn life(it: &Lifetime) -> Option<usize> {
    Some(it.free_requested.event()? - it.allocated.event()?)
}

/// The sizes that are asked for right before and right after an allocation; `true` for the latter.
fn neighbours_of(lifetimes: &Lifetimes, row: usize) -> [(bool, Option<u64>); 2] {
    let size = |row: Option<usize>| {
        row.filter(|&row| row < lifetimes.len()).map(|row| lifetimes.get(row).requested)
    };
    [(false, size(row.checked_sub(1))), (true, size(row.checked_add(1)))]
}

/// What stays, by place and iteration.
type Staying = FxHashMap<Place, BTreeMap<usize, u64>>;

pub(super) fn fates(lifetimes: &Lifetimes, loops: &Iterations) -> Vec<Fate> {
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
    // A size alone may be that of a parameter: in the loop it has other neighbours.
    let mut neighbours = FxHashSet::default();
    if lifetimes.iter().any(|it| it.stack.is_none()) {
        let inner = |it: &Lifetime| {
            let at = it.allocated.event().and_then(|event| loops.of(event));
            at.is_some_and(|at| (1..last).contains(&at)) && it.is_live_after(end)
        };
        for (row, it) in lifetimes.iter().enumerate().filter(|(_, it)| inner(it)) {
            neighbours.extend(neighbours_of(lifetimes, row).map(|its| (it.requested, its)));
        }
    }
    let is_of_loop = |row: usize, it: &Lifetime| {
        let mut its = neighbours_of(lifetimes, row).into_iter();
        it.stack.is_some() || its.any(|its| neighbours.contains(&(it.requested, its)))
    };
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
        let before = || !hidden && eve.contains(&event) && is_of_loop(row, &it);
        if !it.is_live_after(end) || (iteration.is_none() && !before()) {
            continue;
        }
        let known = usual.sizes.as_ref().is_none_or(|sizes| sizes.contains(&it.requested));
        // An iteration that was not finished still holds what it would have freed.
        let freed_as_usual = || {
            let longest = usual.passed.get(&turn);
            longest.zip(life(&it)).is_some_and(|(&longest, life)| life <= longest + longest / 4)
        };
        // So may the one before it, whose results the last one takes.
        let late = iteration.is_some_and(|at| at + 1 >= last);
        let other_turn = iteration == Some(last) && !usual.turns.contains(&turn);
        if !known || other_turn || (late && freed_as_usual()) {
            continue;
        }
        // The first iteration also has what comes once, the last what the next would free.
        let bytes = seen.entry((place(&it), iteration)).or_default();
        let inner = iteration.is_some_and(|at| at >= 2 && at + 1 < last);
        if bytes.saturating_add(it.requested) <= if inner { usual.bytes } else { usual.at_ends } {
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
            usual.at_ends = usual.bytes;
        } else if let Some(life) = life(&it) {
            let longest = usual.entry(place).or_default().passed.entry(turn).or_default();
            *longest = life.max(*longest);
        }
    }
    for (&place, usual) in usual.iter_mut().filter(|(place, _)| matches!(place, Place::Size(_))) {
        let inner = leaking[&place].range(2..last.saturating_sub(1).max(2));
        let mut inner: Vec<u64> = inner.map(|(_, &bytes)| bytes).collect();
        inner.sort_unstable();
        usual.at_ends = inner.get(inner.len() / 2).copied().unwrap_or(usual.bytes);
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
