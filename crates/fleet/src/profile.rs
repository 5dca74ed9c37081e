//! What held a rank's memory where most was live, to be compared.
//!
//! In:  [`Facts`].
//! Out: a [`Profile`]: bytes by purpose, by phase and by line of the program, with names as numbers that all ranks share; how
//!      far two are apart; and the middle of many.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::{Facts, Share};

/// What bytes are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Purpose,
    Phase,
    Site,
}

impl Family {
    pub(crate) const ALL: [Self; 3] = [Self::Purpose, Self::Phase, Self::Site];

    fn of(self, facts: &Facts) -> &[Share] {
        match self {
            Self::Purpose => &facts.purposes,
            Self::Phase => &facts.phases,
            Self::Site => &facts.sites,
        }
    }
}

/// Lines that hold so little that the report does not list them.
pub(crate) const OTHER_LINES: &str = "other lines";

/// A name that some rank has, by its family.
pub(crate) type Name = (Family, String);

/// Names of all ranks, by number.
pub(crate) struct Names(Vec<Name>);

impl Names {
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Facts>) -> Self {
        let mut names = BTreeSet::new();
        for facts in all {
            for family in Family::ALL {
                names.extend(family.of(facts).iter().map(|it| (family, it.name.clone())));
            }
        }
        names.insert((Family::Site, OTHER_LINES.to_owned()));
        Self(names.into_iter().collect())
    }

    pub(crate) fn get(&self, number: u32) -> &Name {
        &self.0[number as usize]
    }

    fn number(&self, name: &Name) -> Option<u32> {
        let place = self.0.binary_search(name).ok()?;
        u32::try_from(place).ok()
    }
}

/// What held a rank's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Bytes by number of their name, ascending; none are 0.
    pub(crate) bytes: Vec<(u32, u64)>,
    /// All live bytes.
    total: u64,
}

impl Profile {
    pub(crate) fn of(facts: &Facts, names: &Names) -> Self {
        let mut bytes = BTreeMap::new();
        let mut add = |family: Family, name: &str, more: u64| {
            if let Some(number) = names.number(&(family, name.to_owned())).filter(|_| more > 0) {
                let held: &mut u64 = bytes.entry(number).or_default();
                *held = held.saturating_add(more);
            }
        };
        for family in Family::ALL {
            for share in family.of(facts) {
                add(family, &share.name, share.bytes);
            }
        }
        let listed = facts.sites.iter().fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
        add(Family::Site, OTHER_LINES, facts.live.saturating_sub(listed));
        Self { bytes: bytes.into_iter().collect(), total: facts.live }
    }

    /// How far two are apart: in the family where that is most, the bytes that one has and the other has not, as a share of
    /// all that the larger one has.
    pub(crate) fn distance(&self, other: &Self, names: &Names) -> f64 {
        let mut apart = [0_u64; Family::ALL.len()];
        for (number, a, b) in joined(&self.bytes, &other.bytes) {
            let place = &mut apart[names.get(number).0 as usize];
            *place = place.saturating_add(a.abs_diff(b));
        }
        let most = apart.into_iter().max().unwrap_or(0);
        // No more than if they have nothing in common, whatever a row says of itself.
        (most as f64 / self.total.max(other.total).max(1) as f64).min(2.0)
    }

    /// The middle of several, name by name.
    pub(crate) fn middle(all: &[&Self]) -> Self {
        let mut by_name = BTreeMap::<u32, Vec<u64>>::new();
        for profile in all {
            for &(number, bytes) in &profile.bytes {
                by_name.entry(number).or_default().push(bytes);
            }
        }
        let middle_of = |mut values: Vec<u64>| {
            // Whoever lacks the name holds nothing by it.
            values.resize(all.len(), 0);
            middle(&mut values)
        };
        let bytes = by_name.into_iter().map(|(number, values)| (number, middle_of(values)));
        let mut totals: Vec<_> = all.iter().map(|it| it.total).collect();
        Self { bytes: bytes.filter(|it| it.1 > 0).collect(), total: middle(&mut totals) }
    }
}

/// The value in the middle, the lower one of two; 0 of none.
pub(crate) fn middle(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// The names of two profiles, ascending, with the bytes of both.
pub(crate) fn joined<'p>(
    a: &'p [(u32, u64)],
    b: &'p [(u32, u64)],
) -> impl Iterator<Item = (u32, u64, u64)> + 'p {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    std::iter::from_fn(move || {
        let next = match (a.peek(), b.peek()) {
            (None, None) => return None,
            (Some(x), None) => x.0,
            (None, Some(y)) => y.0,
            (Some(x), Some(y)) => x.0.min(y.0),
        };
        let take = |of: &mut std::iter::Peekable<std::slice::Iter<'p, (u32, u64)>>| {
            of.next_if(|it| it.0 == next).map_or(0, |it| it.1)
        };
        let (x, y) = (take(&mut a), take(&mut b));
        Some((next, x, y))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_either_are_joined_in_their_order() {
        let all: Vec<_> = joined(&[(1, 10), (4, 5)], &[(0, 2), (4, 6), (9, 1)]).collect();
        assert_eq!(all, [(0, 0, 2), (1, 10, 0), (4, 5, 6), (9, 0, 1)]);
        assert_eq!(joined(&[], &[]).count(), 0);
    }

    #[test]
    fn the_middle_counts_those_that_have_nothing() {
        let profile = |bytes: &[(u32, u64)]| Profile { bytes: bytes.to_vec(), total: 10 };
        let all = [profile(&[(0, 4), (1, 9)]), profile(&[(0, 6)]), profile(&[(0, 5)])];
        let middle = Profile::middle(&all.iter().collect::<Vec<_>>());
        assert_eq!(middle.bytes, [(0, 5)]);
        assert_eq!(super::middle(&mut []), 0);
        assert_eq!(super::middle(&mut [3, 1]), 1);
    }
}
