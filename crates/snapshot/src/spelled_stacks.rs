//! Stage 3: stacks by the bytes that spell them.
//!
//! In:  the elements of a list, of which each names a place of the memo, and what was read from the same bytes before.
//! Out: the stack that they are.
//!
//! PyTorch writes a new list for each entry, of frames that are memoised: equal stacks are equal bytes. To compare them
//! takes a fifth of the time of looking each frame up. It holds as long as the places named mean the same; the memo
//! [forgets](SpelledStacks::forget) all spellings when a place with a frame gets something else, which no Python does.

use crate::input::BUFFER;
use crate::opcode::plain;

/// How many are remembered at most, and bytes of them all: then everything is forgotten, and remembered anew. Chosen: programs
/// have some thousand stacks, of some hundred bytes.
const MOST: usize = 1 << 15;
const MOST_BYTES: usize = 4 << 20;

/// Bytes of the longest that is remembered: four hundred frames.
const LONGEST: usize = 2048;

/// Places to begin with, a power of two.
const PLACES: usize = 1024;

/// How many places are looked at for one spelling. With half of them free it is hardly ever more than a few; a file that is made so
/// that all its stacks want the same place gains nothing by it.
const LOOKED_AT: usize = 16;

/// What was read.
#[derive(Default)]
pub(crate) struct SpelledStacks {
    /// None, or a power of two of places, of which at most half are taken.
    places: Vec<Place>,
    /// How many are taken.
    len: usize,
    /// The spellings, one behind the other, and those whose place another took.
    bytes: Vec<u8>,
}

/// A stack that was read.
#[derive(Clone, Copy, Default)]
struct Place {
    hash: u32,
    /// Where its spelling is.
    from: u32,
    /// No bytes, where nothing was read: a spelling has at least its end.
    len: u32,
    stack: u32,
}

/// The elements of a list at the beginning of some bytes.
#[derive(Clone, Copy)]
pub(crate) struct Spelling<'b> {
    /// From the first element to the end of the list.
    pub(crate) bytes: &'b [u8],
    hash: u32,
}

impl<'b> Spelling<'b> {
    /// The elements up to the end of the list; nothing, if one of them is not the name of a place.
    #[inline(always)]
    pub(crate) fn at_beginning_of(bytes: &'b [u8]) -> Option<Self> {
        let mut len = 0;
        // Nearly all have four bytes: four of them at a time.
        while let Some(next) = bytes.get(len..).and_then(|it| it.first_chunk::<16>()) {
            if [next[0], next[5], next[10], next[15]] != [plain::LONG_BINGET; 4] {
                break;
            }
            len += 20;
        }
        loop {
            match *bytes.get(len)? {
                plain::LONG_BINGET => len += 5,
                plain::BINGET => len += 2,
                plain::APPENDS => break,
                _ => return None,
            }
        }
        let bytes = &bytes[..=len];
        Some(Self { bytes, hash: hash(bytes) })
    }
}

/// Pairs of words are multiplied one beside the other: a chain, each with the one before, would take longer than all the rest.
#[inline(always)]
fn hash(bytes: &[u8]) -> u32 {
    // 2⁶⁴ over the golden ratio, which spreads neighbours apart, and 2⁶⁴ over the root of two.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    const OTHER: u64 = 0xb504_f333_f9de_6484;
    let mix = |place: u64, pair: &[u8; 16]| {
        let wide = u128::from_le_bytes(*pair);
        let (low, high) = (wide as u64 ^ place, (wide >> 64) as u64 ^ OTHER);
        let product = u128::from(low) * u128::from(high);
        product as u64 ^ (product >> 64) as u64
    };
    let (mut hash, mut place) = (SPREAD.wrapping_mul(bytes.len() as u64), SPREAD);
    for pair in bytes.as_chunks::<16>().0 {
        hash = hash.wrapping_add(mix(place, pair));
        place = place.wrapping_add(SPREAD);
    }
    // The last ones, some of them once more; or, of a short list, all of them.
    let last = bytes.last_chunk().copied().unwrap_or_else(|| {
        let mut last = [0; 16];
        last[..bytes.len()].copy_from_slice(bytes);
        last
    });
    hash = hash.wrapping_add(mix(place, &last));
    (hash ^ hash >> 32) as u32
}

impl SpelledStacks {
    /// The stack that was read from the same bytes.
    #[inline(always)]
    pub(crate) fn get(&self, spelling: Spelling<'_>) -> Option<u32> {
        let mask = self.places.len().checked_sub(1)?;
        for step in 0..LOOKED_AT {
            let place = self.places.get((spelling.hash as usize + step) & mask)?;
            if place.hash == spelling.hash && self.spelling_of(place) == spelling.bytes {
                return Some(place.stack);
            }
            if place.len == 0 {
                return None;
            }
        }
        None
    }

    #[inline(always)]
    fn spelling_of(&self, place: &Place) -> &[u8] {
        self.bytes
            .get(place.from as usize..)
            .and_then(|it| it.get(..place.len as usize))
            .unwrap_or_default()
    }

    /// Remembers what was read from these bytes.
    pub(crate) fn put(&mut self, spelling: Spelling<'_>, stack: u32) {
        if spelling.bytes.len() > LONGEST {
            return;
        }
        if self.len == MOST || self.bytes.len() + spelling.bytes.len() > MOST_BYTES {
            self.forget();
        }
        if self.places.len() < 2 * (self.len + 1) {
            self.grow();
        }
        let place = Place {
            hash: spelling.hash,
            from: self.bytes.len() as u32,
            len: spelling.bytes.len() as u32,
            stack,
        };
        self.bytes.extend_from_slice(spelling.bytes);
        self.len += usize::from(set(&mut self.places, place));
    }

