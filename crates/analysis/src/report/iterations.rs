//! Where the iterations of a loop begin and end.
//!
//! In:  a device, its lifetimes, the live bytes after every entry.
//! Out: [`Iterations`]: ranges of entries, and what they were told by.
//!
//! 1. Marks: PyTorch notes the beginning and end of each `Optimizer.step` and `Optimizer.zero_grad`. Of
//!    those that come once an iteration, the one where least is live cuts (`marks.rs`).
//! 2. Repetition: a request that comes as often as many others, at regular distances over most of the
//!    history and with something freed in between, comes once an iteration. With stacks a request is known by its stack, else by its size and
//!    those of its two neighbours. Loops inside an iteration have requests that come more often, so
//!    the least frequent of the regular ones counts. Where all layers are alike, even that one may come once a layer:
//!    then live bytes tell which of them make a round.
//! 3. Tides: live bytes that rise from nothing, not counting what is never freed, after as many requests each time;
//!    else live bytes that rise, by at least a twentieth of the largest fall, and fall again by two thirds of that.
//!
//! Each is one pass over the entries, and none needs the sizes to be the same.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;
use serde::Serialize;
use tonnage_events::{Action, StackId, TraceEntry};

use super::marks::by_marks;
use super::module_calls::whole_passes;
use crate::device_view::DeviceView;
use crate::lifetimes::Lifetimes;

/// Fewer are no loop.
pub(super) const FEWEST: usize = 3;

/// Rises below this part of the largest fall are no tides.
const TIDE: u64 = 20;

/// What iterations were told by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IterationSource {
    /// Marked scopes of the optimizer.
    Annotations,
    /// The same requests again.
    Repetition,
    /// Live bytes that rise and fall.
    Tides,
}

impl IterationSource {
    /// What they were told by, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Annotations => "the optimizer's marks",
            Self::Repetition => "repeated requests",
            Self::Tides => "live bytes that rise and fall",
        }
    }
}

/// The iterations of a history.
#[derive(Clone, Debug)]
pub(super) struct Iterations {
    /// Entries of each, in order, without gaps.
    pub(super) ranges: Vec<Range<usize>>,
    pub(super) source: IterationSource,
    /// Whether the first range begins with what precedes the loop.
    pub(super) includes_setup: bool,
}

impl Iterations {
    /// Those of a history.
    pub(super) fn find(
        device: &DeviceView<'_>,
        lifetimes: &Lifetimes,
        live: &[u64],
    ) -> Option<Self> {
        by_marks(device, live).or_else(|| {
            let found = by_repetition(device, live).or_else(|| by_tides(device, lifetimes))?;
            whole_passes(device, live, found)
        })
    }

    /// The iteration that an entry is part of.
    pub(super) fn of(&self, event: usize) -> Option<usize> {
        let place = self.ranges.partition_point(|it| it.end <= event);
        self.ranges.get(place).filter(|it| it.contains(&event)).map(|_| place)
    }

    /// Where the loop ends.
    pub(super) fn end(&self) -> usize {
        self.ranges.last().map_or(0, |it| it.end)
    }
}

/// Live bytes before an entry.
pub(super) fn before(live: &[u64], event: usize) -> u64 {
    event.checked_sub(1).and_then(|event| live.get(event)).copied().unwrap_or(0)
}

/// What is live before these entries, on average.
pub(super) fn mean_before(live: &[u64], cuts: &[usize]) -> u64 {
    let sum: u128 = cuts.iter().map(|&cut| u128::from(before(live, cut))).sum();
    (sum / cuts.len().max(1) as u128) as u64
}

/// What a request is known by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Stack(StackId),
    Sizes([u64; 3]),
}

/// Where a key comes: entries of requests, by their number among the requests.
#[derive(Default)]
struct Places(Vec<(u32, u32)>);

impl Places {
    /// How many requests it comes around with, if it does so at regular distances and over most of the `requests`.
    fn regular_span(&self, requests: usize) -> Option<usize> {
        let mut gaps: Vec<_> = self.0.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        let span: u32 = gaps.iter().sum();
        gaps.sort_unstable();
        // The first iteration of all may ask for much that stays.
        let odd = usize::from(gaps.len() >= 4);
        let (least, median) = (gaps[0], gaps[gaps.len() / 2]);
        let largest = gaps[gaps.len() - 1 - odd];
        let span = span as usize + median as usize;
        let regular = largest <= median.saturating_mul(2) && least.saturating_mul(2) >= median;
        (regular && span * 5 >= requests * 2).then_some(span)
    }
}

