//! Ranks that are alike.
//!
//! In:  a [`Profile`] for each rank, and its [`Place`].
//! Out: [`Grouped`]: groups of ranks with the same profile, more or less, the largest first; and the few ranks that are like
//!      none of them, each with the group that is nearest.
//!
//! Ranks join the first group whose middle is near enough, else they found one; then the middles are taken and everyone joins
//! the nearest, twice. The number of groups is bounded, by more room for each where there are too many, so the work grows
//! with the number of ranks alone. Nothing depends on chance or on the order in which files were read.
//!
//! A few ranks that differ from all others are a group only if their names say so: the two ranks of the first stage are,
//! the two that read longer inputs are not.

use crate::name::{PARTS, Place};
use crate::profile::{Names, Profile};

/// Profiles of a group are within this share of what is live. Chosen: ranks that do the same on other inputs are nearer,
/// a stage of a pipeline that has the embedding is farther.
const NEAR: f64 = 0.15;

/// How many groups there may be.
const MOST: usize = 64;

/// How often everyone joins the nearest.
const ROUNDS: usize = 2;

/// The ranks, sorted into groups. Numbers are places in what was given.
pub(crate) struct Grouped {
    /// Groups, the largest first; those of equal size by their first rank.
    pub(crate) groups: Vec<Members>,
    /// Ranks that are like no group: the rank, and the group that is nearest.
    pub(crate) strays: Vec<(usize, usize)>,
}

/// Ranks that are alike.
pub(crate) struct Members {
    /// Ascending.
    pub(crate) ranks: Vec<usize>,
    /// What is in the middle of their profiles.
    pub(crate) profile: Profile,
}

impl Members {
    /// The rank that is nearest to the middle, among those that may be it; of all if none may.
    pub(crate) fn middle(
        &self,
        profiles: &[Profile],
        names: &Names,
        may_be: impl Fn(&usize) -> bool,
    ) -> usize {
        let far = |rank: &usize| profiles[*rank].distance(&self.profile, names);
        let nearest =
            |of: &mut dyn Iterator<Item = usize>| of.min_by(|a, b| far(a).total_cmp(&far(b)));
        let plain = nearest(&mut self.ranks.iter().copied().filter(may_be));
        plain.or_else(|| nearest(&mut self.ranks.iter().copied())).unwrap_or(0)
    }
}

pub(crate) fn group(profiles: &[Profile], places: &[Place], names: &Names) -> Grouped {
    let mut near = NEAR;
    let leaders = loop {
        match leaders(profiles, near, names) {
            Some(leaders) => break leaders,
            None => near *= 1.5,
        }
    };
    let mut middles: Vec<Profile> = leaders.into_iter().map(|it| profiles[it].clone()).collect();
    let mut sorted = sort(profiles, &middles, names);
    for _ in 0..ROUNDS {
        middles = sorted.iter().map(|ranks| middle_of(profiles, ranks)).collect();
        middles = apart(middles, near, names);
        sorted = sort(profiles, &middles, names);
    }
    sorted.sort_by_key(|ranks| (usize::MAX - ranks.len(), ranks[0]));
    let (crowds, few): (Vec<_>, Vec<_>) =
        sorted.iter().cloned().partition(|ranks| is_crowd(ranks, places));
    // Where no one is like anyone, everyone is a group.
    let (crowds, few) = if crowds.is_empty() { (sorted, Vec::new()) } else { (crowds, few) };
    let groups: Vec<_> = crowds
        .into_iter()
        .map(|ranks| Members { profile: middle_of(profiles, &ranks), ranks })
        .collect();
    let middles: Vec<_> = groups.iter().map(|it| it.profile.clone()).collect();
    let mut strays: Vec<_> = few
        .into_iter()
        .flatten()
        .map(|rank| (rank, nearest(&profiles[rank], &middles, names).0))
        .collect();
    strays.sort_unstable();
    Grouped { groups, strays }
}

/// One rank for each group; none if there are too many.
fn leaders(profiles: &[Profile], near: f64, names: &Names) -> Option<Vec<usize>> {
    let mut leaders = Vec::new();
    for (rank, profile) in profiles.iter().enumerate() {
        if leaders.iter().all(|&it: &usize| profiles[it].distance(profile, names) > near) {
            if leaders.len() == MOST {
                return None;
            }
            leaders.push(rank);
        }
    }
    Some(leaders)
}

/// The place of the nearest of these, the first of several, and how far it is.
fn nearest(profile: &Profile, middles: &[Profile], names: &Names) -> (usize, f64) {
    let far = middles.iter().map(|it| it.distance(profile, names)).enumerate();
    far.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY))
}

/// Everyone with the nearest; no group is empty.
fn sort(profiles: &[Profile], middles: &[Profile], names: &Names) -> Vec<Vec<usize>> {
    let mut sorted = vec![Vec::new(); middles.len()];
    for (rank, profile) in profiles.iter().enumerate() {
        if let Some(ranks) = sorted.get_mut(nearest(profile, middles, names).0) {
            ranks.push(rank);
        }
    }
    sorted.retain(|ranks| !ranks.is_empty());
    sorted
}

/// Those that are not near one before.
fn apart(middles: Vec<Profile>, near: f64, names: &Names) -> Vec<Profile> {
    let mut kept: Vec<Profile> = Vec::new();
    for middle in middles {
        if nearest(&middle, &kept, names).1 > near {
            kept.push(middle);
        }
    }
    kept
}

fn middle_of(profiles: &[Profile], ranks: &[usize]) -> Profile {
    Profile::middle(&ranks.iter().map(|&it| &profiles[it]).collect::<Vec<_>>())
}

/// Whether so many are a group: enough of them, or several that a part of their names sets apart.
fn is_crowd(ranks: &[usize], places: &[Place]) -> bool {
    ranks.len() >= (places.len().isqrt() / 4).max(3)
        || (ranks.len() > 1 && PARTS.iter().any(|part| sets_apart(part, ranks, places)))
}

/// Whether they are all that have one value of a part.
fn sets_apart(part: &str, ranks: &[usize], places: &[Place]) -> bool {
    let Some(value) = places[ranks[0]].part(part) else { return false };
    let has = |place: &Place| place.part(part) == Some(value);
    ranks.iter().all(|&it| has(&places[it]))
        && places.iter().filter(|it| has(it)).count() == ranks.len()
}
