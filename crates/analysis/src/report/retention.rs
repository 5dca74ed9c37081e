//! Which allocations of a loop are kept: each stays, leaks or passes.
//!
//! In:  lifetimes and the iterations.
//! Out: a [`Retention`] for each allocation.
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
//!
//! What a place keeps is summed by iteration once, and then only the sums are asked: the work grows with the allocations,
//! however many iterations leak.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::StackId;

use super::iterations::Iterations;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};
use crate::total_bytes::TotalBytes;

/// Whether a loop keeps an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// Kept, and comes once: a parameter, a state, a workspace.
    Stays,
    /// Kept, and comes again and again.
    Leaks,
    /// Freed by the loop.
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

/// Bytes that a place keeps, by the iteration that asked for them.
#[derive(Default)]
struct Kept(BTreeMap<usize, u64>);

impl Kept {
    fn add(&mut self, iteration: usize, bytes: u64) {
        let sum = self.0.entry(iteration).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// The iterations of a range that keep something, with their bytes.
    fn within(&self, range: Range<usize>) -> impl Iterator<Item = (usize, u64)> + '_ {
        let range = range.start..range.end.max(range.start);
        self.0.range(range).map(|(&iteration, &bytes)| {
            #[cfg(test)]
            tests::READ.set(tests::READ.get() + 1);
            (iteration, bytes)
        })
    }

    /// What is kept between the first iteration and the last.
    fn inner(&self, last: usize) -> Inner {
        let mut inner = Inner::default();
        for (_, bytes) in self.within(1..last) {
            inner.iterations += 1;
            inner.bytes = inner.bytes.saturating_add(bytes);
            inner.most = inner.most.max(bytes);
        }
        inner
    }

    /// The median of what is kept behind the first two iterations and before the last two.
    fn inmost_median(&self, last: usize) -> Option<u64> {
        let mut inmost: Vec<u64> =
            self.within(2..last.saturating_sub(1)).map(|(_, bytes)| bytes).collect();
        inmost.sort_unstable();
        inmost.get(inmost.len() / 2).copied()
    }
}

/// What a place keeps between the first iteration and the last.
#[derive(Clone, Copy, Default)]
struct Inner {
    /// In how many of them.
    iterations: usize,
    /// In all.
    bytes: u64,
    /// The most in one.
    most: u64,
}

