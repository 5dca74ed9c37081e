//! Rules that give new segments and ranges their addresses.
//!
//! Ties between equally large free blocks go to the lowest address, so an allocator's decisions
//! depend on the order of its segments' addresses. Three rules:
//!
//! - [`FirstFit`]: the lowest gap. Simple to reproduce elsewhere; the command streams use it.
//! - [`Arenas`]: imitates what NVIDIA's driver was seen to do on an H200, for predictions. Fitted on
//!   recordings, not derived.
//! - [`Downwards`]: the other way for large segments, where the host's own memory lies in between, as was seen there too.

use std::collections::BTreeMap;

use tonnage_events::Address;

/// Live intervals: where each begins, and its bytes.
type Intervals = BTreeMap<Address, u64>;

/// Both rules keep everything at multiples of this, as drivers do.
const ALIGNMENT: u64 = 2 << 20;

/// A rule for addresses.
#[derive(Clone, Debug)]
pub enum Placement {
    /// The lowest gap.
    FirstFit(FirstFit),
    /// What a driver was seen to do.
    Arenas(Arenas),
    /// Large segments below each other.
    Downwards(Downwards),
}

impl Placement {
    pub(crate) fn place_segment(&mut self, size: u64, live: &Intervals) -> Option<Address> {
        match self {
            Self::FirstFit(rule) => first_gap(rule.segments_from, size, pairs(live)),
            Self::Arenas(rule) => rule.place(size),
            Self::Downwards(rule) => rule.place(size, live),
        }
    }

    pub(crate) fn remove_segment(&mut self, address: Address, size: u64) {
        match self {
            Self::FirstFit(_) | Self::Downwards(_) => {}
            Self::Arenas(rule) => rule.remove(address, size),
        }
    }

    pub(crate) fn place_range(&mut self, size: u64, live: &Intervals) -> Option<Address> {
        match self {
            Self::FirstFit(rule) => first_gap(rule.ranges_from, size, pairs(live)),
            Self::Arenas(rule) => rule.place_range(size),
            Self::Downwards(rule) => rule.ranges.place(size),
        }
    }
}

/// The lowest gap above a fixed address; segments and ranges lie apart.
#[derive(Clone, Debug)]
pub struct FirstFit {
    /// Where segments begin.
    pub segments_from: Address,
    /// Where reserved ranges begin.
    pub ranges_from: Address,
}

impl Default for FirstFit {
    /// The addresses of the command streams under `testdata/streams`: ranges lie below segments.
    fn default() -> Self {
        Self { segments_from: Address(0x7000_0000_0000), ranges_from: Address(0x6000_0000_0000) }
    }
}

fn pairs(live: &Intervals) -> impl Iterator<Item = (Address, u64)> {
    live.iter().map(|(&start, &length)| (start, length))
}

/// Tries `from` and the ends of live intervals, which ascend, each rounded up to the alignment.
pub(crate) fn first_gap(
    from: Address,
    size: u64,
    live: impl Iterator<Item = (Address, u64)>,
) -> Option<Address> {
    let mut place = from.0;
    for (start, length) in live {
        if start.0 >= place.checked_add(size)? {
            break;
        }
        let end = start.0.checked_add(length)?.checked_next_multiple_of(ALIGNMENT)?;
        place = place.max(end);
    }
    place.checked_add(size)?;
    Some(Address(place))
}

/// Where the arenas end and the small segments begin.
const BASE: u64 = 1 << 46;

/// No segment lies lower: an address of zero is none.
const LOWEST: u64 = ARENA_UNIT;

/// Segments of this size are stacked upwards and their addresses never used again.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Arenas are whole multiples of this.
const ARENA_UNIT: u64 = 32 << 20;

/// Where expandable ranges begin: above everything else that can be had.
const RANGES_FROM: u64 = 1 << 48;

