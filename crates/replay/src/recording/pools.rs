//! Which pool each segment belonged to.
//!
//! In: the entries, and the pools of the segments at the end. Out: a pool for every segment and range,
//! wherever it came from. From PyTorch 2.12 on entries name their pools, and nothing is left to conclude. Before,
//! the file names those of segments that are
//! still there; of the others it is known only that some cannot be of the same pool, and that is
//! learnt on the way: where the engine would take a free block of one segment, but the recording took or
//! obtained another, the two are of different pools. So the pools are a colouring of a graph whose edges
//! come one at a time: the earlier of two that nobody knows is taken to be of the default pool, until
//! something tells that it is the other way round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_engine::Start;
use tonnage_events::{Action, Address, PoolId, SnapshotSegment, TraceEntry};
use tonnage_snapshot::EntryPools;

use super::ranges::ranges_of;

/// A segment or range, by when it was obtained: an address may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    /// At the start, at this address.
    Start(Address),
    /// At this entry. Failed requests stand for the segments that they did not get.
    Entry(usize),
}

/// What a parting tells about pools, if nothing else is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// Two segments are of different pools: a free block of one would have served, and the other did.
    Apart(Place, Place),
    /// Two segments are of different pools if the call was read rightly: only one of them went back.
    Unlike(Place, Place),
    /// A segment is not of the default pool.
    Private(Place),
    /// A segment is of the default pool.
    Default(Place),
}

impl Fact {
    /// Whether both say something of the same segment.
    pub(super) fn shares_place(self, other: Self) -> bool {
        let places = |fact| match fact {
            Self::Apart(one, other) | Self::Unlike(one, other) => [one, other],
            Self::Private(it) | Self::Default(it) => [it, it],
        };
        places(self).iter().any(|place| places(other).contains(place))
    }
}

/// The pool of each segment, as far as it is known or concluded.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    /// Those of the file; those of the default pool may be left out where the file names all.
    known: Arc<FxHashMap<Place, PoolId>>,
    /// Whether the file names the pools of all entries.
    all_told: bool,
    /// Whether one of those known is private.
    knows_private: bool,
    /// The last name of a pool in the file; invented ones come behind it.
    last: u64,
    /// Pairs of different pools, both ways round.
    apart: BTreeMap<Place, BTreeSet<Place>>,
    /// What was learnt beside these pairs, in order; what follows says the same in other words.
    assumed: Vec<Fact>,
    /// Pairs that are taken to be.
    unlike: BTreeMap<Place, BTreeSet<Place>>,
    /// Those that are not of the default pool.
    private: BTreeSet<Place>,
    /// Those that are.
    default: BTreeSet<Place>,
    /// Conclusions that differ from the default pool.
    concluded: BTreeMap<Place, PoolId>,
    /// Whether segments share a pool wherever nothing speaks against it.
    few: bool,
}

impl Pools {
    /// What the file says, of a history that begins with `start` before the entry at `from`.
    pub(super) fn of(
        entries: &[TraceEntry],
        from: usize,
        start: &Start,
        at_end: &[SnapshotSegment],
        told: EntryPools<'_>,
    ) -> Self {
        if told.are_told() {
            return Self::told(entries, from, start, told);
        }
        let mut obtained = FxHashMap::default();
        for (index, entry) in entries.iter().enumerate().skip(from) {
            if entry.action == Action::SegmentAlloc {
                obtained.insert(entry.address, index);
            }
        }
        let mut known = FxHashMap::default();
        for segment in at_end.iter().filter(|segment| !segment.expandable) {
            let at = segment.address;
            let place = obtained.get(&at).map_or(Place::Start(at), |&index| Place::Entry(index));
            known.insert(place, segment.pool);
        }
        known.extend(ranges_at_end(entries, from, start, at_end));
        let last = at_end.iter().map(|segment| segment.pool.1).max().unwrap_or(0);
        let knows_private = known.values().any(|pool| !pool.is_default());
        Self { known: Arc::new(known), knows_private, last, ..Self::default() }
    }

