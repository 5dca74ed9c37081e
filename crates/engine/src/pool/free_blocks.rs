//! Free blocks in the order of the search: by stream, then size, then address.
//!
//! Best fit is the first block at or after (stream, size); among equals the lowest address wins.

use tonnage_events::{Address, StreamId};

use crate::block::{Block, BlockId};

/// An ordered set of free blocks.
///
/// One list for each stream: a block never serves another stream, so every search stays in one of
/// them. There are few streams, hence a sorted list of lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks {
    streams: Vec<(StreamId, BySize)>,
}

impl FreeBlocks {
    pub(crate) fn insert(&mut self, id: BlockId, block: &Block) {
        let at = match self.find(block.stream) {
            Ok(at) => at,
            Err(at) => {
                self.streams.insert(at, (block.stream, BySize::default()));
                at
            }
        };
        self.streams[at].1.insert(Entry { size: block.size, address: block.address, id });
    }

    /// Puts a block in the place of another of the same stream that lay at `old`, given by size and
    /// address: what remains of it, or what it has become part of.
    #[inline]
    pub(crate) fn replace(&mut self, old: (u64, Address), id: BlockId, block: &Block) {
        let Ok(at) = self.find(block.stream) else { return };
        let entry = Entry { size: block.size, address: block.address, id };
        self.streams[at].1.replace(old, entry);
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, block: &Block) -> bool {
        let Ok(at) = self.find(block.stream) else { return false };
        self.streams[at].1.remove(block.size, block.address)
    }

    /// The smallest block of `stream` with at least `size` bytes, at the lowest address.
    #[inline]
    pub(crate) fn best(&self, stream: StreamId, size: u64) -> Option<BlockId> {
        let blocks = self.of(stream)?;
        let (at, place) = blocks.place((size, Address(0)));
        blocks.runs.get(at)?.get(place).map(|entry| entry.id)
    }

    /// Blocks of `stream` with at least `size` bytes, in order.
    pub(crate) fn at_least(&self, stream: StreamId, size: u64) -> impl Iterator<Item = BlockId> {
        self.of(stream).into_iter().flat_map(move |blocks| blocks.from(size))
    }

    /// Blocks of `stream` with fewer than `size` bytes, the largest first.
    pub(crate) fn below(&self, stream: StreamId, size: u64) -> impl Iterator<Item = BlockId> {
        self.of(stream).into_iter().flat_map(move |blocks| blocks.below(size))
    }

    /// All blocks, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.streams.iter().flat_map(|(_, blocks)| blocks.from(0))
    }

    pub(crate) fn len(&self) -> usize {
        let lengths = self.streams.iter().flat_map(|(_, blocks)| blocks.runs.iter().map(Vec::len));
        lengths.sum()
    }

    fn of(&self, stream: StreamId) -> Option<&BySize> {
        self.find(stream).ok().map(|at| &self.streams[at].1)
    }

    #[inline]
    fn find(&self, stream: StreamId) -> Result<usize, usize> {
        // Nearly always the default stream, which is the first.
        match self.streams.first() {
            Some(&(first, _)) if first == stream => Ok(0),
            _ => self.streams.binary_search_by_key(&stream, |&(of, _)| of),
        }
    }
}

/// Most entries of a run. Moving half of one, 384 bytes, costs less than following a pointer of a
/// tree; a set of a hundred thousand blocks has few enough runs to search.
const RUN: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Entry {
    size: u64,
    address: Address,
    id: BlockId,
}

impl Entry {
    fn key(&self) -> (u64, Address) {
        (self.size, self.address)
    }
}

/// Blocks of one stream by size, then address: a B-tree of two levels.
///
/// *Runs, one after the other, are in ascending order; none is empty, unless it is the only one.*
#[derive(Clone, Debug, Default)]
struct BySize {
    runs: Vec<Vec<Entry>>,
}

impl BySize {
    /// The run and the place in it of the first entry that is not below the key.
    #[inline]
    fn place(&self, key: (u64, Address)) -> (usize, usize) {
        let ends_below = |run: &Vec<Entry>| run.last().is_some_and(|last| last.key() < key);
        let run = match self.runs.len() {
            0 | 1 => 0,
            runs => self.runs.partition_point(ends_below).min(runs - 1),
        };
        let place = self.runs.get(run).map_or(0, |run| run.partition_point(|it| it.key() < key));
        (run, place)
    }

    #[inline]
    fn insert(&mut self, entry: Entry) {
        if self.runs.is_empty() {
            self.runs.push(Vec::with_capacity(RUN));
        }
        let (at, place) = self.place(entry.key());
        let run = &mut self.runs[at];
        run.insert(place, entry);
        if run.len() == RUN {
            let mut upper = Vec::with_capacity(RUN);
            upper.extend(run.drain(RUN / 2..));
            self.runs.insert(at + 1, upper);
        }
    }

