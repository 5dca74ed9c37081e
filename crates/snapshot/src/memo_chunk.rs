//! Stage 3: places of the memo that are seldom asked for, close together.
//!
//! In:  neighbouring places.
//! Out: the same, in about an eighth of a byte each where they are trace entries in order, or a text
//!      that comes again and again between them.

use crate::memo::Packed;

/// Places in a chunk. Chosen: what a chunk costs beside them is little, and so is finding one in it.
pub(crate) const CHUNK: usize = 1024;

const WORDS: usize = CHUNK / 64;

/// Neighbouring places.
pub(crate) struct MemoChunk {
    /// A bit for each place: whether it holds the next trace entry in order.
    in_order: Box<[u64; WORDS]>,
    /// The row of the first of these.
    first_row: u32,
    others: Others,
}

/// What the other places hold.
enum Others {
    /// All the same.
    Same(Packed),
    /// Each its own, in the order of their places.
    Each(Box<[Packed]>),
}

impl MemoChunk {
    /// A chunk with these [`CHUNK`] places.
    pub(crate) fn new(places: &[Packed]) -> Self {
        let first_row = places.iter().find_map(|place| place.as_entry()).unwrap_or(0);
        let mut chunk = Self {
            in_order: Box::new([0; WORDS]),
            first_row,
            others: Others::Each(Box::default()),
        };
        let mut next = first_row;
        let mut others = Vec::new();
        for (at, &place) in places.iter().enumerate() {
            if place.as_entry() == Some(next) {
                chunk.in_order[at / 64] |= 1 << (at % 64);
                next += 1;
            } else {
                others.push(place);
            }
        }
        chunk.others = match others.first() {
            Some(&first) if others.iter().all(|&other| other == first) => Others::Same(first),
            _ => Others::Each(others.into()),
        };
        chunk
    }

    /// What lies at a place of the chunk.
    pub(crate) fn get(&self, at: usize) -> Packed {
        let (word, bit) = (at / 64, at % 64);
        let before = self.in_order[..word].iter().map(|word| word.count_ones()).sum::<u32>()
            + (self.in_order[word] & ((1 << bit) - 1)).count_ones();
        if self.in_order[word] >> bit & 1 == 1 {
            return Packed::entry(self.first_row + before);
        }
        match &self.others {
            Others::Same(place) => *place,
            Others::Each(places) => places[at - before as usize],
        }
    }

    /// Puts something else at a place. That spreads the chunk out, once.
    pub(crate) fn set(&mut self, at: usize, value: Packed) {
        let spread = match &mut self.others {
            Others::Each(places) if places.len() == CHUNK => places,
            _ => {
                let places = (0..CHUNK).map(|at| self.get(at)).collect();
                self.in_order.fill(0);
                self.others = Others::Each(places);
                let Others::Each(places) = &mut self.others else { return };
                places
            }
        };
        spread[at] = value;
    }

    /// Bytes held beside itself.
    pub(crate) fn memory(&self) -> usize {
        let others = match &self.others {
            Others::Same(_) => 0,
            Others::Each(places) => size_of_val(&**places),
        };
        size_of_val(&*self.in_order) + others
    }
}