    /// What the entries themselves say.
    fn told(entries: &[TraceEntry], from: usize, start: &Start, told: EntryPools<'_>) -> Self {
        let obtains =
            |action| matches!(action, Action::SegmentAlloc | Action::SegmentMap | Action::Oom);
        let entries = entries.iter().enumerate().skip(from).filter(|(_, it)| obtains(it.action));
        let obtained =
            entries.filter_map(|(index, _)| Some((Place::Entry(index), told.get(index)?)));
        let before =
            start.segments.iter().map(|it| (Place::Start(place_at_start(start, it)), it.pool));
        let known: FxHashMap<_, _> =
            obtained.chain(before).filter(|(_, pool)| !pool.is_default()).collect();
        let knows_private = !known.is_empty();
        Self { knows_private, known: Arc::new(known), all_told: true, ..Self::default() }
    }

    /// The pool of a segment: the default pool, unless something tells otherwise.
    pub(super) fn pool(&self, place: Place) -> PoolId {
        let pool = self.known.get(&place).or_else(|| self.concluded.get(&place));
        pool.copied().unwrap_or(PoolId::DEFAULT)
    }

    /// Whether no private pool is known or concluded, so that there is nothing to choose.
    pub(super) fn only_default(&self) -> bool {
        self.concluded.is_empty() && !self.knows_private
    }

    /// Conclusions that differ from the default pool.
    pub(super) fn concluded(&self) -> usize {
        self.concluded.len()
    }

    /// The same with as few pools as the facts allow: none if that is no change.
    pub(super) fn with_few(&self) -> Option<Self> {
        if self.few || self.concluded.is_empty() {
            return None;
        }
        let mut few = Self { few: true, ..self.clone() };
        few.concluded = few.coloured()?;
        Some(few)
    }

    /// The pools after some facts are learnt, and the first segment whose pool is another then. None if
    /// they cannot be, or change nothing.
    pub(super) fn with(mut self, facts: &[Fact], now: &Self) -> Option<(Self, Place)> {
        for &fact in facts {
            if matches!(fact, Fact::Apart(one, other) | Fact::Unlike(one, other) if one == other) {
                return None;
            }
            self.take(fact);
        }
        self.concluded = self.coloured()?;
        let first = self.first_change_from(now)?;
        Some((self, first))
    }

    fn take(&mut self, fact: Fact) {
        let both = |pairs: &mut BTreeMap<Place, BTreeSet<Place>>, one: Place, other: Place| {
            pairs.entry(one).or_default().insert(other);
            pairs.entry(other).or_default().insert(one);
        };
        match fact {
            Fact::Apart(one, other) => return both(&mut self.apart, one, other),
            Fact::Unlike(one, other) => both(&mut self.unlike, one, other),
            Fact::Private(place) => drop(self.private.insert(place)),
            Fact::Default(place) => drop(self.default.insert(place)),
        }
        self.assumed.push(fact);
    }

    /// How many facts were learnt beside pairs of different pools: a place to come back to.
    pub(super) fn assumed(&self) -> usize {
        self.assumed.len()
    }

    /// As it was when no more than so many facts were assumed, but with all pairs of different pools: these are sure,
    /// which of the two is the private one is not. Nothing is concluded from them yet.
    pub(super) fn reconsidered(&self, assumed: usize) -> Self {
        let &Self { ref known, all_told, knows_private, last, ref apart, few, .. } = self;
        let (known, apart) = (Arc::clone(known), apart.clone());
        let mut before =
            Self { known, all_told, knows_private, last, apart, few, ..Self::default() };
        self.assumed.iter().take(assumed).for_each(|&fact| before.take(fact));
        before
    }

    /// How much there is to go through where something is concluded.
    pub(super) fn size(&self) -> usize {
        self.apart.len() + self.assumed.len() + self.concluded.len()
    }

    /// The first segment for which these conclusions differ from others.
    fn first_change_from(&self, other: &Self) -> Option<Place> {
        let lacks = |(place, pool): (&Place, &PoolId), others: &Self| {
            (others.concluded.get(place) != Some(pool)).then_some(*place)
        };
        let gained = self.concluded.iter().find_map(|it| lacks(it, other));
        let lost = other.concluded.iter().find_map(|it| lacks(it, self));
        gained.into_iter().chain(lost).min()
    }

