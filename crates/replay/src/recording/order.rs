//! What came first, of what was there before a history.
//!
//! In: ties, as the recording decided them. Out: an order of the segments, or of the blocks, that were there at the
//! start. From PyTorch 2.12 on, of free blocks of one pool, stream and size the oldest serves first
//! ([`Tie`](tonnage_engine::config::Tie)), and a snapshot does not tell how old they are. So they are taken to be as old as
//! their addresses are low until the engine takes one and the recording another: that tells which of the two is the older.
//! Which of the others comes next, and how all that are equal otherwise follow each other, is guessed by when the
//! recording takes them, so that a replay which begins anew is right about many ties at once.
//!
//! Each tie tells something new: what is known, or contradicts it, is not learnt; so the learning ends.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::Address;

/// A tie that the engine decided otherwise than the recording, by the names of what was tied: where a segment, a range
/// or a block began at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tied {
    pub(super) older: Address,
    pub(super) younger: Address,
    /// All that were tied with these two, and they, the oldest first, as far as the recording lets guess.
    pub(super) all: Vec<Address>,
    /// Others that are equal to each other, likewise.
    pub(super) others: Vec<Vec<Address>>,
}

/// What is known of the order.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// For each, those that are younger for sure.
    younger: BTreeMap<Address, BTreeSet<Address>>,
    /// All of them, the oldest first, as far as guesses go; none until something is learnt.
    guessed: Vec<Address>,
    /// Those whose place there is no longer the one that their address gives them.
    placed: FxHashSet<Address>,
    /// Ties that were learnt from.
    learnt: usize,
}

impl Order {
    /// How many ties told something.
    pub(super) fn learnt(&self) -> usize {
        self.learnt
    }

    /// Learns from a tie. `names` are all that were there, by ascending address. False if it is known already, or
    /// contradicts what others told, and changes nothing then.
    pub(super) fn learn(&mut self, tied: &Tied, names: &[Address]) -> bool {
        let Tied { older, younger, ref all, ref others } = *tied;
        if self.is_older(younger, older) || self.is_older(older, younger) {
            return false;
        }
        if self.guessed.is_empty() {
            self.guessed = names.to_vec();
        }
        self.younger.entry(older).or_default().insert(younger);
        self.learnt += 1;
        let mut places: FxHashMap<_, _> =
            self.guessed.iter().enumerate().map(|(place, &name)| (name, place)).collect();
        for equal in others {
            let new = equal.iter().copied().filter(|name| !self.placed.contains(name)).collect();
            self.place(new, &mut places);
        }
        self.place(all.clone(), &mut places);
        true
    }

    /// Lets some share the places that they have, in this order.
    fn place(&mut self, mut names: Vec<Address>, places: &mut FxHashMap<Address, usize>) {
        names.retain(|name| places.contains_key(name));
        let mut shared: Vec<_> = names.iter().map(|name| places[name]).collect();
        shared.sort_unstable();
        for (name, place) in names.into_iter().zip(shared) {
            self.guessed[place] = name;
            places.insert(name, place);
            self.placed.insert(name);
        }
    }

    /// Whether one is older than another for sure.
    fn is_older(&self, one: Address, other: Address) -> bool {
        let mut open = vec![one];
        let mut seen = BTreeSet::new();
        while let Some(at) = open.pop() {
            if at == other {
                return true;
            }
            if seen.insert(at) {
                open.extend(self.younger.get(&at).into_iter().flatten());
            }
        }
        false
    }

    /// All of them, the oldest first: as was guessed, but for what is known for sure. Empty if nothing was learnt.
    pub(super) fn oldest_first(&self) -> Vec<Address> {
        let places: FxHashMap<_, _> =
            self.guessed.iter().enumerate().map(|(place, &name)| (name, place)).collect();
        let mut older = vec![0_usize; self.guessed.len()];
        let younger_than = |name: &Address| {
            self.younger.get(name).into_iter().flatten().filter_map(|it| places.get(it).copied())
        };
        self.guessed.iter().flat_map(younger_than).for_each(|place| older[place] += 1);
        let mut ready: BTreeSet<_> = (0..older.len()).filter(|&place| older[place] == 0).collect();
        let mut in_order = Vec::with_capacity(older.len());
        while let Some(place) = ready.pop_first() {
            let name = self.guessed[place];
            in_order.push(name);
            for place in younger_than(&name) {
                older[place] -= 1;
                if older[place] == 0 {
                    ready.insert(place);
                }
            }
        }
        in_order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tied(all: &[u64], younger: u64) -> Tied {
        let all: Vec<_> = all.iter().copied().map(Address).collect();
        Tied { older: all[0], younger: Address(younger), all, others: Vec::new() }
    }

    fn learn(order: &mut Order, it: &Tied) -> Option<Vec<u64>> {
        let names: Vec<_> = (1..=6).map(Address).collect();
        order.learn(it, &names).then(|| order.oldest_first().iter().map(|it| it.0).collect())
    }

    #[test]
    fn what_served_is_older_and_the_others_are_as_they_served() {
        let mut order = Order::default();
        assert_eq!(order.oldest_first(), []);
        assert_eq!(learn(&mut order, &tied(&[5, 4, 2], 2)), Some(vec![1, 5, 3, 4, 2, 6]));
        // A guess gives way to what is sure; what is sure stays.
        assert_eq!(learn(&mut order, &tied(&[2, 4], 4)), Some(vec![1, 5, 3, 2, 4, 6]));
        assert_eq!(learn(&mut order, &tied(&[6, 5], 5)), Some(vec![1, 6, 3, 5, 2, 4]));
        assert_eq!(order.learnt(), 3);
    }

    #[test]
    fn others_that_are_equal_are_placed_by_the_way_and_stay_where_they_were_placed() {
        let mut order = Order::default();
        let with = |others: &[[u64; 2]], it: Tied| {
            let others = others.iter().map(|pair| pair.map(Address).to_vec()).collect();
            Tied { others, ..it }
        };
        let first = with(&[[4, 3], [6, 5]], tied(&[2, 1], 1));
        assert_eq!(learn(&mut order, &first), Some(vec![2, 1, 4, 3, 6, 5]));
        let second = with(&[[3, 4]], tied(&[5, 6], 6));
        assert_eq!(learn(&mut order, &second), Some(vec![2, 1, 4, 3, 5, 6]));
        assert_eq!(order.learnt(), 2);
    }

    #[test]
    fn what_is_known_or_contradicts_itself_is_not_learnt() {
        let mut order = Order::default();
        assert!(learn(&mut order, &tied(&[2, 1], 1)).is_some());
        assert!(learn(&mut order, &tied(&[3, 2], 2)).is_some());
        let before = order.oldest_first();
        assert_eq!(learn(&mut order, &tied(&[1, 3], 3)), None);
        assert_eq!(learn(&mut order, &tied(&[3, 1], 1)), None);
        assert_eq!(learn(&mut order, &tied(&[2, 1], 1)), None);
        assert_eq!(learn(&mut order, &tied(&[1], 1)), None);
        assert_eq!((order.oldest_first(), order.learnt()), (before, 2));
    }
}
