//! What is always true between two calls, as a walk over everything.
//!
//! Debug builds walk after every operation while there are few blocks, and so seldom with many that no operation pays for
//! more than a few of them: recordings of a hundred thousand entries replay that way in tests. Tests of the engine
//! against a model, and the fuzzer, ask for a walk after every command.

use rustc_hash::FxHashMap;
use tonnage_device::Device;
use tonnage_events::{PoolKind, SplitChange};

use crate::block::{Block, BlockId};
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet, PrivateKey};
use crate::segment::Role;

/// Blocks that an operation pays for, at most, on average.
const BLOCKS_A_CALL: usize = 64;

/// What the blocks add up to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    allocated: u64,
    active: u64,
    requested: u64,
    reserved: u64,
    split: SplitChange,
    live: usize,
    free: usize,
    unmapped: usize,
    pending_events: usize,
    deferred: usize,
    /// Bytes that private pools hold.
    private: FxHashMap<PrivateKey, u64>,
}

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl<D: Device> Engine<D> {
    /// Walks all blocks, sets and figures, and says what does not fit, if anything.
    ///
    /// # Errors
    ///
    /// The first broken invariant, in words: a bug in the allocator.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut sums = Sums::default();
        for (id, block) in self.blocks.iter() {
            self.check_block(id, block)?;
            self.add(&mut sums, id, block);
        }
        self.check_pages_that_move()?;
        self.check_sets(&sums)?;
        self.check_figures(&sums)
    }

    /// Does so in debug builds only, and not each time if there are many blocks.
    #[inline]
    pub(crate) fn debug_walk(&mut self, after: &str) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.since_walk += 1;
        if self.since_walk.saturating_mul(BLOCKS_A_CALL) < self.blocks.len() {
            return;
        }
        let calls = std::mem::take(&mut self.since_walk);
        if let Err(broken) = self.check_invariants() {
            panic!("after {after}, or one of the {calls} calls up to it: {broken}");
        }
    }

    /// The block's links, its place in one set, and the pages under it.
    fn check_block(&self, id: BlockId, block: &Block) -> Result<(), String> {
        let at = block.address;
        ensure!(block.size > 0, "the block at {at} has no bytes");
        ensure!(block.mapped || block.range.is_some(), "the fixed block at {at} is unmapped");
        ensure!(block.mapped || block.is_idle(), "the unmapped block at {at} is in use");
        ensure!(
            !block.allocated || block.foreign().events == 0,
            "the live block at {at} waits for events"
        );
        if let Some(next) = block.next {
            let Some(next) = self.blocks.get(next) else {
                return Err(format!("the block behind {at} is gone"));
            };
            ensure!(next.prev == Some(id), "the link back to {at} is broken");
            ensure!(next.address == block.end(), "there is a gap or overlap behind {at}");
            ensure!(
                self.blocks.ranks_fit(block, next),
                "the ranks at {at} and behind it do not fit"
            );
            ensure!(
                (next.pool, next.range) == (block.pool, block.range),
                "the segment of {at} mixes pools or ranges"
            );
            ensure!(
                self.policy.moves_pages() || next.stream == block.stream,
                "the segment of {at} mixes streams"
            );
            let unmerged = self.unmerged().is_some_and(|it| it.id == id && it.rest == block.next);
            let merged = unmerged
                || block.blocked
                || next.stream != block.stream
                || self.mergeable(id, block.next).is_none()
                || !block.is_idle();
            ensure!(merged, "the free block at {at} was not merged with the next");
        }
        if let Some(prev) = block.prev {
            let linked = self.blocks.get(prev).is_some_and(|prev| prev.next == Some(id));
            ensure!(linked, "the link forward to {at} is broken");
        }
        if let Some(range) = block.range {
            let range = &self.ranges[range];
            let ends = block.prev.is_some() || at == range.base;
            let covers = block.next.is_some() || block.end() == range.base.offset(range.size);
            ensure!(ends && covers, "the blocks around {at} do not cover their range");
            let places = range.places_within(at, block.size);
            if places.count > 0 && range.role == Role::Expandable {
                let ends = [places.first, places.first + places.count - 1];
                let right = ends.iter().all(|&place| range.has_page(place) == block.mapped);
                ensure!(right, "pages under {at} and the block disagree");
            }
        }
        if let Some(live) = &self.live {
            let known = live.get(&at) == Some(&id);
            ensure!(known == block.allocated, "the owners of {at} are not known right");
        }
        Ok(())
    }

    /// Every set holds exactly the blocks that belong there.
    fn check_sets(&self, sums: &Sums) -> Result<(), String> {
        let mut sets = vec![PoolSet::Default];
        sets.extend(self.pools.private().map(|(key, _)| PoolSet::Private(key)));
        let (mut free, mut unmapped) = (0, 0);
        for set in sets {
            for kind in [PoolKind::Small, PoolKind::Large] {
                let half = self.pools.half(PoolRef { set, kind });
                for (mapped, id) in half
                    .free()
                    .iter()
                    .map(|id| (true, id))
                    .chain(half.unmapped().map(|id| (false, id)))
                {
                    let right = self.blocks.get(id).is_some_and(|block| {
                        block.is_idle()
                            && block.mapped == mapped
                            && block.pool == PoolRef { set, kind }
                    });
                    ensure!(right, "{kind} pool {} has a foreign block", self.pools.id(set));
                }
                free += half.free().len();
                unmapped += half.unmapped().count();
            }
        }
        ensure!(free == sums.free, "{free} blocks are in free sets, {} are free", sums.free);
        ensure!(unmapped == sums.unmapped, "unmapped blocks are missing from their sets");
        let known = self.live.as_ref().is_none_or(|live| live.len() == sums.live);
        ensure!(known, "live blocks are missing from the list of owners");
        ensure!(
            self.pending.len() == sums.pending_events && self.pending.knows_its_places(),
            "events and the blocks that wait for them disagree"
        );
        ensure!(
            self.pending.deferred.len() == sums.deferred,
            "deferred blocks are missing from their list"
        );
        for (key, pool) in self.pools.private() {
            let held = sums.private.get(&key).copied().unwrap_or(0);
            ensure!(
                held == pool.reserved,
                "pool {} holds {held} bytes, not {}",
                pool.id,
                pool.reserved
            );
        }
        Ok(())
    }

    /// The figures are what the blocks add up to.
    fn check_figures(&self, sums: &Sums) -> Result<(), String> {
        let stats = self.stats();
        for (name, figure, sum) in [
            ("allocated", stats.allocated_bytes.all.current, sums.allocated.cast_signed()),
            ("active", stats.active_bytes.all.current, sums.active.cast_signed()),
            ("requested", stats.requested_bytes.all.current, sums.requested.cast_signed()),
            ("reserved", stats.reserved_bytes.all.current, sums.reserved.cast_signed()),
            ("inactive_split bytes", stats.inactive_split_bytes.all.current, sums.split.bytes),
            ("inactive_split", stats.inactive_split.all.current, sums.split.count),
        ] {
            ensure!(figure == sum, "{name} is {figure} by the figures and {sum} by the blocks");
        }
        Ok(())
    }

    fn add(&self, sums: &mut Sums, id: BlockId, block: &Block) {
        if !block.mapped {
            sums.unmapped += 1;
            return;
        }
        sums.reserved += block.size;
        if let PoolSet::Private(key) = block.pool.set {
            *sums.private.entry(key).or_default() += block.size;
        }
        if block.is_idle() {
            let unmerged = self.unmerged().filter(|it| it.id == id || it.rest == Some(id));
            // A block that is not merged yet is in no set; with its rest it counts as one.
            let is_unmerged = unmerged.is_some_and(|it| it.id == id);
            sums.free += usize::from(!is_unmerged);
            if block.range.is_none() && unmerged.map_or(block.is_split(), |it| it.is_split) {
                sums.split.count +=
                    i64::from(!(is_unmerged && unmerged.is_some_and(|it| it.rest.is_some())));
                sums.split.bytes += block.size.cast_signed();
            }
            return;
        }
        sums.active += block.size;
        sums.requested += block.requested;
        if block.allocated {
            sums.live += 1;
            sums.allocated += block.size;
        } else {
            sums.pending_events += block.foreign().events as usize;
            // A block that could not record all its events is in both.
            sums.deferred += usize::from(!block.foreign().streams.is_empty());
        }
    }
}
