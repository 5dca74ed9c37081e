//! Which requests in a row are of which call of one line.
//!
//! In:  [`Visit`]s: the places of a module's `forward` that asked, in order.
//! Out: [`Calls`].

use std::ops::Range;

use rustc_hash::FxHashSet;

/// A line of a module's `forward`, and the call that it makes, if any.
pub(super) type Place = (u32, Option<u32>);

/// A place, and the requests in a row that come from it.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) place: Place,
    pub(super) requests: Range<usize>,
}

/// What a run of requests from inside one line's calls is.
pub(super) enum Calls {
    One,
    /// As ranges of the run; what lies between two is of one of them, not known of which.
    Many(Vec<Range<usize>>),
    Unknown,
}

/// Calls that all begin at the first place and go through the same others.
pub(super) fn repeated(visits: &[Visit]) -> Calls {
    let first = visits[0].place;
    let starts: Vec<usize> = (0..visits.len()).filter(|&at| visits[at].place == first).collect();
    let ends = starts.iter().skip(1).copied().chain([visits.len()]);
    let calls: Vec<_> = starts.iter().zip(ends).map(|(&from, to)| &visits[from..to]).collect();
    // The last may have been cut by the end of the recording.
    let (last, whole) = calls.split_last().expect("the first place is visited");
    let mut shared = in_all(&calls);
    if !go_the_same_way(&calls, &shared) {
        shared = in_all(whole);
        let way = through(calls[0], &shared);
        if !go_the_same_way(whole, &shared) || !way.starts_with(&through(last, &shared)) {
            return Calls::Unknown;
        }
    }
    let ranges = calls.iter().map(|call| call[0].requests.start..end_of(call, &shared));
    Calls::Many(ranges.collect())
}

/// The places that all calls visit.
fn in_all(calls: &[&[Visit]]) -> FxHashSet<Place> {
    let places = |call: &[Visit]| -> FxHashSet<Place> { call.iter().map(|it| it.place).collect() };
    let Some((first, others)) = calls.split_first() else { return FxHashSet::default() };
    let mut shared = places(first);
    for call in others {
        let there = places(call);
        shared.retain(|it| there.contains(it));
    }
    shared
}

/// The shared places in the order of a call.
fn through(call: &[Visit], shared: &FxHashSet<Place>) -> Vec<Place> {
    call.iter().map(|it| it.place).filter(|it| shared.contains(it)).collect()
}

fn go_the_same_way(calls: &[&[Visit]], shared: &FxHashSet<Place>) -> bool {
    let Some(first) = calls.first() else { return false };
    let way = through(first, shared);
    way.len() > 1 && calls.iter().all(|call| through(call, shared) == way)
}

/// Where a call ends: what only some calls ask for belongs to the call before it unless its line lies before those that came.
fn end_of(call: &[Visit], shared: &FxHashSet<Place>) -> usize {
    let (mut line, mut end) = (0, call[0].requests.end);
    for Visit { place, requests } in call {
        if !shared.contains(place) && place.0 < line {
            break;
        }
        (line, end) = (place.0, requests.end);
    }
    end
}
