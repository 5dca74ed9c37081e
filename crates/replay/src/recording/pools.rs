//! Which pool each segment belonged to.
//!
//! In: the entries, and the pools of the segments at the end. Out: a pool for every segment and range,
//! wherever it came from. A history does not name pools. The file names those of segments that are
//! still there; of the others it is known only that some cannot be of the same pool, and that is
//! learnt on the way: where the engine would take a free block of one segment, but the recording took or
//! obtained another, the two are of different pools. So the pools are a colouring of a graph whose edges
//! come one at a time. The default pool comes first, then those of the file, then invented ones.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use tonnage_engine::Start;
use tonnage_events::{Action, Address, PoolId, SnapshotSegment, TraceEntry};

use super::start::ranges_of;

/// A segment or range, by when it was obtained: an address may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    /// At the start, at this address.
    Start(Address),
    /// At this entry. Failed requests stand for the segments that they did not get.
    Entry(usize),
}

/// The pool of each segment, as far as it is known or concluded.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    /// Those of the file.
    known: FxHashMap<Place, PoolId>,
    /// The last name of a pool in the file; invented ones come behind it.
    last: u64,
    /// Pairs of different pools, both ways round.
    apart: BTreeMap<Place, BTreeSet<Place>>,
    /// Those that are not of the default pool.
    private: BTreeSet<Place>,
    /// Conclusions that differ from the default pool.
    concluded: BTreeMap<Place, PoolId>,
}

impl Pools {
    /// What the file says, of a history that begins with `start` before the entry at `from`.
    pub(super) fn of(
        entries: &[TraceEntry],
        from: usize,
        start: &Start,
        at_end: &[SnapshotSegment],
    ) -> Self {
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
        Self { known, last, ..Self::default() }
    }

    /// The pool of a segment: the default pool, unless something tells otherwise.
    pub(super) fn pool(&self, place: Place) -> PoolId {
        let pool = self.known.get(&place).or_else(|| self.concluded.get(&place));
        pool.copied().unwrap_or(PoolId::DEFAULT)
    }

    /// Whether no private pool is known or concluded, so that there is nothing to choose.
    pub(super) fn only_default(&self) -> bool {
        self.concluded.is_empty() && self.known.values().all(|pool| pool.is_default())
    }

    /// Conclusions that differ from the default pool.
    pub(super) fn concluded(&self) -> usize {
        self.concluded.len()
    }

    /// Learns that two segments are of different pools, or one not of the default pool, and returns
    /// the first segment whose pool is another now. None if that cannot be, or changes nothing.
    pub(super) fn learn(&mut self, one: Place, other: Option<Place>) -> Option<Place> {
        match other {
            Some(other) if one == other => return None,
            Some(other) => {
                self.apart.entry(one).or_default().insert(other);
                self.apart.entry(other).or_default().insert(one);
            }
            None => drop(self.private.insert(one)),
        }
        self.conclude()
    }

    fn conclude(&mut self) -> Option<Place> {
        let concluded = self.coloured()?;
        let changed = |(place, pool): (&Place, &PoolId), others: &BTreeMap<Place, PoolId>| {
            (others.get(place) != Some(pool)).then_some(*place)
        };
        let gained = concluded.iter().find_map(|it| changed(it, &self.concluded));
        let lost = self.concluded.iter().find_map(|it| changed(it, &concluded));
        let first = gained.into_iter().chain(lost).min();
        self.concluded = concluded;
        first
    }

    /// The first pool for each segment, in order, that those before it leave.
    fn coloured(&self) -> Option<BTreeMap<Place, PoolId>> {
        let mut concluded = BTreeMap::<Place, PoolId>::new();
        let places: BTreeSet<_> = self.apart.keys().chain(&self.private).copied().collect();
        let nothing = BTreeSet::new();
        let mut settled = BTreeSet::new();
        let mut invented = self.last;
        for &place in &places {
            let others = self.apart.get(&place).unwrap_or(&nothing);
            let mut taken = BTreeSet::new();
            for other in others {
                match self.known.get(other) {
                    Some(&pool) => drop(taken.insert(pool)),
                    None if settled.contains(other) => {
                        taken.insert(concluded.get(other).copied().unwrap_or_default());
                    }
                    None => {}
                }
            }
            if self.private.contains(&place) {
                taken.insert(PoolId::DEFAULT);
            }
            if let Some(known) = self.known.get(&place) {
                if taken.contains(known) {
                    return None;
                }
                continue;
            }
            settled.insert(place);
            if taken.contains(&PoolId::DEFAULT) {
                // One of its own: two that are taken for one can contradict each other, one that is
                // taken for two cannot.
                invented = invented.checked_add(1)?;
                concluded.insert(place, PoolId(0, invented));
            }
        }
        Some(concluded)
    }
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
        Pools { known, last: 6, ..Pools::default() }
    }

    #[test]
    fn segments_of_different_pools_get_different_ones_and_the_first_change_is_told() {
        let (a, b, c) = (Place::Start(Address(9)), Place::Entry(1), Place::Entry(2));
        let mut pools = pools(&[(3, PoolId::DEFAULT)]);
        assert!(pools.only_default());
        assert_eq!(pools.learn(a, Some(b)), Some(b));
        assert_eq!([pools.pool(a), pools.pool(b)], [PoolId::DEFAULT, PoolId(0, 7)]);
        // What is known stays.
        assert_eq!(pools.learn(Place::Entry(3), Some(a)), Some(a));
        assert_eq!([pools.pool(a), pools.pool(b)], [PoolId(0, 7), PoolId::DEFAULT]);
        assert_eq!(pools.learn(b, None), Some(b));
        assert_eq!(pools.learn(c, Some(a)), None);
        assert_eq!(pools.pool(c), PoolId::DEFAULT);
        assert!(!pools.only_default());
    }

    #[test]
    fn what_cannot_be_is_not_concluded() {
        let mut pools = pools(&[(3, PoolId(0, 7)), (4, PoolId(0, 7))]);
        assert_eq!(pools.learn(Place::Entry(3), Some(Place::Entry(4))), None);
        assert_eq!(pools.learn(Place::Entry(3), Some(Place::Entry(3))), None);
    }
}