fn by_repetition(device: &DeviceView<'_>, live: &[u64]) -> Option<Iterations> {
    let requests: Vec<u32> = (0_u32..)
        .zip(device.entries)
        .filter(|(_, entry)| entry.action == Action::Alloc)
        .map(|(event, _)| event)
        .collect();
    let size = |place: usize| requests.get(place).map_or(0, |&it| device.entries[it as usize].size);
    // Requests one after the other, with nothing freed between them, build something: they are no loop.
    let mut freed = Vec::with_capacity(requests.len());
    let (mut frees, mut next) = (0_u32, 0);
    for (event, entry) in device.entries.iter().enumerate() {
        frees += u32::from(entry.action == Action::FreeRequested);
        if requests.get(next) == Some(&(event as u32)) {
            freed.push(frees);
            next += 1;
        }
    }
    let mut places = FxHashMap::<Key, Places>::default();
    for (place, &event) in requests.iter().enumerate() {
        let key = match device.entries[event as usize].stack {
            Some(stack) if !device.file.stacks.frames(stack).is_empty() => Key::Stack(stack),
            _ => Key::Sizes([place.checked_sub(1).map_or(0, size), size(place), size(place + 1)]),
        };
        let known = &mut places.entry(key).or_default().0;
        if known.last().is_none_or(|&(last, _)| freed[last as usize] < freed[place]) {
            known.push((place as u32, event));
        }
    }
    let regular = places.values().filter(|it| it.0.len() >= FEWEST);
    let mut regular: Vec<_> =
        regular.filter_map(|it| Some((it, it.regular_span(requests.len())?))).collect();
    // What comes in a part of the loop only, as large inputs need it, does not say where it begins.
    let widest = regular.iter().map(|&(_, span)| span).max()?;
    regular.retain(|&(_, span)| span * 20 >= widest * 17);
    let regular: Vec<_> = regular.into_iter().map(|(it, _)| it).collect();
    let mut votes = BTreeMap::<usize, usize>::new();
    for it in &regular {
        *votes.entry(it.0.len()).or_default() += 1;
    }
    // A count off by one is the same loop, cut at its ends.
    let votes_near = |count: usize| -> usize {
        [count - 1, count, count + 1].iter().filter_map(|near| votes.get(near)).sum()
    };
    let most = votes.keys().map(|&count| votes_near(count)).max()?;
    let count = *votes.keys().find(|&&count| votes_near(count) * 5 >= most)?;
    let once = regular.iter().filter(|it| it.0.len() == count || it.0.len() == count + 1);
    let cuts = once.min_by_key(|it| {
        let cuts: Vec<_> = it.0.iter().map(|&(_, event)| event as usize).collect();
        (mean_before(live, &cuts), cuts[0])
    })?;
    let mut places: Vec<usize> = cuts.0.iter().map(|&(place, _)| place as usize).collect();
    extend(&mut places, requests.len(), |one, other| size(one) == size(other));
    let starts: Vec<usize> =
        places.into_iter().map(|place| start_of_call(device, requests[place] as usize)).collect();
    let ranges = from_starts(&starts, device);
    let ranges = match whole_rounds(live, &ranges) {
        Some(rounds) => from_starts(&rounds, device),
        None => ranges,
    };
    Some(Iterations { ranges, source: IterationSource::Repetition, includes_setup: false })
}

/// Where rounds begin, if the ranges are parts of rounds: a model whose layers are all alike has no request that comes once
/// an iteration. Then live bytes rise from layer to layer, by more than a layer takes by itself, and come down again
/// after as many layers each time.
fn whole_rounds(live: &[u64], ranges: &[Range<usize>]) -> Option<Vec<usize>> {
    let levels: Vec<u64> = ranges.iter().map(|it| before(live, it.start)).collect();
    let highest = |it: &Range<usize>| live[it.clone()].iter().copied().max().unwrap_or(0);
    let mut rounds = vec![0];
    // From how much a round rises, up to how much, and how much one of its ranges takes by itself.
    let (mut ground, mut top, mut within) = (levels[0], levels[0], 0);
    for (place, pair) in levels.windows(2).enumerate() {
        let [level, next] = [pair[0], pair[1]];
        // The last range of a round comes down: it rises above its beginning no more than the others.
        within = within.max(highest(&ranges[place]).saturating_sub(level));
        top = top.max(next);
        let rose = top - ground;
        if rose >= within.saturating_mul(2) && next <= ground.saturating_add(rose / 4) {
            rounds.push(place + 1);
            (ground, top, within) = (next, next, 0);
        }
    }
    let mut lengths: Vec<usize> = rounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
    lengths.sort_unstable();
    let (least, most) = (*lengths.first()?, *lengths.last()?);
    let median = lengths[lengths.len() / 2];
    let regular = least * 3 >= median * 2 && most * 2 <= median * 3;
    (rounds.len() >= FEWEST && median >= 3 && regular)
        .then(|| rounds.into_iter().map(|place| ranges[place].start).collect())
}