/// The placement that was seen on H200 recordings.
///
/// - A segment of exactly 2 MiB goes directly above all earlier ones of that size.
/// - A larger one goes into the oldest arena with a hole that fits, lowest hole first. If none
///   fits, a new arena is made below the lowest one, and the segment lies at its low end.
/// - A freed segment leaves a hole in its arena. Arenas are never given back.
/// - Ranges ascend, and their addresses are never used again: ties never depended on them.
#[derive(Clone, Debug, Default)]
pub struct Arenas {
    small_segments: u64,
    ranges: Ranges,
    /// Oldest first, which is also from high addresses to low ones.
    arenas: Vec<Arena>,
    /// The largest hole of each arena.
    largest: LargestHoles,
}

#[derive(Clone, Debug)]
struct Arena {
    start: u64,
    /// Free intervals, none touching another: start to end.
    holes: BTreeMap<u64, u64>,
}

impl Arenas {
    fn place(&mut self, size: u64) -> Option<Address> {
        if size == SMALL_SEGMENT {
            return stack(&mut self.small_segments);
        }
        let number = match self.largest.first_of(size) {
            Some(number) => number,
            None => self.add_arena(size)?,
        };
        let arena = &mut self.arenas[number];
        let place = arena.take(size);
        self.largest.set(number, arena.largest_hole());
        place.map(Address)
    }

    /// A new arena for a segment of this size, below all others.
    fn add_arena(&mut self, size: u64) -> Option<usize> {
        let end = self.arenas.last().map_or(BASE, |arena| arena.start);
        let start = end.checked_sub(size.checked_next_multiple_of(ARENA_UNIT)?)?;
        self.arenas.push(Arena { start, holes: BTreeMap::from([(start, end)]) });
        self.largest.push(end - start);
        Some(self.arenas.len() - 1)
    }

    fn remove(&mut self, address: Address, size: u64) {
        if address.0 >= BASE {
            return;
        }
        let number = self.arenas.partition_point(|arena| arena.start > address.0);
        if let Some(arena) = self.arenas.get_mut(number) {
            arena.put(address.0, address.0 + size);
            self.largest.set(number, arena.largest_hole());
        }
    }

    fn place_range(&mut self, size: u64) -> Option<Address> {
        self.ranges.place(size)
    }
}

/// The next small segment, above so many others.
fn stack(count: &mut u64) -> Option<Address> {
    let address = BASE.checked_add(count.checked_mul(SMALL_SEGMENT)?)?;
    *count += 1;
    (address < RANGES_FROM).then_some(Address(address))
}

/// Ranges one above the other, none twice.
#[derive(Clone, Debug, Default)]
struct Ranges {
    /// Bytes of all so far.
    bytes: u64,
}

impl Ranges {
    fn place(&mut self, size: u64) -> Option<Address> {
        let address = RANGES_FROM.checked_add(self.bytes)?;
        address.checked_add(size)?;
        self.bytes = self.bytes.checked_add(size.checked_next_multiple_of(ALIGNMENT)?)?;
        Some(Address(address))
    }
}

/// Each large segment below all earlier ones, so that none lies in an older one's hole, until there are no addresses left;
/// from then on in the highest gap. Small ones and ranges as in [`Arenas`].
#[derive(Clone, Debug, Default)]
pub struct Downwards {
    small_segments: u64,
    ranges: Ranges,
    /// Bytes of all large segments so far.
    large: u64,
}

impl Downwards {
    fn place(&mut self, size: u64, live: &Intervals) -> Option<Address> {
        if size == SMALL_SEGMENT {
            return stack(&mut self.small_segments);
        }
        let size = size.checked_next_multiple_of(ALIGNMENT)?;
        let large = self.large.checked_add(size)?;
        match BASE.checked_sub(large).filter(|place| *place >= LOWEST) {
            Some(place) => {
                self.large = large;
                Some(Address(place))
            }
            None => highest_gap(size, live),
        }
    }
}

/// The highest place for so many bytes below the small segments where nothing lies.
fn highest_gap(size: u64, live: &Intervals) -> Option<Address> {
    let mut end = BASE;
    for (start, length) in live.range(..Address(BASE)).rev() {
        let taken = start.0.checked_add(*length)?.checked_next_multiple_of(ALIGNMENT)?;
        if end.checked_sub(taken).is_some_and(|gap| gap >= size) {
            break;
        }
        end = end.min(start.0 / ALIGNMENT * ALIGNMENT);
    }
    end.checked_sub(size).filter(|place| *place >= LOWEST).map(Address)
}

