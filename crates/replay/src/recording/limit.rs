//! Which limits would explain a recording that no other reading explains.
//!
//! Garbage collection by age works only under a limit, and the limit is not in the file. But a limit
//! that is too low or too high shows: the engine gives back too much, or too little. So the range
//! of limits that reproduce the recording can be closed in on.

use tonnage_events::Action;

use super::player::Parting;
use super::search::Attempt;

/// Replays it may take. Each stops at its first difference.
const MOST_REPLAYS: usize = 60;

/// What a replay under some limit says about it.
enum Verdict {
    Exact,
    TooLow,
    TooHigh,
    /// The difference has nothing to do with the limit.
    Other,
}

/// The lowest and the highest limit found that reproduce the recording. `replay` may refuse, once it has
/// taken long enough.
pub(super) fn find_limits(
    lowest: u64,
    highest: u64,
    mut replay: impl FnMut(u64) -> Option<Attempt>,
) -> Option<(u64, u64)> {
    let mut left = MOST_REPLAYS;
    let mut judge = |limit| {
        left = left.checked_sub(1)?;
        Some(verdict(replay(limit)?.parting.as_ref()))
    };
    let (mut low, mut high) = (lowest, highest);
    let exact = loop {
        if low > high {
            return None;
        }
        let middle = low + (high - low) / 2;
        match judge(middle)? {
            Verdict::Exact => break middle,
            Verdict::TooLow => low = middle.checked_add(1)?,
            Verdict::TooHigh => high = middle.checked_sub(1)?,
            Verdict::Other => return None,
        }
    };
    // The edges of the exact range; where the replays run out, what is known to be exact.
    let (mut from, mut below) = (exact, low);
    while below < from {
        let middle = below + (from - below) / 2;
        match judge(middle) {
            Some(Verdict::Exact) => from = middle,
            Some(_) => below = middle + 1,
            None => break,
        }
    }
    let (mut to, mut above) = (exact, high);
    while to < above {
        let middle = to + (above - to).div_ceil(2);
        match judge(middle) {
            Some(Verdict::Exact) => to = middle,
            Some(_) => above = middle - 1,
            None => break,
        }
    }
    Some((from, to))
}

/// Whether another limit could make the difference go away: memory given back, or a failed request.
pub(super) fn has_to_do_with_limit(parting: &Parting) -> bool {
    let actions = [parting.recorded, parting.got.map(|got| got.action)];
    actions
        .into_iter()
        .flatten()
        .any(|action| matches!(action, Action::SegmentFree | Action::SegmentUnmap | Action::Oom))
}

fn verdict(parting: Option<&Parting>) -> Verdict {
    let gives_back = |action| matches!(action, Some(Action::SegmentFree | Action::SegmentUnmap));
    let Some(parting) = parting else { return Verdict::Exact };
    let (recorded, got) = (parting.recorded, parting.got.map(|got| got.action));
    match (gives_back(recorded), gives_back(got)) {
        (true, false) => Verdict::TooHigh,
        (false, true) => Verdict::TooLow,
        _ if got == Some(Action::Oom) => Verdict::TooLow,
        _ if recorded == Some(Action::Oom) => Verdict::TooHigh,
        _ => Verdict::Other,
    }
}