/// The first iteration of a loop has other neighbours than the rest, and so has the last: adds them where
/// most requests are the same as an iteration later, or earlier.
fn extend(starts: &mut Vec<usize>, requests: usize, same: impl Fn(usize, usize) -> bool) {
    let (Some(&[first, second]), Some(&[before, last])) =
        (starts.first_chunk(), starts.last_chunk())
    else {
        return;
    };
    // The request that begins an iteration, and most of those that follow.
    let alike = |from: usize, length: usize, by: usize| {
        let found = (from..from + length).filter(|&place| same(place, place + by)).count();
        length > 0 && same(from, from + by) && found * 10 >= length * 6
    };
    let (ahead, behind) = (second - first, last - before);
    if last + behind < requests && alike(last, behind.min(requests - last - behind), behind) {
        starts.push(last + behind);
    }
    if first >= ahead && alike(first - ahead, ahead, ahead) {
        starts.insert(0, first - ahead);
    }
}

/// Memory that a request obtained comes before the request's own entry.
pub(super) fn start_of_call(device: &DeviceView<'_>, event: usize) -> usize {
    let part = |action: Action| matches!(action, Action::SegmentAlloc | Action::SegmentMap);
    let parts = device.entries[..event].iter().rev().take_while(|it| part(it.action)).count();
    event - parts
}

/// Each from one start to the next. The last is at most about as long as the longest behind the first, since segments that
/// are obtained add entries and some iterations have an evaluation behind them, but ends with its last request: what is freed behind that may be the end
/// of the program.
pub(super) fn from_starts(starts: &[usize], device: &DeviceView<'_>) -> Vec<Range<usize>> {
    let mut ranges: Vec<_> = starts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let inner = if ranges.len() > 1 { &ranges[1..] } else { &ranges[..] };
    if let (Some(longest), Some(&start)) = (inner.iter().map(Range::len).max(), starts.last()) {
        let end = device.entries.len().min(start + longest + longest / 4 + 4);
        let is_request = |entry: &TraceEntry| entry.action == Action::Alloc;
        let last = device.entries[start..end].iter().rposition(is_request).unwrap_or(0);
        ranges.push(start..start + last + 1);
    }
    ranges
}

/// Where live bytes rise from nothing, if they do so after about as many requests each time.
fn from_the_ground(device: &DeviceView<'_>, live: &[u64]) -> Option<Vec<usize>> {
    let rises = (0..live.len()).filter(|&event| live[event] > 0 && before(live, event) == 0);
    let starts: Vec<usize> = rises.map(|event| start_of_call(device, event)).collect();
    let mut requests: Vec<usize> = starts
        .windows(2)
        .map(|pair| {
            let between = device.entries[pair[0]..pair[1]].iter();
            between.filter(|it| it.action == Action::Alloc).count()
        })
        .collect();
    requests.sort_unstable();
    let median = *requests.get(requests.len() / 2)?;
    // The ends of a loop have what comes once.
    let odd = requests.len() / 10 + 1;
    let inner = requests.get(odd..requests.len().checked_sub(odd)?)?;
    let regular = inner.first()? * 3 >= median * 2 && *inner.last()? * 2 <= median * 3;
    (starts.len() > FEWEST && median >= 2 && regular).then_some(starts)
}

fn by_tides(device: &DeviceView<'_>, lifetimes: &Lifetimes) -> Option<Iterations> {
    // What is never freed only lifts the ground.
    let live = super::moments::live_after(
        lifetimes.iter().filter(|it| !it.is_live_at_end()),
        device.entries.len(),
    );
    let live = &live[..];
    let (mut high, mut fall) = (0_u64, 0_u64);
    for &level in live {
        high = high.max(level);
        fall = fall.max(high - level);
    }
    let least = fall / TIDE;
    if least == 0 {
        return None;
    }
    if let Some(starts) = from_the_ground(device, live) {
        return Some(Iterations {
            ranges: from_starts(&starts, device),
            source: IterationSource::Tides,
            includes_setup: false,
        });
    }
    let mut starts = Vec::new();
    let (mut low, mut low_at, mut high) = (0_u64, 0_usize, 0_u64);
    for (event, &level) in live.iter().enumerate() {
        if level <= low {
            (low, low_at, high) = (level, event + 1, level);
        }
        high = high.max(level);
        let (rose, fell) = (high - low, high - level);
        if rose >= least && fell >= rose / 3 * 2 {
            starts.push(low_at);
            (low, low_at, high) = (level, event + 1, level);
        }
    }
    (starts.len() >= FEWEST).then(|| Iterations {
        ranges: from_starts(&starts, device),
        source: IterationSource::Tides,
        includes_setup: false,
    })
}
