//! Free blocks in the order of the search: by stream, then size, then rank.
//!
//! Best fit is the first block at or after (stream, size); among equals the lowest rank wins, which is the
//! release's rule for ties.

use tonnage_events::StreamId;

use crate::block::{Block, BlockId};
use crate::request::MIN_BLOCK;

/// An ordered set of free blocks.
///
/// One set for each stream: a block never serves another stream, so every search stays in one of
/// them. There are few streams at a time, hence a sorted list of sets. A set that becomes empty stays
/// for the block that comes back next, until others come or memory goes back to the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks {
    streams: Vec<(StreamId, Box<Bins>)>,
    /// Sets that were not empty when they were last gone over.
    filled_sets: usize,
}

/// Empty sets that may stay besides as many as have blocks.
const EMPTY_SETS: usize = 4;

impl FreeBlocks {
    #[inline]
    pub(crate) fn insert(&mut self, id: BlockId, block: &Block) {
        let at = match self.find(block.stream) {
            Ok(at) => at,
            Err(at) => self.add_stream(block.stream, at),
        };
        self.streams[at].1.insert(Entry::of(id, block));
    }

    /// Makes the set of a stream that belongs at `at`. Empty sets go once there are more of them than
    /// of the others: going over all then costs no more than the insertions before it did.
    #[cold]
    fn add_stream(&mut self, stream: StreamId, mut at: usize) -> usize {
        if self.streams.len() >= 2 * self.filled_sets + EMPTY_SETS {
            self.trim();
            at = self.streams.partition_point(|&(of, _)| of < stream);
        }
        self.streams.insert(at, (stream, Box::default()));
        at
    }

    /// Takes no more memory than for the blocks that are there.
    #[cold]
    pub(crate) fn trim(&mut self) {
        self.streams.retain(|(_, blocks)| !blocks.is_empty());
        self.streams.iter_mut().for_each(|(_, blocks)| blocks.trim());
        self.filled_sets = self.streams.len();
        self.streams.shrink_to(2 * self.filled_sets);
    }

    /// Puts a block in the place of another of the same stream that lay at `old`, given by size and
    /// rank: what remains of it, or what it has become part of.
    #[inline]
    pub(crate) fn replace(&mut self, old: (u64, u64), id: BlockId, block: &Block) {
        let Ok(at) = self.find(block.stream) else { return };
        self.streams[at].1.replace(key(old.0, old.1), Entry::of(id, block));
    }

    /// Whether it was there.
    #[inline]
    pub(crate) fn remove(&mut self, block: &Block) -> bool {
        let Ok(at) = self.find(block.stream) else { return false };
        self.streams[at].1.remove(key(block.size, block.rank))
    }

    /// The smallest block of `stream` with at least `size` bytes, of the lowest rank.
    #[inline]
    pub(crate) fn best(&self, stream: StreamId, size: u64) -> Option<BlockId> {
        self.of(stream)?.first_from(size)
    }

    /// Whether no block of `stream` with at least `size` bytes comes before a place, given by size and
    /// rank; one of them does not count.
    #[inline]
    pub(crate) fn has_none_before(
        &self,
        stream: StreamId,
        size: u64,
        place: (u64, u64),
        but: Option<BlockId>,
    ) -> bool {
        let Some(blocks) = self.of(stream) else { return true };
        let end = key(place.0, place.1);
        let first = blocks.entry_from(key(size, 0));
        let first = match first {
            Some(entry) if Some(entry.id) == but => blocks.entry_from(entry.key + 1),
            first => first,
        };
        first.is_none_or(|entry| entry.key > end)
    }

    /// Blocks of `stream` with at least `size` bytes, in order.
    pub(crate) fn at_least(&self, stream: StreamId, size: u64) -> impl Iterator<Item = BlockId> {
        self.of(stream).into_iter().flat_map(move |blocks| blocks.from(size))
    }

