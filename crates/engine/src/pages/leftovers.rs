//! Homes of private pools that were released.
//!
//! In:  a request for which its pool would grow. Out: a home of a released pool that became part of it, without a call to the
//!      driver.
//!
//! A graph that was captured in a pool runs on any stream, and is queued until the pool is released, not later. So once every
//! stream has reached a mark that was recorded after the release, nothing uses the pool's memory.

use tonnage_device::{Device, DeviceError};
use tonnage_events::{PoolId, StackId};

use crate::block::BlockId;
use crate::engine::Engine;
use crate::pool::{PoolRef, PoolSet, PrivateKey};
use crate::request::Request;
use crate::segment::RangeId;

/// A pool without uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leftover {
    pool: PrivateKey,
    /// The last mark at its release.
    since: u64,
}

impl<D: Device> Engine<D> {
    /// Notes that a pool has lost a use, perhaps the last.
    pub(crate) fn note_release(&mut self, pool: PoolId) {
        if let Some(PoolSet::Private(pool)) = self.pools.set_of(pool)
            && self.pools.freeable().contains(&pool)
        {
            let since = self.store.marks.last();
            // One that was used again after its release is released again.
            self.store.leftovers.retain(|it| it.pool != pool);
            self.store.leftovers.push(Leftover { pool, since });
            self.look_at_leftovers();
        }
    }

    /// Finds out whether what released pools have left may still be in use. During a capture there is no other time for
    /// it than before.
    pub(crate) fn look_at_leftovers(&mut self) {
        for leftover in self.store.leftovers.clone() {
            // Who cannot be asked now is asked when memory is needed.
            let _ = self.are_done(leftover.since);
        }
    }

    /// Whether every stream is done with what was freed when `until` was the last mark.
    fn are_done(&mut self, until: u64) -> Result<bool, DeviceError> {
        let mut done = true;
        for stream in self.all_streams() {
            done &= self.find_done(stream, until)?;
        }
        Ok(done)
    }

    /// A block for the request out of what a released pool has left, if no stream can still use that.
    pub(crate) fn find_leftover(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<Option<BlockId>, DeviceError> {
        let freeable = self.pools.freeable();
        self.store.leftovers.retain(|it| freeable.contains(&it.pool));
        for leftover in self.store.leftovers.clone() {
            let from = PoolRef { set: PoolSet::Private(leftover.pool), kind: request.pool.kind };
            let of_pool = self.store.homes.iter().filter(|&&(pool, _)| pool == from);
            let homes: Vec<_> = of_pool.map(|&(_, home)| home).collect();
            for home in homes {
                if self.blocks_of(home).any(|id| !self.blocks[id].is_idle()) {
                    continue;
                }
                // Blocks that were live at the release were freed later.
                let freed = self.blocks_of(home).map(|id| self.blocks[id].used_until).max();
                if self.are_done(leftover.since.max(freed.unwrap_or(0)))? {
                    self.hand_over(home, from, request, stack);
                }
            }
            // Homes without pages go too, before their pool does.
            self.drop_empty_ranges()?;
            self.forget_if_over(leftover.pool);
            let half = self.pools.half(request.pool);
            if let Some(id) = half.free().best(request.stream, request.size) {
                self.take(id);
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Makes a free home of a pool, which nothing uses, one of the request's pool and stream.
    fn hand_over(
        &mut self,
        home: RangeId,
        from: PoolRef,
        request: &Request,
        stack: Option<StackId>,
    ) {
        let blocks: Vec<_> = self.blocks_of(home).collect();
        for &id in &blocks {
            self.take(id);
            if self.blocks[id].mapped {
                self.note_left(id, stack);
                self.blocks[id].stream = request.stream;
                self.blocks[id].used_until = 0;
            }
            self.blocks[id].pool = request.pool;
            if self.blocks[id].mapped {
                self.note_arrived(id, stack);
            }
            self.put(id);
        }
        for entry in self.store.homes.iter_mut().filter(|entry| **entry == (from, home)) {
            entry.0 = request.pool;
        }
        // Neighbours were of several streams.
        for id in blocks {
            if self.blocks.get(id).is_some_and(|block| block.mapped) {
                self.take(id);
                self.merge_all(id);
                self.put(id);
            }
        }
        self.pools.revive(request.pool.set);
    }

    /// The blocks of a range, by address.
    fn blocks_of(&self, range: RangeId) -> impl Iterator<Item = BlockId> + '_ {
        let base = self.ranges[range].base;
        let mut of_range = self.blocks.iter().filter(move |(_, it)| it.range == Some(range));
        let first = of_range.find(|(_, it)| it.address == base).map(|(id, _)| id);
        std::iter::successors(first, |&id| self.blocks[id].next)
    }
}