    /// Makes room for twice as many.
    #[cold]
    fn grow(&mut self) {
        let mut places = vec![Place::default(); (2 * self.places.len()).max(PLACES)];
        self.len = 0;
        for place in self.places.iter().filter(|it| it.len > 0) {
            self.len += usize::from(set(&mut places, *place));
        }
        self.places = places;
    }

    /// Forgets everything.
    #[cold]
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Bytes held, about; with what the next buffer of input can add, once there are any.
    pub(crate) fn memory(&self) -> usize {
        if self.places.is_empty() {
            return 0;
        }
        // Each may grow to the double, beside what it was. A list in a buffer has a byte at least.
        let places = 3 * self.places.len().min(2 * MOST);
        places * size_of::<Place>() + 3 * (self.bytes.capacity() + BUFFER)
    }
}

/// Puts something into a place that is free, or into its first; says whether it was free.
fn set(places: &mut [Place], place: Place) -> bool {
    let mask = places.len() - 1;
    let free = (0..LOOKED_AT)
        .map(|step| (place.hash as usize + step) & mask)
        .find(|at| places[*at].len == 0);
    places[free.unwrap_or(place.hash as usize & mask)] = place;
    free.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(places: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &place in places {
            match u8::try_from(place) {
                Ok(place) => bytes.extend([plain::BINGET, place]),
                Err(_) => {
                    bytes.push(plain::LONG_BINGET);
                    bytes.extend(place.to_le_bytes());
                }
            }
        }
        bytes.push(plain::APPENDS);
        bytes
    }

    #[test]
    fn a_list_is_known_by_its_bytes_alone() {
        let mut known = SpelledStacks::default();
        let one = spelled(&[7, 300, 70_000]);
        let mut followed = one.clone();
        followed.extend(b"more");
        let first = Spelling::at_beginning_of(&followed).unwrap();
        assert_eq!(first.bytes, one);
        assert_eq!(known.get(first), None);
        known.put(first, 5);
        assert_eq!(known.get(Spelling::at_beginning_of(&one).unwrap()), Some(5));
        for other in [&[7, 300, 70_001][..], &[7, 300], &[7, 300, 70_000, 7], &[]] {
            let other = spelled(other);
            assert_eq!(known.get(Spelling::at_beginning_of(&other).unwrap()), None);
            // Should both have the same place, too.
            assert_eq!(known.get(Spelling { bytes: &other, ..first }), None);
        }
        known.forget();
        assert_eq!(known.get(first), None);
    }

    #[test]
    fn what_is_no_list_of_places_has_no_spelling() {
        let whole = spelled(&[7, 300, 70_000]);
        for end in 0..whole.len() {
            assert!(Spelling::at_beginning_of(&whole[..end]).is_none(), "{end}");
        }
        assert!(Spelling::at_beginning_of(&[plain::BINGET, 1, plain::EMPTY_DICT]).is_none());
    }

    #[test]
    fn many_are_known_at_once() {
        let mut known = SpelledStacks::default();
        let spellings: Vec<_> = (0..10_000_u32).map(|it| spelled(&[it, it + 1, 70_000])).collect();
        let spelling = |it: &usize| Spelling::at_beginning_of(&spellings[*it]).unwrap();
        let all = 0..spellings.len();
        all.clone().for_each(|it| known.put(spelling(&it), it as u32));
        let found = all.clone().filter(|it| known.get(spelling(it)) == Some(*it as u32)).count();
        assert!(found > 9_990, "{found}");
        // One that has lost its place is found again once it was read again.
        for it in all {
            if known.get(spelling(&it)).is_none() {
                known.put(spelling(&it), it as u32);
                assert_eq!(known.get(spelling(&it)), Some(it as u32));
            }
        }
    }

    #[test]
    fn spellings_that_want_the_same_place_are_kept_apart() {
        let mut known = SpelledStacks::default();
        let spellings: Vec<_> = (0..100_u32).map(|it| spelled(&[it, 70_000])).collect();
        for (number, bytes) in spellings.iter().enumerate() {
            let spelling = Spelling { bytes, hash: 7 };
            assert_eq!(known.get(spelling), None);
            known.put(spelling, number as u32);
            assert_eq!(known.get(spelling), Some(number as u32));
        }
        let found =
            spellings.iter().filter(|bytes| known.get(Spelling { bytes, hash: 7 }).is_some());
        assert_eq!((found.count(), known.len), (LOOKED_AT, LOOKED_AT));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut known = SpelledStacks::default();
        let mut most = 0;
        for number in 0..100_000_u32 {
            let bytes = spelled(&vec![number + 1000; 1 + number as usize % 100]);
            let spelling = Spelling::at_beginning_of(&bytes).unwrap();
            known.put(spelling, number);
            assert_eq!(known.get(spelling), Some(number));
            let held = known.bytes.capacity() + known.places.len() * size_of::<Place>();
            assert!(held <= known.memory());
            assert!(
                known.places.iter().filter(|it| it.len > 0).count() == known.len
                    || number % 1000 != 0
            );
            most = most.max(known.memory());
        }
        assert!(most <= 3 * (2 * MOST_BYTES + BUFFER + 2 * MOST * size_of::<Place>()), "{most}");
        let long = spelled(&[1000; LONGEST]);
        let spelling = Spelling::at_beginning_of(&long).unwrap();
        known.put(spelling, 1);
        assert_eq!(known.get(spelling), None);
    }
}