    /// The pool that a segment has for sure.
    fn fixed(&self, place: Place) -> Option<PoolId> {
        let default = self.all_told || self.default.contains(&place);
        let default = default.then_some(PoolId::DEFAULT);
        self.known.get(&place).copied().or(default)
    }

    /// The first pool for each segment, in order, that those before it leave.
    fn coloured(&self) -> Option<BTreeMap<Place, PoolId>> {
        let mut concluded = BTreeMap::<Place, PoolId>::new();
        let pairs = self.apart.keys().chain(self.unlike.keys());
        let places: BTreeSet<_> =
            pairs.chain(&self.private).chain(&self.default).copied().collect();
        let mut settled = BTreeSet::new();
        let mut invented = self.last;
        for &place in &places {
            let others = [&self.apart, &self.unlike].into_iter().filter_map(|it| it.get(&place));
            let mut taken = BTreeSet::new();
            for &other in others.flatten() {
                match self.fixed(other) {
                    Some(pool) => drop(taken.insert(pool)),
                    None if settled.contains(&other) => {
                        taken.insert(concluded.get(&other).copied().unwrap_or_default());
                    }
                    None => {}
                }
            }
            if self.private.contains(&place) {
                taken.insert(PoolId::DEFAULT);
            }
            if let Some(fixed) = self.fixed(place) {
                let otherwise = !fixed.is_default() && self.default.contains(&place);
                if otherwise || taken.contains(&fixed) {
                    return None;
                }
                continue;
            }
            settled.insert(place);
            if taken.contains(&PoolId::DEFAULT) {
                let shared = self
                    .few
                    .then(|| self.private_pools(invented))
                    .and_then(|pools| pools.into_iter().find(|pool| !taken.contains(pool)));
                if let Some(pool) = shared {
                    concluded.insert(place, pool);
                    continue;
                }
                // One of its own: two that are taken for one can contradict each other, one that is
                // taken for two cannot.
                invented = invented.checked_add(1)?;
                concluded.insert(place, PoolId(0, invented));
            }
        }
        Some(concluded)
    }

    /// The private pools of the file, and those invented so far.
    fn private_pools(&self, invented: u64) -> Vec<PoolId> {
        let known: BTreeSet<_> = self.known.values().filter(|pool| !pool.is_default()).collect();
        let invented = (self.last + 1..=invented).map(|number| PoolId(0, number));
        known.into_iter().copied().chain(invented).collect()
    }

    /// What else a fact may mean: of two segments whose pools nobody knows, the later one is taken to be
    /// private, but it may be the earlier one.
    pub(super) fn otherwise(&self, fact: Fact) -> Option<[Fact; 2]> {
        let (Fact::Apart(one, other) | Fact::Unlike(one, other)) = fact else { return None };
        let earlier = one.min(other);
        let open = self.fixed(one).is_none() && self.fixed(other).is_none();
        (open && self.pool(earlier).is_default()).then_some([fact, Fact::Private(earlier)])
    }
}

/// Where the segment begins, or the range that a mapped run is of.
pub(super) fn place_at_start(start: &Start, segment: &SnapshotSegment) -> Address {
    let range = start.ranges.partition_point(|&base| base <= segment.address).checked_sub(1);
    let base = range.filter(|_| segment.expandable).map(|range| start.ranges[range]);
    base.unwrap_or(segment.address)
}