    /// The streams that have had blocks.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().map(|&(stream, _)| stream)
    }

    /// Blocks of all streams with at least `size` bytes.
    pub(crate) fn with_at_least(&self, size: u64) -> impl Iterator<Item = BlockId> {
        self.streams.iter().flat_map(move |(_, blocks)| blocks.from(size))
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
        self.streams.iter().map(|(_, blocks)| blocks.len()).sum()
    }

    #[inline]
    fn of(&self, stream: StreamId) -> Option<&Bins> {
        self.find(stream).ok().map(|at| &*self.streams[at].1)
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

/// Size, then rank, as one number: comparing it takes no branch.
type Key = u128;

#[inline]
fn key(size: u64, rank: u64) -> Key {
    (Key::from(size) << 64) | Key::from(rank)
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    id: BlockId,
}

impl Entry {
    #[inline]
    fn of(id: BlockId, block: &Block) -> Self {
        Self { key: key(block.size, block.rank), id }
    }
}

/// Bins of a doubling of sizes: 8.
const BINS_LOG2: u32 = 3;

/// Sizes up to 7 TiB have bins of an eighth of their doubling; larger ones share the last. With the one
/// that stays empty they are as many as a byte can name.
const BINS: usize = 255;

/// The place of the bin that stays empty, and stands for all that have had no blocks.
const NO_BIN: u8 = 0;

/// The bin of a size. A larger size never has a smaller bin. Round sizes, those of whole segments, are
/// the largest of theirs: what remains when a little is cut off stays in the bin.
#[inline]
fn bin_of(size: u64) -> usize {
    let units = size.saturating_sub(1) / MIN_BLOCK;
    if units < 1 << BINS_LOG2 {
        return units as usize;
    }
    let doublings = units.ilog2() - BINS_LOG2;
    let bin = (u64::from(doublings) << BINS_LOG2) + (units >> doublings);
    (bin as usize).min(BINS - 1)
}

/// Blocks of one stream by size, then rank, in bins of similar sizes.
///
/// Most bins have few blocks, and a bit for each bin finds the next that has any, so that a search
/// costs the same whether there are ten blocks or ten thousand. Only bins that have had blocks take
/// memory: a stream uses few sizes.
#[derive(Clone, Debug)]
struct Bins {
    /// Which of `bins` holds the blocks of a bin.
    places: [u8; BINS],
    /// A bit for each bin: whether it has blocks.
    filled: [u64; BINS.div_ceil(64)],
    /// The empty one, then the others by when they had their first block.
    bins: Vec<Ordered>,
}

impl Default for Bins {
    fn default() -> Self {
        let bins = vec![Ordered::default()];
        Self { places: [NO_BIN; BINS], filled: [0; BINS.div_ceil(64)], bins }
    }
}

impl Bins {
    #[inline]
    fn is_empty(&self) -> bool {
        self.filled == [0; BINS.div_ceil(64)]
    }

    #[inline]
    fn bin(&self, bin: usize) -> &Ordered {
        &self.bins[usize::from(self.places[bin])]
    }

    #[inline]
    fn bin_mut(&mut self, bin: usize) -> &mut Ordered {
        &mut self.bins[usize::from(self.places[bin])]
    }

    #[inline]
    fn insert(&mut self, entry: Entry) {
        let bin = bin_of((entry.key >> 64) as u64);
        if self.places[bin] == NO_BIN {
            self.add_bin(bin);
        }
        self.bin_mut(bin).insert(entry);
        self.filled[bin / 64] |= 1 << (bin % 64);
    }

    #[cold]
    fn add_bin(&mut self, bin: usize) {
        // At most `BINS`: the byte can name it.
        self.places[bin] = self.bins.len() as u8;
        self.bins.push(Ordered::default());
    }

    #[inline]
    fn remove(&mut self, key: Key) -> bool {
        let bin = bin_of((key >> 64) as u64);
        let blocks = self.bin_mut(bin);
        let found = blocks.remove(key);
        if blocks.is_empty() {
            self.filled[bin / 64] &= !(1 << (bin % 64));
        }
        found
    }

    /// Takes no more memory than for the blocks that are there.
    fn trim(&mut self) {
        self.bins.iter_mut().for_each(Ordered::trim);
        if self.bins.iter().skip(1).all(|bin| !bin.is_empty()) {
            return;
        }
        let Self { places, filled: _, bins } = std::mem::take(self);
        let mut bins: Vec<_> = bins.into_iter().map(Some).collect();
        for (bin, &place) in places.iter().enumerate() {
            if let Some(blocks) = bins[usize::from(place)].take_if(|blocks| !blocks.is_empty()) {
                self.add_bin(bin);
                *self.bin_mut(bin) = blocks;
                self.filled[bin / 64] |= 1 << (bin % 64);
            }
        }
        self.bins.shrink_to_fit();
    }

    #[inline]
    fn replace(&mut self, old: Key, new: Entry) {
        let bin = bin_of((old >> 64) as u64);
        let stays = bin == bin_of((new.key >> 64) as u64);
        if !(stays && self.bin_mut(bin).replace(old, new)) {
            self.remove(old);
            self.insert(new);
        }
    }

    #[inline]
    fn first_from(&self, size: u64) -> Option<BlockId> {
        self.entry_from(key(size, 0)).map(|entry| entry.id)
    }

    /// The first entry that is not below the key.
    #[inline]
    fn entry_from(&self, key: Key) -> Option<Entry> {
        let bin = bin_of((key >> 64) as u64);
        self.bin(bin).first_from(key).or_else(|| {
            let next = self.filled_from(bin + 1)?;
            self.bin(next).first_from(0)
        })
    }

    /// The first bin from `bin` on that has blocks.
    #[inline]
    fn filled_from(&self, bin: usize) -> Option<usize> {
        let mut word = bin / 64;
        let mut bits = self.filled.get(word)? & (u64::MAX << (bin % 64));
        while bits == 0 {
            word += 1;
            bits = *self.filled.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The bins from `bin` on that have blocks.
    fn filled(&self, bin: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.filled_from(bin), |&bin| self.filled_from(bin + 1))
    }

    fn from(&self, size: u64) -> impl Iterator<Item = BlockId> {
        let bins = self.filled(bin_of(size)).map(|bin| self.bin(bin));
        bins.flat_map(move |blocks| blocks.from(key(size, 0)))
    }

    fn below(&self, size: u64) -> impl Iterator<Item = BlockId> {
        let bins = (0..=bin_of(size)).rev().map(|bin| self.bin(bin));
        bins.flat_map(move |blocks| blocks.below(key(size, 0)))
    }

    fn len(&self) -> usize {
        self.bins.iter().map(Ordered::len).sum()
    }
}

/// Most entries of a run. Moving half of one costs less than following a pointer of a tree; a bin of a
/// hundred thousand blocks has few enough runs to search.
const RUN: usize = 32;

/// Entries that an empty run may keep room for.
const SMALL_RUN: usize = 16;

/// Entries by key: a B-tree of two levels.
///
/// *The runs, one after the other, are in ascending order; none but the first is empty, and that only
/// if there are no others.*
#[derive(Clone, Debug, Default)]
struct Ordered {
    first: Vec<Entry>,
    /// Nearly always none.
    others: Vec<Vec<Entry>>,
}

impl Ordered {
    #[inline]
    fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    fn len(&self) -> usize {
        self.first.len() + self.others.iter().map(Vec::len).sum::<usize>()
    }

    /// The run that the key belongs to: the first that does not end below it, or else the last. The
    /// first of all is number 0, the others follow.
    #[inline]
    fn run_of(&self, key: Key) -> usize {
        let ends_below = |run: &Vec<Entry>| run.last().is_some_and(|last| last.key < key);
        if self.others.is_empty() || !ends_below(&self.first) {
            return 0;
        }
        (1 + self.others.partition_point(ends_below)).min(self.others.len())
    }

    #[inline]
    fn run(&self, number: usize) -> &[Entry] {
        if number == 0 { &self.first } else { &self.others[number - 1] }
    }

    #[inline]
    fn run_mut(&mut self, number: usize) -> &mut Vec<Entry> {
        if number == 0 { &mut self.first } else { &mut self.others[number - 1] }
    }

    #[inline]
    fn insert(&mut self, entry: Entry) {
        let number = self.run_of(entry.key);
        let run = self.run_mut(number);
        run.insert(place(run, entry.key), entry);
        if run.len() == RUN {
            let mut upper = Vec::with_capacity(RUN);
            upper.extend(run.drain(RUN / 2..));
            self.others.insert(number, upper);
        }
    }

    #[inline]
    fn remove(&mut self, key: Key) -> bool {
        let number = self.run_of(key);
        let run = self.run_mut(number);
        let place = place(run, key);
        if run.get(place).is_none_or(|entry| entry.key != key) {
            return false;
        }
        run.remove(place);
        if run.is_empty() {
            self.forget_run(number);
        }
        true
    }

    /// Takes away a run that has become empty; the last one stays, as small as it began.
    #[inline]
    fn forget_run(&mut self, number: usize) {
        if self.others.is_empty() {
            if self.first.capacity() > SMALL_RUN {
                *self = Self::default();
            }
        } else if number == 0 {
            self.first = self.others.remove(0);
        } else {
            self.others.remove(number - 1);
        }
    }

    /// Takes no more memory than for twice the entries that are there.
    fn trim(&mut self) {
        for run in std::iter::once(&mut self.first).chain(&mut self.others) {
            run.shrink_to(2 * run.len());
        }
        self.others.shrink_to_fit();
    }

    /// Puts an entry in the place of another, if it belongs there.
    #[inline]
    fn replace(&mut self, old: Key, new: Entry) -> bool {
        let number = self.run_of(old);
        let run = self.run(number);
        let place = place(run, old);
        debug_assert!(run.get(place).is_some_and(|it| it.key == old), "the old block is there");
        let fits = if 0 < place && place + 1 < run.len() {
            run[place - 1].key < new.key && new.key < run[place + 1].key
        } else {
            self.fits_at_edge(number, place, new.key)
        };
        if fits {
            self.run_mut(number)[place] = new;
        }
        fits
    }

    /// Whether the key keeps the order at the first or last place of a run, where its neighbours may
    /// be in other runs.
    #[inline]
    fn fits_at_edge(&self, number: usize, place: usize, key: Key) -> bool {
        let run = self.run(number);
        let before = match place.checked_sub(1) {
            Some(before) => run.get(before),
            None => number.checked_sub(1).and_then(|before| self.run(before).last()),
        };
        let behind = run.get(place + 1).or_else(|| self.others.get(number)?.first());
        before.is_none_or(|it| it.key < key) && behind.is_none_or(|it| key < it.key)
    }

    #[inline]
    fn first_from(&self, key: Key) -> Option<Entry> {
        let run = self.run(self.run_of(key));
        run.get(place(run, key)).copied()
    }

    fn from(&self, key: Key) -> impl Iterator<Item = BlockId> {
        let runs = (self.run_of(key)..=self.others.len()).map(|number| self.run(number));
        let entries = runs.flatten();
        entries.skip_while(move |entry| entry.key < key).map(|entry| entry.id)
    }

    fn below(&self, key: Key) -> impl Iterator<Item = BlockId> {
        let runs = (0..=self.run_of(key)).rev().map(|number| self.run(number));
        let entries = runs.flat_map(|run| run.iter().rev());
        entries.skip_while(move |entry| entry.key >= key).map(|entry| entry.id)
    }
}

/// The place in a run of the first entry that is not below the key.
#[inline]
fn place(run: &[Entry], key: Key) -> usize {
    run.partition_point(|entry| entry.key < key)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use tonnage_events::{Address, PoolKind};

    use super::{Block, FreeBlocks, StreamId};
    use crate::block::Blocks;
    use crate::pool::{PoolRef, PoolSet};

    const POOL: PoolRef = PoolRef { set: PoolSet::Default, kind: PoolKind::Large };

    impl FreeBlocks {
        /// Bytes of the heap that the sets take.
        fn bytes(&self) -> usize {
            let of_bin = |bin: &super::Ordered| {
                let runs = std::iter::once(&bin.first).chain(&bin.others);
                let entries = runs.map(Vec::capacity).sum::<usize>();
                entries * size_of::<super::Entry>() + bin.others.capacity() * size_of::<Vec<()>>()
            };
            let of_set = |set: &super::Bins| {
                let bins = set.bins.capacity() * size_of::<super::Ordered>();
                size_of::<super::Bins>() + bins + set.bins.iter().map(of_bin).sum::<usize>()
            };
            self.streams.capacity() * size_of::<(StreamId, Box<super::Bins>)>()
                + self.streams.iter().map(|(_, set)| of_set(set)).sum::<usize>()
        }
    }

    fn block(stream: u64, size: u64, address: u64) -> Block {
        Block::new(Address(address), size, StreamId(stream), POOL)
    }

    #[test]
    fn streams_that_come_and_go_leave_nothing_behind() {
        let (mut free, mut most) = (FreeBlocks::default(), 0);
        let id = Blocks::default().insert(block(0, 512, 0));
        for stream in 1..=20_000 {
            // Streams overlap by two, and each has blocks of many sizes.
            for exponent in 0..20 {
                free.insert(id, &block(stream, 512 << exponent, 0));
            }
            for exponent in 0..20 {
                free.remove(&block(stream.saturating_sub(2), 512 << exponent, 0));
            }
            most = most.max(free.bytes());
        }
        assert!(most < 64 << 10, "{most} bytes for 3 streams at a time");
        for (stream, exponent) in (19_999..=20_000).flat_map(|it| (0..20).map(move |e| (it, e))) {
            assert!(free.remove(&block(stream, 512 << exponent, 0)));
        }
        assert_eq!(free.len(), 0);
        free.trim();
        assert_eq!(free.bytes(), 0);
    }

    #[test]
    fn a_set_takes_bytes_by_what_it_holds() {
        let mut free = FreeBlocks::default();
        let id = Blocks::default().insert(block(0, 512, 0));
        free.insert(id, &block(0, 1 << 20, 0));
        assert!(free.bytes() < 1 << 10, "{} bytes for a block", free.bytes());
        // Of each of 1,000 sizes fifty blocks, then none.
        let blocks = || (1..=1_000).flat_map(|size| (0..50).map(move |at| (size * 4096, at * 512)));
        for (size, address) in blocks() {
            free.insert(id, &block(1, size, address));
        }
        let held = free.len() * size_of::<super::Entry>();
        assert!(free.bytes() < 3 * held, "{} bytes for {held}", free.bytes());
        for (size, address) in blocks().filter(|it| *it != (4096 * 1_000, 512)) {
            assert!(free.remove(&block(1, size, address)));
        }
        // Bins that stay for blocks that come back are few bytes, and go with the memory.
        assert!(free.bytes() < 80 << 10, "{} bytes for two blocks", free.bytes());
        free.trim();
        assert!(free.bytes() < 2 << 10, "{} bytes for two blocks", free.bytes());
        assert_eq!((free.best(StreamId(1), 1), free.len()), (Some(id), 2));
        assert!(free.remove(&block(1, 4096 * 1_000, 512)));
    }

    #[test]
    fn the_set_does_what_a_map_does_through_many_runs() {
        let mut keys = Blocks::default();
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
            let block = Block::new(address, 512 << random(6), StreamId(random(3)), POOL);
            let key = (block.stream, block.size, block.address);
            if random(10) < if grows { 7 } else { 3 } {
                model.entry(key).or_insert_with(|| {
                    let id = keys.insert(block.clone());
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
                other.rank = other.address.0;
                let other_key = (other.stream, other.size, other.address);
                if let Entry::Vacant(vacant) = model.entry(other_key) {
                    free.replace((block.size, block.rank), id, &other);
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