    #[inline]
    fn remove(&mut self, size: u64, address: Address) -> bool {
        let (at, place) = self.place((size, address));
        let Some(run) = self.runs.get_mut(at) else { return false };
        if run.get(place).is_none_or(|entry| entry.key() != (size, address)) {
            return false;
        }
        run.remove(place);
        if run.is_empty() && self.runs.len() > 1 {
            self.runs.remove(at);
        }
        true
    }

    /// Where the order stays as it is, nothing has to move.
    #[inline]
    fn replace(&mut self, old: (u64, Address), new: Entry) {
        let (at, place) = self.place(old);
        let Some(run) = self.runs.get(at) else { return };
        debug_assert!(run.get(place).is_some_and(|it| it.key() == old), "the old block is there");
        let before = match place.checked_sub(1) {
            Some(before) => run.get(before),
            None => at.checked_sub(1).and_then(|before| self.runs[before].last()),
        };
        let behind =
            run.get(place + 1).or_else(|| self.runs.get(at + 1).and_then(|next| next.first()));
        let in_order = before.is_none_or(|it| it.key() < new.key())
            && behind.is_none_or(|it| new.key() < it.key());
        if in_order {
            self.runs[at][place] = new;
        } else {
            self.remove(old.0, old.1);
            self.insert(new);
        }
    }

    #[inline]
    fn from(&self, size: u64) -> impl Iterator<Item = BlockId> {
        let (at, place) = self.place((size, Address(0)));
        let first = self.runs.get(at).map_or(&[][..], |run| &run[place..]);
        let rest = self.runs.get(at + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flatten()).map(|entry| entry.id)
    }

    fn below(&self, size: u64) -> impl Iterator<Item = BlockId> {
        let (at, place) = self.place((size, Address(0)));
        let last = self.runs.get(at).map_or(&[][..], |run| &run[..place]);
        let before = &self.runs[..at.min(self.runs.len())];
        let descending =
            last.iter().rev().chain(before.iter().rev().flat_map(|it| it.iter().rev()));
        descending.map(|entry| entry.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use slotmap::SlotMap;
    use tonnage_events::PoolKind;

    use super::{Address, Block, BlockId, FreeBlocks, StreamId};
    use crate::pool::{PoolRef, PoolSet};

    #[test]
    fn the_set_does_what_a_map_does_through_many_runs() {
        let pool = PoolRef { set: PoolSet::Default, kind: PoolKind::Large };
        let mut keys = SlotMap::<BlockId, ()>::with_key();
        let mut free = FreeBlocks::default();
        let mut model = BTreeMap::new();
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for step in 0..20_000 {
            // Grows for a while, then shrinks to nothing.
            let grows = step % 10_000 < 6_000;
            let address = Address(random(500) * 512);
            let block = Block::new(address, 512 << random(6), StreamId(random(3)), pool);
            let key = (block.stream, block.size, block.address);
            if random(10) < if grows { 7 } else { 3 } {
                model.entry(key).or_insert_with(|| {
                    let id = keys.insert(());
                    free.insert(id, &block);
                    id
                });
            } else if let Some(id) = model.remove(&key)
                && random(2) == 0
            {
                // Another takes its place, here or far away.
                let mut other = block.clone();
                other.size = 512 << random(6);
                other.address = Address(block.address.0 + random(2) * 512 * 500);
                let other_key = (other.stream, other.size, other.address);
                if let Entry::Vacant(vacant) = model.entry(other_key) {
                    free.replace((block.size, block.address), id, &other);
                    vacant.insert(id);
                } else {
                    assert!(free.remove(&block), "step {step}");
                }
            } else {
                free.remove(&block);
            }
            let there = free.at_least(block.stream, 0).count();
            let expected = model.keys().filter(|(stream, ..)| *stream == block.stream).count();
            assert_eq!(there, expected, "step {step}");
            let from = (block.stream, block.size, Address(0));
            let end = (StreamId(block.stream.0 + 1), 0, Address(0));
            let at_least = free.at_least(block.stream, block.size);
            assert_eq!(
                free.best(block.stream, block.size),
                model.range(from..end).next().map(|(_, &id)| id),
                "step {step}"
            );
            assert!(at_least.eq(model.range(from..end).map(|(_, &id)| id)), "step {step}");
            let start = (block.stream, 0, Address(0));
            let below = model.range(start..from).rev().map(|(_, &id)| id);
            assert!(free.below(block.stream, block.size).eq(below), "step {step}");
            if step % 100 == 0 {
                assert!(free.iter().eq(model.values().copied()), "step {step}");
                assert_eq!(free.len(), model.len());
            }
        }
    }
}