/// The expandable ranges that are there at the end: when each was reserved, and its pool. Where all
/// pages of a range were given back, the next at these addresses is another.
fn ranges_at_end(
    entries: &[TraceEntry],
    from: usize,
    start: &Start,
    at_end: &[SnapshotSegment],
) -> FxHashMap<Place, PoolId> {
    let ranges = ranges_of(entries, from, at_end);
    let range_of = |address: Address| {
        let range = ranges.partition_point(|&(base, _)| base <= address.0).checked_sub(1)?;
        (address.0 < ranges[range].1).then_some(range)
    };
    let mut mapped: Vec<(i128, Option<Place>)> = vec![(0, None); ranges.len()];
    for run in start.segments.iter().filter(|run| run.expandable) {
        if let Some(range) = range_of(run.address) {
            mapped[range].0 += i128::from(run.total_size);
            mapped[range].1 = Some(Place::Start(Address(ranges[range].0)));
        }
    }
    for (index, entry) in entries.iter().enumerate().skip(from) {
        let change = match entry.action {
            Action::SegmentMap => i128::from(entry.size),
            Action::SegmentUnmap => -i128::from(entry.size),
            _ => continue,
        };
        let Some(range) = range_of(entry.address) else { continue };
        let (bytes, place) = &mut mapped[range];
        *bytes += change;
        *place = (*bytes > 0).then(|| place.unwrap_or(Place::Entry(index)));
    }
    let runs = at_end.iter().filter(|run| run.expandable);
    let place = |run: &SnapshotSegment| Some((mapped[range_of(run.address)?].1?, run.pool));
    runs.filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(known: &[(usize, PoolId)]) -> Pools {
        let known: FxHashMap<_, _> =
            known.iter().map(|&(index, pool)| (Place::Entry(index), pool)).collect();
        let knows_private = known.values().any(|pool| !pool.is_default());
        Pools { known: Arc::new(known), knows_private, last: 6, ..Pools::default() }
    }

    /// Learns a fact, and says what is another then.
    fn learn(pools: &mut Pools, fact: Fact) -> Option<Place> {
        let (with, first) = pools.clone().with(&[fact], pools)?;
        *pools = with;
        Some(first)
    }

    #[test]
    fn segments_of_different_pools_get_different_ones_and_the_first_change_is_told() {
        let (a, b, c) = (Place::Start(Address(9)), Place::Entry(1), Place::Entry(2));
        let mut pools = pools(&[(3, PoolId::DEFAULT)]);
        assert!(pools.only_default());
        assert_eq!(learn(&mut pools, Fact::Apart(a, b)), Some(b));
        assert_eq!([pools.pool(a), pools.pool(b)], [PoolId::DEFAULT, PoolId(0, 7)]);
        // What is known stays.
        assert_eq!(learn(&mut pools, Fact::Apart(Place::Entry(3), a)), Some(a));
        assert_eq!([pools.pool(a), pools.pool(b)], [PoolId(0, 7), PoolId::DEFAULT]);
        assert_eq!(learn(&mut pools, Fact::Private(b)), Some(b));
        assert_eq!(learn(&mut pools, Fact::Apart(c, a)), None);
        assert_eq!(pools.pool(c), PoolId::DEFAULT);
        assert!(!pools.only_default());
    }

    #[test]
    fn what_cannot_be_is_not_concluded() {
        let mut pools = pools(&[(3, PoolId(0, 7)), (4, PoolId(0, 7))]);
        let (a, b, c) = (Place::Entry(3), Place::Entry(4), Place::Entry(5));
        assert_eq!(learn(&mut pools, Fact::Apart(a, b)), None);
        assert_eq!(learn(&mut pools, Fact::Apart(a, a)), None);
        assert_eq!(learn(&mut pools, Fact::Default(a)), None);
        assert_eq!(learn(&mut pools, Fact::Private(c)), Some(c));
        assert_eq!(learn(&mut pools, Fact::Default(c)), None);
    }

    #[test]
    fn of_two_segments_nobody_knows_either_may_be_the_private_one() {
        let (a, b) = (Place::Entry(1), Place::Entry(2));
        let none = pools(&[]);
        let apart = Fact::Apart(a, b);
        let facts = none.otherwise(apart).expect("both are open");
        let (pools, first) = none.clone().with(&facts, &none).expect("it can be");
        assert_eq!((first, pools.pool(a), pools.pool(b)), (a, PoolId(0, 7), PoolId::DEFAULT));
        assert_eq!(pools.otherwise(apart), None);
        // What is sure is kept, what was believed is not.
        assert_eq!((none.assumed(), pools.assumed()), (0, 1));
        let again = pools.reconsidered(none.assumed());
        let (again, _) = again.with(&[Fact::Default(a)], &pools).expect("it can be");
        assert_eq!((again.pool(a), again.pool(b)), (PoolId::DEFAULT, PoolId(0, 7)));
    }
}
