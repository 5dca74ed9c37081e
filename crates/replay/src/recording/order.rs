//! What came first, of what was there before a history.
//!
//! In: ties, as the recording decided them. Out: an order of the segments, or of the blocks, that were there at the
//! start. From PyTorch 2.12 on, of free blocks of one pool, stream and size the oldest serves first
//! ([`Tie`](tonnage_engine::config::Tie)), and a snapshot does not tell how old they are. So they are taken to be as old as
//! their addresses are low until the engine takes one and the recording another: that one is the older of the two, for
//! sure. Which of the others comes next is guessed by which of them serves next.
//!
//! Each tie tells something new, and what contradicts itself is not learnt; so the learning ends.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use tonnage_events::Address;

/// A tie that the engine decided otherwise than the recording, by the names of what was tied: where a segment, a range
/// or a block began at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tied {
    /// What the recording took.
    pub(super) taken: Address,
    /// What the engine took.
    pub(super) instead: Address,
    /// All that were tied, in the order in which the recording takes them, these two among them.
    pub(super) all: Vec<Address>,
}

/// What is known of the order.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// For each, those that are younger for sure.
    younger: BTreeMap<Address, BTreeSet<Address>>,
    /// All of them, the oldest first, as far as guesses go; none until something is learnt.
    guessed: Vec<Address>,
    /// Ties that were learnt from.
    learnt: usize,
}

impl Order {
    /// How many ties told something.
    pub(super) fn learnt(&self) -> usize {
        self.learnt
    }

    /// Learns from a tie. `names` are all that were there, by ascending address. False if it contradicts what others told, and
    /// changes nothing then.
    pub(super) fn learn(&mut self, tied: &Tied, names: &[Address]) -> bool {
        let Tied { taken, instead, ref all } = *tied;
        if taken == instead || self.is_older(instead, taken) {
            return false;
        }
        if self.guessed.is_empty() {
            self.guessed = names.to_vec();
        }
        self.younger.entry(taken).or_default().insert(instead);
        self.learnt += 1;
        // They share the places that they have, in their new order.
        let tied: BTreeSet<_> = all.iter().copied().collect();
        let places: Vec<_> =
            (0..self.guessed.len()).filter(|&place| tied.contains(&self.guessed[place])).collect();
        let present: BTreeSet<_> = places.iter().map(|&place| self.guessed[place]).collect();
        let in_order = all.iter().copied().filter(|name| present.contains(name));
        for (place, name) in places.into_iter().zip(in_order) {
            self.guessed[place] = name;
        }
        true
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

    fn tied(all: &[u64], instead: u64) -> Tied {
        let all: Vec<_> = all.iter().copied().map(Address).collect();
        Tied { taken: all[0], instead: Address(instead), all }
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
    fn what_contradicts_itself_is_not_learnt() {
        let mut order = Order::default();
        assert!(learn(&mut order, &tied(&[2, 1], 1)).is_some());
        assert!(learn(&mut order, &tied(&[3, 2], 2)).is_some());
        let before = order.oldest_first();
        assert_eq!(learn(&mut order, &tied(&[1, 3], 3)), None);
        assert_eq!(learn(&mut order, &tied(&[1], 1)), None);
        assert_eq!((order.oldest_first(), order.learnt()), (before, 2));
    }
}
