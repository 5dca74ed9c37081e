//! How much playing one outcome may take.
//!
//! In: the length of a recording. Out: a count of entries that all its replays share: other beginnings, other
//! readings, other pools, other limits. What is not an entry but costs as much as some, such as the copy
//! of a state, is counted as that many. So the time for a recording grows with its length alone, whatever
//! is in it.

use std::cell::Cell;

use crate::until::Until;

/// How many times its length a recording is played at most, and then some for short ones.
const MOST_WORK: usize = 64;
const AND_MORE: usize = 50_000;

/// So much work is seconds: long recordings get no more, but are played so many times whatever their length.
const SECONDS: usize = 12_000_000;
const LEAST_TIMES: usize = 8;

/// How much of that one replay may take, so that one which leads nowhere leaves room for others.
const PARTS: usize = 3;

/// What is left to play.
#[derive(Debug)]
pub(super) struct Budget {
    all: usize,
    left: Cell<usize>,
    until: Until,
}

impl Budget {
    /// Enough for a recording of so many entries, or until it is to end.
    pub(super) fn of(entries: usize, until: Until) -> Self {
        let all = entries.saturating_mul(MOST_WORK).saturating_add(AND_MORE);
        let all = all.min(SECONDS.max(entries.saturating_mul(LEAST_TIMES)));
        Self { all, left: Cell::new(all), until }
    }

    /// Most work for one replay.
    pub(super) fn part(&self) -> usize {
        (self.all / PARTS).min(self.left.get())
    }

    /// Takes work of this many entries.
    pub(super) fn spend(&self, work: usize) {
        self.left.set(self.left.get().saturating_sub(work));
    }

    /// Whether someone said that it is enough.
    pub(super) fn is_over(&self) -> bool {
        self.until.is_over()
    }

    /// Whether nothing is left: what goes on finishes, and nothing else is begun.
    pub(super) fn is_spent(&self) -> bool {
        self.left.get() == 0 || self.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_replay_gets_a_part_and_all_together_no_more_than_there_is() {
        let budget = Budget::of(1_000, Until::default());
        assert_eq!(budget.part(), 38_000);
        budget.spend(100_000);
        assert_eq!((budget.part(), budget.is_spent()), (14_000, false));
        budget.spend(usize::MAX);
        assert_eq!((budget.part(), budget.is_spent()), (0, true));
    }

    #[test]
    fn what_is_to_end_has_nothing_left() {
        let (until, stop) = Until::told();
        let budget = Budget::of(1_000, until);
        assert!(!budget.is_spent());
        stop.now();
        assert!(budget.is_spent());
    }

    #[test]
    fn long_recordings_are_played_fewer_times() {
        for (entries, all) in
            [(0, 50_000), (100_000, 6_450_000), (1_000_000, SECONDS), (10_000_000, 80_000_000)]
        {
            assert_eq!(Budget::of(entries, Until::default()).all, all, "{entries}");
        }
    }
}
