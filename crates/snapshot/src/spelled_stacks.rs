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

/// How many are remembered, each at the place that its bytes give. Chosen: programs have some thousand stacks.
const PLACES: usize = 4096;

/// Bytes of the longest that is remembered: four hundred frames.
const LONGEST: usize = 2048;

/// What was read.
#[derive(Default)]
pub(crate) struct SpelledStacks {
    /// None, or [`PLACES`].
    known: Vec<Known>,
    /// Bytes of all spellings.
    bytes: usize,
}

#[derive(Clone, Default)]
struct Known {
    /// Nothing, where nothing was read.
    spelling: Box<[u8]>,
    stack: u32,
}

/// The elements of a list at the beginning of some bytes.
#[derive(Clone, Copy)]
pub(crate) struct Spelling<'b> {
    /// From the first element to the end of the list.
    pub(crate) bytes: &'b [u8],
    place: usize,
}

impl<'b> Spelling<'b> {
    /// The elements up to the end of the list; nothing, if one of them is not the name of a place.
    #[inline(always)]
    pub(crate) fn at_beginning_of(bytes: &'b [u8]) -> Option<Self> {
        let mut len = 0;
        loop {
            match *bytes.get(len)? {
                plain::LONG_BINGET => len += 5,
                plain::BINGET => len += 2,
                plain::APPENDS => break,
                _ => return None,
            }
        }
        let bytes = &bytes[..=len];
        // Words are multiplied one beside the other: a chain, each with the one before, would take longer than all the rest.
        // The multiplier is 2⁶⁴ over the golden ratio, which spreads neighbours apart.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let (words, rest) = bytes.as_chunks::<8>();
        let rest = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let words = words.iter().map(|word| u64::from_le_bytes(*word)).chain([rest]);
        let hash = (1_u64..).step_by(2).zip(words).fold(0_u64, |hash, (odd, word)| {
            let word = word ^ word >> 32;
            hash.wrapping_add(word.wrapping_mul(SPREAD.wrapping_mul(odd)))
        });
        Some(Self { bytes, place: (hash >> 40) as usize % PLACES })
    }
}

impl SpelledStacks {
    /// The stack that was read from the same bytes.
    #[inline(always)]
    pub(crate) fn get(&self, spelling: Spelling<'_>) -> Option<u32> {
        let known = self.known.get(spelling.place)?;
        (*known.spelling == *spelling.bytes).then_some(known.stack)
    }

    /// Remembers what was read from these bytes.
    pub(crate) fn put(&mut self, spelling: Spelling<'_>, stack: u32) {
        if spelling.bytes.len() > LONGEST {
            return;
        }
        if self.known.is_empty() {
            self.known = vec![Known::default(); PLACES];
        }
        let known = &mut self.known[spelling.place];
        self.bytes = self.bytes - known.spelling.len() + spelling.bytes.len();
        *known = Known { spelling: spelling.bytes.into(), stack };
    }

    /// Forgets everything.
    #[cold]
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Bytes held, about; with what the next buffer of input can add, once there are any.
    pub(crate) fn memory(&self) -> usize {
        if self.known.is_empty() {
            return 0;
        }
        // Whoever gives out memory needs some words for each.
        self.known.len() * (size_of::<Known>() + 16) + self.bytes + BUFFER
    }
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
    fn what_is_remembered_is_bounded() {
        let mut known = SpelledStacks::default();
        for number in 0..20_000_u32 {
            let bytes = spelled(&vec![number + 1000; number as usize % 1000]);
            known.put(Spelling::at_beginning_of(&bytes).unwrap(), number);
        }
        assert!(known.memory() < PLACES * (LONGEST + 64), "{}", known.memory());
        let held: usize = known.known.iter().map(|it| it.spelling.len()).sum();
        assert_eq!(known.bytes, held);
    }
}