/// What a place that leaks adds to an iteration.
struct Usual {
    /// What it keeps between the first iteration and the last.
    inner: Inner,
    /// The most that one of these keeps, for the first two iterations and the last two: optimizer states of the same size come with those,
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
fn comes_back(kept: &Kept, last: usize) -> bool {
    let between = last.saturating_sub(1);
    let count = kept.within(1..last).count();
    let quarter = |i: usize| 1 + between * i / 4..1 + between * (i + 1) / 4;
    (count >= 1 && count * 10 >= between * 6 && kept.within(0..last).count() >= 2)
        || (between >= 8 && (0..4).all(|i| kept.within(quarter(i)).next().is_some()))
        || comes_in_turns(kept, last)
}

/// Whether these iterations, of which there are at least three, are equally far apart from the first to the last, and the
/// same bytes stay of each: what every epoch does once. The last of all may not be finished.
fn comes_in_turns(kept: &Kept, last: usize) -> bool {
    let at: Vec<usize> = kept.0.keys().copied().collect();
    let [first, second, .., latest] = at[..] else { return false };
    let gap = second - first;
    let mut bytes = kept.0.range(..last).map(|(_, bytes)| bytes);
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

/// What each place keeps.
type Staying = FxHashMap<Place, Kept>;

pub(super) fn retentions(lifetimes: &Lifetimes, loops: &Iterations) -> Vec<Retention> {
    let last = loops.ranges.len() - 1;
    let end = Moment::Event(loops.end().saturating_sub(1));
    let mut retentions = vec![Retention::Passes; lifetimes.len()];
    let mut staying = Staying::default();
    let mut together = Kept::default();
    for (row, it) in lifetimes.iter().enumerate() {
        let Some(iteration) = iteration_of(&it, loops).filter(|_| it.is_live_after(end)) else {
            continue;
        };
        if iteration + 1 < last {
            retentions[row] = Retention::Stays;
        }
        if in_loop(&it, loops) {
            staying.entry(place_of(&it)).or_default().add(iteration, it.requested);
            together.add(iteration, it.requested);
        }
    }
    let all = together.inner(last);
    staying.retain(|_, kept| comes_back(kept, last));
    // Sizes that differ from iteration to iteration hide a leak that no place shows.
    let shown = staying.values().map(|kept| kept.inner(last).bytes).total_bytes();
    let hidden =
        shown < all.bytes.div_ceil(2) && last >= 4 && all.iterations * 10 >= (last - 1) * 8;
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
                .map_or(it.requested <= usual.inner.most, |sizes| sizes.contains(&it.requested));
            if it.stack.is_some() && it.is_live_after(end) && alike {
                retentions[row] = Retention::Leaks;
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
        if bytes.saturating_add(it.requested)
            <= if inner { usual.inner.most } else { usual.at_ends }
        {
            *bytes = bytes.saturating_add(it.requested);
            retentions[row] = Retention::Leaks;
        }
    }
    retentions
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
    let of_place = |(&place, kept): (&Place, &Kept)| {
        let inner = kept.inner(last);
        let median = matches!(place, Place::Size(_)).then(|| kept.inmost_median(last)).flatten();
        let at_ends = median.unwrap_or(inner.most);
        let (turns, passed) = (FxHashSet::default(), FxHashMap::default());
        (place, Usual { inner, at_ends, sizes: None, turns, passed })
    };
    let mut usual: FxHashMap<Place, Usual> = leaking.iter().map(of_place).collect();
    // In how many iterations a place asks for this size and keeps it, the last of these, and the bytes.
    let mut sizes = FxHashMap::<(Place, u64), (usize, usize, u64)>::default();
    let mut turns = Turns::default();
    for it in lifetimes.iter() {
        let at = it.allocated.event().and_then(|event| loops.of(event));
        let Some(iteration) = at.filter(|at| (1..last).contains(at)) else { continue };
        let place = place(&it);
        let Some(usual) = usual.get_mut(&place) else { continue };
        let turn = turns.next(place, Some(iteration));
        if it.is_live_after(end) {
            let (times, latest, bytes) = sizes.entry((place, it.requested)).or_default();
            *times += usize::from(*times == 0 || *latest != iteration);
            (*latest, *bytes) = (iteration, bytes.saturating_add(it.requested));
            usual.turns.insert(turn);
        } else if let Some(life) = life(&it) {
            let longest = usual.passed.entry(turn).or_default();
            *longest = life.max(*longest);
        }
    }
    // Sizes that come back in a third of the iterations that keep something are those that leak, if they are most.
    let mut known = FxHashMap::<Place, (u64, FxHashSet<u64>)>::default();
    for (&(place, size), &(times, _, bytes)) in &sizes {
        if usual.get(&place).is_some_and(|usual| times * 3 >= usual.inner.iterations) {
            let (sum, sizes) = known.entry(place).or_default();
            *sum = sum.saturating_add(bytes);
            sizes.insert(size);
        }
    }
    for (place, (sum, sizes)) in known {
        let is_most = |usual: &&mut Usual| sum >= usual.inner.bytes.div_ceil(2);
        if let Some(usual) = usual.get_mut(&place).filter(is_most) {
            usual.sizes = Some(sizes);
        }
    }
    usual
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tonnage_events::{Action, Address, StreamId, TraceEntry};
    use tonnage_snapshot::SnapshotFile;

    use super::super::iterations::IterationSource;
    use super::*;
    use crate::devices;

    thread_local! {
        /// How often what one iteration keeps was read.
        pub(super) static READ: Cell<usize> = const { Cell::new(0) };
    }

    /// A loop that asks for something, keeps it, asks for something else and frees that.
    fn leaking(iterations: usize, size: impl Fn(u64) -> u64) -> (SnapshotFile, Iterations) {
        let mut entries = Vec::new();
        for number in 0..iterations as u64 {
            let kept = 0x10_0000_0000 + number * (1 << 20);
            for (action, address, size) in [
                (Action::Alloc, kept, size(number)),
                (Action::Alloc, 0x1000, 512),
                (Action::FreeRequested, 0x1000, 512),
                (Action::FreeCompleted, 0x1000, 512),
            ] {
                let (address, stream) = (Address(address), StreamId::DEFAULT);
                entries.push(TraceEntry { action, address, size, stream, time_us: 0, stack: None });
            }
        }
        let ranges = (0..iterations).map(|number| number * 4..number * 4 + 4).collect();
        let source = IterationSource::Repetition;
        let loops = Iterations { ranges, source, includes_setup: false };
        (SnapshotFile { traces: vec![entries], ..SnapshotFile::default() }, loops)
    }

    fn leaks_and_reads(iterations: usize, size: impl Fn(u64) -> u64) -> (usize, usize) {
        let (file, loops) = leaking(iterations, size);
        let lifetimes = Lifetimes::of(&devices(&file)[0]);
        READ.set(0);
        let found = retentions(&lifetimes, &loops);
        (found.iter().filter(|&&it| it == Retention::Leaks).count(), READ.get())
    }

    #[test]
    fn the_work_grows_with_the_iterations_that_leak_and_not_with_their_square() {
        type Sizes = fn(u64) -> u64;
        let cases: [(&str, Sizes); 2] =
            [("one size", |_| 4096), ("a size for each iteration", |number| 4096 + 512 * number)];
        for (name, size) in cases {
            let (few, read) = leaks_and_reads(200, size);
            let (many, read_more) = leaks_and_reads(800, size);
            assert!(
                (196..=200).contains(&few) && (796..=800).contains(&many),
                "{name}: {few}, {many}"
            );
            assert!(read > 0 && read_more <= 5 * read, "{name}: {read} reads, then {read_more}");
        }
    }

    #[test]
    fn bytes_that_no_device_has_add_up_without_wrapping() {
        let (leaks, _) = leaks_and_reads(20, |_| 1 << 63);
        assert!(leaks >= 1, "{leaks}");
    }
}