/// The largest hole of each arena, as a tree of maxima: with many arenas, looking at each for each
/// segment would take too long.
#[derive(Clone, Debug, Default)]
struct LargestHoles {
    /// The node at 1 is the root; the children of the one at n are at 2n and 2n + 1; the leaves are the
    /// second half.
    nodes: Vec<u64>,
    arenas: usize,
}

impl LargestHoles {
    fn leaves(&self) -> usize {
        self.nodes.len() / 2
    }

    fn push(&mut self, hole: u64) {
        if self.arenas == self.leaves() {
            let old = self.leaves();
            let grown = (old * 2).max(1);
            let mut nodes = vec![0; grown * 2];
            nodes[grown..grown + old].copy_from_slice(&self.nodes[old..]);
            for node in (1..grown).rev() {
                nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
            }
            self.nodes = nodes;
        }
        self.arenas += 1;
        self.set(self.arenas - 1, hole);
    }

    fn set(&mut self, arena: usize, hole: u64) {
        let mut node = self.leaves() + arena;
        self.nodes[node] = hole;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node].max(self.nodes[2 * node + 1]);
        }
    }

    /// The first arena with a hole of at least this size.
    fn first_of(&self, size: u64) -> Option<usize> {
        if self.nodes.get(1).is_none_or(|&largest| largest < size) {
            return None;
        }
        let mut node = 1;
        while node < self.leaves() {
            node *= 2;
            node += usize::from(self.nodes[node] < size);
        }
        Some(node - self.leaves())
    }
}

impl Arena {
    fn largest_hole(&self) -> u64 {
        self.holes.iter().map(|(start, end)| end - start).max().unwrap_or(0)
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let (&start, &end) = self.holes.iter().find(|&(start, end)| end - start >= size)?;
        self.holes.remove(&start);
        let rest = (start + size).next_multiple_of(ALIGNMENT);
        if rest < end {
            self.holes.insert(rest, end);
        }
        Some(start)
    }

