//! Iterations, by the marks that PyTorch leaves where an optimizer works.
//!
//! In:  a device with its marked scopes, the live bytes after every entry.
//! Out: [`Iterations`].
//!
//! Marks of one name cut the history. What precedes the first of them is an iteration only if it asks for what the
//! next one asks for, else it builds the model. Where pieces take turns, several make one iteration.

use std::collections::BTreeMap;
use std::ops::Range;

use tonnage_events::{Action, StackId, TraceEntry};
use tonnage_snapshot::Stage;

use super::iterations::{FEWEST, IterationSource, Iterations, mean_before};
use crate::device_view::DeviceView;

/// Scopes that PyTorch marks.
const MARKS: [&str; 2] = ["Optimizer.step", "Optimizer.zero_grad"];

/// As many marks of one name may an iteration have.
const MOST_TURNS: usize = 6;

/// Where scopes of the optimizer end, by their names.
fn marks<'a>(device: &DeviceView<'a>) -> BTreeMap<&'a str, Vec<usize>> {
    let mut cuts = BTreeMap::<&str, Vec<usize>>::new();
    for mark in &device.file.annotations {
        let ends = mark.stage == Stage::End && mark.time_us > 0 && mark.device == device.device;
        if ends && MARKS.iter().any(|prefix| mark.name.starts_with(prefix)) {
            let cut = device.entries.partition_point(|entry| entry.time_us <= mark.time_us);
            cuts.entry(&mark.name).or_default().push(cut);
        }
    }
    for cuts in cuts.values_mut() {
        cuts.sort_unstable();
        cuts.dedup();
    }
    cuts
}

/// The iterations between marks, if there are enough.
pub(super) fn by_marks(device: &DeviceView<'_>, live: &[u64]) -> Option<Iterations> {
    let mut kinds: Vec<_> =
        marks(device).into_values().filter(|cuts| cuts.len() >= FEWEST).collect();
    let span = |cuts: &Vec<usize>| cuts[cuts.len() - 1] - cuts[0];
    let widest = kinds.iter().map(span).max()?;
    // Of several optimizers the one that steps least often goes around with the whole loop.
    kinds.retain(|cuts| span(cuts) * 2 >= widest);
    let fewest = kinds.iter().map(Vec::len).min()?;
    let cuts = kinds
        .into_iter()
        .filter(|cuts| cuts.len() <= fewest + 1)
        .min_by_key(|cuts| mean_before(live, cuts))?;
    let mut from = 0;
    let ranges = cuts.iter().map(|&cut| std::mem::replace(&mut from, cut)..cut);
    let mut ranges: Vec<_> = ranges.filter(|it| !it.is_empty()).collect();
    // What comes behind the last mark is an iteration that was not finished, if it does as much. It ends with its
    // last request: what is freed behind that may be the end of the program.
    let requests = |range: &Range<usize>| {
        device.entries[range.clone()].iter().filter(|it| it.action == Action::Alloc).count()
    };
    let usual = ranges.iter().skip(1).min_by_key(|it| it.len()).cloned()?;
    // Some iterations have more behind them, such as an evaluation.
    let longest = ranges.iter().skip(1).map(Range::len).max()?;
    let rest = from..device.entries.len().min(from + longest + longest / 4);
    if requests(&rest) * 4 >= requests(&usual) {
        let is_request = |entry: &TraceEntry| entry.action == Action::Alloc;
        // Without a request there is no iteration: the last mark may lie behind the last entry, or be followed by frees
        // alone, and the shortest interval between marks may have no request either.
        let last = device.entries[rest].iter().rposition(is_request);
        ranges.extend(last.map(|last| from..from + last + 1));
    }
    let includes_setup = with_requests_of_the_next(device, &ranges);
    if !includes_setup {
        ranges.remove(0);
    }
    let ranges = whole_turns(device, live, ranges);
    (ranges.len() >= FEWEST).then_some(Iterations {
        ranges,
        source: IterationSource::Annotations,
        includes_setup,
    })
}

/// A stack, or where there is none a size.
type Asked = (Option<StackId>, u64);

/// What is asked for in a range, in order.
fn asked(device: &DeviceView<'_>, range: &Range<usize>) -> Vec<Asked> {
    let requests = device.entries[range.clone()].iter().filter(|it| it.action == Action::Alloc);
    let key = |entry: &TraceEntry| match entry.stack {
        Some(stack) if !device.file.stacks.frames(stack).is_empty() => (Some(stack), 0),
        _ => (None, entry.size),
    };
    let mut asked: Vec<_> = requests.map(key).collect();
    asked.sort_unstable();
    asked
}

/// How many of the second's requests the first has too.
fn in_common(one: &[Asked], other: &[Asked]) -> usize {
    let mut one = one.iter().peekable();
    let found = other.iter().filter(|key| {
        while one.next_if(|it| it < key).is_some() {}
        one.next_if(|it| it == key).is_some()
    });
    found.count()
}

/// Whether the first range is an iteration with what precedes the loop, and not only the latter: whether it asks for what
/// the next one asks for, about as much as those after it do of each other.
fn with_requests_of_the_next(device: &DeviceView<'_>, ranges: &[Range<usize>]) -> bool {
    let [first, second, third, ..] = ranges else { return true };
    let [first, second, third] = [first, second, third].map(|it| asked(device, it));
    let share =
        |one: &[Asked], other: &[Asked]| in_common(one, other) as f64 / other.len().max(1) as f64;
    share(&first, &second) >= 0.5 * share(&second, &third)
}

/// Joins ranges that take turns: two optimizers of one kind mark an iteration twice.
fn whole_turns(
    device: &DeviceView<'_>,
    live: &[u64],
    ranges: Vec<Range<usize>>,
) -> Vec<Range<usize>> {
    let asked: Vec<_> = ranges.iter().map(|it| asked(device, it)).collect();
    // How much those that lie `apart` ask for the same, without the ends of the loop.
    let alike = |apart: usize| {
        let inner = &asked[1..asked.len().saturating_sub(1).max(1)];
        let (mut common, mut all) = (0, 0);
        for (one, other) in inner.iter().zip(inner.iter().skip(apart)) {
            common += 2 * in_common(one, other);
            all += one.len() + other.len();
        }
        if all == 0 { 0.0 } else { common as f64 / all as f64 }
    };
    let next = alike(1);
    let turns = (2..=MOST_TURNS).find(|&turns| {
        ranges.len() >= turns * FEWEST && alike(turns) >= 0.9 && alike(turns) > next + 0.1
    });
    let Some(turns) = turns else { return ranges };
    // A turn begins where least is live.
    let starts = |from: usize| -> Vec<usize> {
        ranges.iter().skip(from).step_by(turns).map(|it| it.start).collect()
    };
    let from = (0..turns).min_by_key(|&from| mean_before(live, &starts(from)[1..])).unwrap_or(0);
    let mut whole: Vec<_> = ranges[from..]
        .chunks(turns)
        .map(|chunk| chunk[0].start..chunk[chunk.len() - 1].end)
        .collect();
    if from > 0 {
        whole[0].start = ranges[0].start;
    }
    whole
}