    fn put(&mut self, start: u64, end: u64) {
        let mut hole = (start, end.next_multiple_of(ALIGNMENT));
        if let Some((&below, &below_end)) = self.holes.range(..start).next_back()
            && below_end == hole.0
        {
            self.holes.remove(&below);
            hole.0 = below;
        }
        if let Some(above_end) = self.holes.remove(&hole.1) {
            hole.1 = above_end;
        }
        self.holes.insert(hole.0, hole.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn first_fit_takes_the_lowest_gap_that_holds_it() {
        let live = BTreeMap::from([(Address(100 * MIB), 2 * MIB), (Address(110 * MIB), 3 * MIB)]);
        let from = Address(100 * MIB);
        assert_eq!(first_gap(from, 8 * MIB, pairs(&live)), Some(Address(102 * MIB)));
        // The end of a live interval counts rounded up to 2 MiB.
        assert_eq!(first_gap(from, 9 * MIB, pairs(&live)), Some(Address(114 * MIB)));
        assert_eq!(first_gap(from, u64::MAX, pairs(&live)), None);
    }

    #[test]
    fn small_segments_stack_upwards_and_are_never_reused() {
        let mut rule = Arenas::default();
        let first = rule.place(2 * MIB).unwrap();
        rule.remove(first, 2 * MIB);
        assert_eq!(first, Address(BASE));
        assert_eq!(rule.place(2 * MIB), Some(Address(BASE + 2 * MIB)));
    }

    #[test]
    fn large_segments_fill_the_oldest_arena_then_a_new_one_below() {
        let mut rule = Arenas::default();
        let a = rule.place(20 * MIB).unwrap();
        assert_eq!(a, Address(BASE - 32 * MIB));
        assert_eq!(rule.place(12 * MIB), Some(Address(BASE - 12 * MIB)), "the rest of the first");
        assert_eq!(rule.place(40 * MIB), Some(Address(BASE - 96 * MIB)), "64 MiB, at its low end");
        rule.remove(a, 20 * MIB);
        assert_eq!(rule.place(24 * MIB), Some(Address(BASE - 56 * MIB)), "a rest below");
        assert_eq!(rule.place(18 * MIB), Some(a), "the hole in the oldest arena");
    }

    #[test]
    fn downwards_no_hole_is_filled() {
        let mut rule = Placement::Downwards(Downwards::default());
        let live = Intervals::new();
        let first = rule.place_segment(20 * MIB, &live);
        assert_eq!(first, Some(Address(BASE - 20 * MIB)));
        rule.remove_segment(Address(BASE - 20 * MIB), 20 * MIB);
        assert_eq!(rule.place_segment(11 * MIB, &live), Some(Address(BASE - 32 * MIB)));
        assert_eq!(rule.place_segment(2 * MIB, &live), Some(Address(BASE)));
        assert_eq!(rule.place_segment(2 * MIB, &live), Some(Address(BASE + 2 * MIB)));
        assert_eq!(rule.place_range(2 * MIB, &live), Some(Address(RANGES_FROM)));
        assert_eq!(rule.place_segment(u64::MAX, &live), None);
    }

    /// A long run obtains and gives back more than there are addresses.
    #[test]
    fn downwards_addresses_are_used_again_once_there_are_no_others() {
        const TIB: u64 = 1 << 40;
        let mut rule = Placement::Downwards(Downwards::default());
        let mut live = Intervals::new();
        for _ in 0..63 {
            rule.place_segment(TIB, &live).unwrap();
        }
        live.insert(Address(BASE - 20 * MIB), 20 * MIB);
        live.insert(Address(BASE - 60 * MIB), 10 * MIB);
        let mut place = |size, live: &Intervals| rule.place_segment(size, live).unwrap().0;
        assert_eq!(place(TIB, &live), BASE - 60 * MIB - TIB, "nothing lies below");
        assert_eq!(place(2 * TIB, &live), BASE - 60 * MIB - 2 * TIB);
        live.insert(Address(BASE - 60 * MIB - TIB), TIB);
        assert_eq!(place(TIB, &live), BASE - 60 * MIB - 2 * TIB);
        live.clear();
        assert_eq!(place(TIB, &live), BASE - TIB);
        assert_eq!(rule.place_segment(65 * TIB, &live), None);
        live.insert(Address(BASE - 20 * MIB), 19 * MIB + 1);
        let far = live.clone();
        assert_eq!(highest_gap(2 * MIB, &far), Some(Address(BASE - 22 * MIB)));
    }

    #[test]
    fn holes_that_touch_become_one() {
        let mut rule = Arenas::default();
        let pieces: Vec<_> = (0..3).map(|_| rule.place(10 * MIB).unwrap()).collect();
        for index in [0, 2, 1] {
            rule.remove(pieces[index], 10 * MIB);
        }
        assert_eq!(rule.place(32 * MIB), Some(pieces[0]));
    }

    #[test]
    fn the_tree_finds_the_arena_that_a_look_at_each_would_find() {
        let mut rule = Arenas::default();
        let mut live = Vec::new();
        let mut seed = 1_u64;
        for step in 0..2_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = seed >> 33;
            if random.is_multiple_of(3) && !live.is_empty() {
                let (address, size) = live.swap_remove(random as usize / 3 % live.len());
                rule.remove(address, size);
                continue;
            }
            let size = (6 + random % 60) * 2 * MIB;
            let fits = |arena: &Arena| arena.holes.iter().any(|(start, end)| end - start >= size);
            let expected = rule.arenas.iter().position(fits).unwrap_or(rule.arenas.len());
            let address = rule.place(size).unwrap();
            let got = rule.arenas.partition_point(|arena| arena.start > address.0);
            assert_eq!(got, expected, "step {step}");
            live.push((address, size));
        }
        assert!(rule.arenas.len() > 20);
    }

    #[test]
    fn ranges_ascend_and_are_never_reused() {
        let mut rule = Arenas::default();
        let first = rule.place_range(5 * MIB).unwrap();
        assert_eq!(rule.place_range(2 * MIB), Some(Address(first.0 + 6 * MIB)));
        assert_eq!(rule.place_range(u64::MAX), None);
    }
}
