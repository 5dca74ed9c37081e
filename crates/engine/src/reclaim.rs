//! Cached memory back to the device: on request, when a request fails, and by age.

use tonnage_device::{Device, DeviceError};
use tonnage_events::{Event, PoolId, PoolKind, StackId, StreamId};

use crate::block::BlockId;
use crate::engine::{Engine, share_of};
use crate::error::{AllocError, CacheError, CachedBlock, OomNotes, OutOfMemory, PendingBlock};
use crate::history::History;
use crate::oom_verdict::OomVerdict;
use crate::pool::{PoolRef, PoolSet, PrivateKey};
use crate::request::Request;
use crate::segment::{RangeId, Role};

/// The pool whose blocks garbage collection ages: no other, PyTorch's rule.
const AGED: PoolRef = PoolRef { set: PoolSet::Default, kind: PoolKind::Large };

impl<D: Device> Engine<D> {
    /// Gives back what is cached, of the default pool and of every freeable private pool. During a
    /// capture the default pool is left alone.
    pub(crate) fn flush(&mut self, stack: Option<StackId>) -> Result<(), DeviceError> {
        if self.paused.is_some() {
            return Ok(());
        }
        self.ranges.release_stranded(&mut self.device)?;
        if self.capturing() && self.policy.moves_pages() {
            // What is unmapped must be waited for, and a capture forbids that.
            return Ok(());
        }
        if !self.capturing() {
            self.synchronize_events(None)?;
            if self.policy.moves_pages() {
                let gone = self.give_pages_back(PoolSet::Default, u64::MAX, stack)?;
                self.store.emptied |= gone > 0;
            }
            for kind in [PoolKind::Large, PoolKind::Small] {
                self.release_half(PoolRef { set: PoolSet::Default, kind }, stack)?;
            }
        }
        for key in self.pools.freeable() {
            self.release_private(key, stack)?;
        }
        self.settle_marks()
    }

    /// Whether [`empty_cache`](Self::empty_cache) would have the device wait for work now: freed blocks wait for
    /// streams, or there is memory to give back. Who shares an engine behind a lock asks, and waits without it first.
    pub fn empty_cache_waits(&mut self) -> bool {
        self.settle();
        let default = (!self.capturing()).then_some(PoolSet::Default);
        let sets =
            default.into_iter().chain(self.pools.freeable().into_iter().map(PoolSet::Private));
        let mut halves = sets
            .flat_map(|set| [PoolKind::Small, PoolKind::Large].map(|kind| PoolRef { set, kind }));
        default.is_some() && !self.pending.is_empty()
            || halves.any(|half| self.pools.half(half).free().iter().any(|id| self.can_go_back(id)))
    }

    /// Whether a free block is a whole segment, or has whole pages.
    fn can_go_back(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        let pages = |range: RangeId| match self.ranges[range].role {
            Role::Expandable => {
                self.ranges[range].places_within(block.address, block.size).count > 0
            }
            Role::Home | Role::View(_) => self.pages_in(id).next().is_some(),
        };
        block.range.map_or_else(|| !block.is_split(), pages)
    }

    /// Gives back what one freeable private pool caches; does nothing if it is still used.
    pub(crate) fn flush_pool(
        &mut self,
        pool: PoolId,
        stack: Option<StackId>,
    ) -> Result<(), CacheError> {
        let of_this_id = |&key: &PrivateKey| self.pools.id(PoolSet::Private(key)) == pool;
        let Some(key) = self.pools.freeable().into_iter().find(of_this_id) else { return Ok(()) };
        if self.paused.is_some() {
            return Ok(());
        }
        if self.capturing() {
            // PyTorch counts the wait before it finds that it may not.
            self.emit(&Event::Synchronize, None);
            return Err(CacheError::Capturing(pool));
        }
        self.synchronize_events(Some(PoolSet::Private(key)))?;
        self.release_private(key, stack)?;
        Ok(())
    }

    pub(crate) fn release_private(
        &mut self,
        key: PrivateKey,
        stack: Option<StackId>,
    ) -> Result<(), DeviceError> {
        if self.policy.moves_pages() {
            self.give_pages_back(PoolSet::Private(key), u64::MAX, stack)?;
        }
        for kind in [PoolKind::Small, PoolKind::Large] {
            self.release_half(PoolRef { set: PoolSet::Private(key), kind }, stack)?;
        }
        self.forget_if_over(key);
        Ok(())
    }

    /// Forgets a pool that is over.
    pub(crate) fn forget_if_over(&mut self, key: PrivateKey) {
        if self.pools.is_over(key) {
            self.lose_ranges(key);
            self.pools.forget(key);
        }
    }

    /// Forgets what a pool that is over has left: ranges whose first page could not be had. PyTorch loses them with the
    /// pool and never gives their addresses back, so that later ranges lie elsewhere.
    fn lose_ranges(&mut self, key: PrivateKey) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            let half = PoolRef { set: PoolSet::Private(key), kind };
            let unmapped: Vec<_> = self.pools.half(half).unmapped().collect();
            for id in unmapped {
                self.abandon_range(id);
            }
        }
    }

    /// Gives back every whole segment of a half, then every whole page.
    fn release_half(&mut self, pool: PoolRef, stack: Option<StackId>) -> Result<(), DeviceError> {
        let free: Vec<_> = self.pools.half(pool).free().iter().collect();
        let (parts, whole): (Vec<_>, Vec<_>) =
            free.into_iter().partition(|&id| self.blocks[id].range.is_some());
        let parts = parts.into_iter().filter(|&id| self.is_part_of_expandable(id));
        let parts: Vec<_> = parts.collect();
        for id in whole {
            if !self.blocks[id].is_split() {
                self.release_segment(id, stack)?;
            }
        }
        for id in parts {
            self.trim_range(id, stack)?;
        }
        self.pools.half_mut(pool).trim();
        Ok(())
    }

    fn is_part_of_expandable(&self, id: BlockId) -> bool {
        let range = self.blocks[id].range;
        range.is_some_and(|range| self.ranges[range].role == Role::Expandable)
    }

    /// With a finite `max_split_size`: gives back free oversize segments of the request's own pool and
    /// stream, one that is large enough by itself, else the largest ones until together they are; of a pool that
    /// [keeps](Self::set_pool_keeps_memory) its memory, none.
    /// Says whether enough was given back.
    pub(crate) fn release_oversize(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> Result<bool, DeviceError> {
        let max_split = self.config.max_split_size();
        if max_split == u64::MAX || self.pools.keeps(request.pool.set) {
            return Ok(false);
        }
        let want = request.size.max(max_split);
        let first = self.pools.half(request.pool).free().best(request.stream, want);
        if let Some(id) = first
            && self.is_whole_segment(id)
        {
            self.release_segment(id, stack)?;
            return Ok(true);
        }
        let free = self.pools.half(request.pool).free();
        let smaller: Vec<_> = free
            .below(request.stream, want)
            .take_while(|&id| self.blocks[id].size >= max_split)
            .collect();
        let mut released = 0;
        for id in smaller {
            if released >= want {
                break;
            }
            if self.is_whole_segment(id) {
                released += self.blocks[id].size;
                self.release_segment(id, stack)?;
            }
        }
        Ok(released >= want)
    }

    /// Whether a free block is all of a fixed segment. After a change of `max_split_size` at run time
    /// an oversize block may be split; PyTorch then hands an inner address to the driver.
    fn is_whole_segment(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        block.range.is_none() && !block.is_split()
    }

    /// Whether free blocks age and are given back by age.
    pub(crate) fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.config.garbage_collection_threshold() > 0.0
    }

    /// Above the threshold: gives back the free large segments that were passed over most often,
    /// until reserved memory is below it again.
    pub(crate) fn collect_garbage(&mut self, stack: Option<StackId>) -> Result<(), DeviceError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let threshold = share_of(limit, self.config.garbage_collection_threshold());
        let Some(target) = self.reserved().checked_sub(threshold).filter(|&over| over > 0) else {
            return Ok(());
        };
        let mut total_age = 0.0;
        let mut count = 0_u64;
        for id in self.unsplit_aged() {
            total_age += self.age(id);
            count += 1;
        }
        let mut reclaimed = 0;
        let mut freed = true;
        while reclaimed < target && freed && count > 0 {
            let cut = total_age / count as f64;
            freed = false;
            for id in self.unsplit_aged() {
                if self.blocks[id].range.is_some() || self.age(id) < cut {
                    continue;
                }
                freed = true;
                reclaimed += self.blocks[id].size;
                total_age -= self.age(id);
                count -= 1;
                self.release_segment(id, stack)?;
            }
        }
        Ok(())
    }

    fn unsplit_aged(&self) -> Vec<BlockId> {
        let free = self.pools.half(AGED).free().iter();
        free.filter(|&id| !self.blocks[id].is_split()).collect()
    }

    fn age(&self, id: BlockId) -> f64 {
        self.pools.half(AGED).age(&self.blocks[id]) as f64
    }

    /// The end of the ladder: counts the failure, tells the observers, and says why.
    pub(crate) fn out_of_memory(
        &mut self,
        request: &Request,
        stack: Option<StackId>,
    ) -> AllocError {
        let device_free = self.device.memory_info().ok().map(|info| info.free);
        let event = Event::Oom {
            device_free: device_free.unwrap_or(0),
            size: request.size,
            stream: request.stream,
            pool: self.pools.id(request.pool.set),
        };
        self.emit(&event, stack);
        let report = self.oom_report(request, device_free);
        for observer in self.observers() {
            observer(&report);
        }
        AllocError::OutOfMemory(Box::new(report))
    }

    /// What there is to say of a request that fails now.
    pub(crate) fn oom_report(&self, request: &Request, device_free: Option<u64>) -> OutOfMemory {
        let stats = self.stats();
        let allocated = stats.memory_allocated();
        let mut report = OutOfMemory {
            device: self.device.id(),
            requested: request.bytes,
            rounded: request.size,
            segment_size: request.segment_size,
            stream: request.stream,
            pool: self.pools.id(request.pool.set),
            kind: request.pool.kind,
            expandable: request.expandable,
            device_total: self.device.total(),
            device_free,
            limit: self.limit,
            allocated,
            pending: stats.active_bytes.all.current.cast_unsigned() - allocated,
            reserved: self.reserved(),
            private_cached: 0,
            largest_own: None,
            largest_cached: None,
            largest_pending: None,
            verdict: OomVerdict::default(),
            notes: OomNotes::default(),
        };
        if self.explains {
            self.explain(request, &mut report);
        }
        report
    }

    /// Looks at every block: why did none serve?
    fn explain(&self, request: &Request, report: &mut OutOfMemory) {
        report.verdict = OomVerdict::of(
            &self.segments(),
            request.stream,
            &self.config,
            self.history().map(History::stacks),
        )
        .of_request(report.requested, report.room());
        let mut largest_pending = None;
        for (id, block) in self.blocks.iter().filter(|(_, block)| block.mapped && !block.allocated)
        {
            let pool = self.pools.id(block.pool.set);
            if !block.is_idle() {
                if largest_pending.is_none_or(|(size, _)| size < block.size) {
                    largest_pending = Some((block.size, id));
                }
                continue;
            }
            if block.pool.set != PoolSet::Default {
                report.private_cached += block.size;
            }
            if block.pool == request.pool && block.stream == request.stream {
                report.largest_own = report.largest_own.max(Some(block.size));
            }
            if report.largest_cached.as_ref().is_none_or(|known| known.size < block.size) {
                report.largest_cached = Some(CachedBlock {
                    size: block.size,
                    pool,
                    kind: block.pool.kind,
                    stream: block.stream,
                    expandable: block.range.is_some(),
                });
            }
        }
        // Once: to find what a block waits for takes a pass over all that wait.
        report.largest_pending = largest_pending.map(|(size, id)| {
            let block = &self.blocks[id];
            let pool = self.pools.id(block.pool.set);
            PendingBlock { size, pool, stream: block.stream, waits_for: self.waits_for(id) }
        });
    }

    /// The streams whose work may still use a freed block.
    fn waits_for(&self, id: BlockId) -> Vec<StreamId> {
        let waiting = self.pending.iter().filter(|(_, waiting)| waiting.block == id);
        let mut streams: Vec<_> = waiting.map(|(stream, _)| stream).collect();
        streams.extend(&self.blocks[id].foreign().streams);
        streams.sort_unstable();
        streams.dedup();
        streams
    }
}

#[cfg(test)]
mod tests {
    use tonnage_device::Dry;
    use tonnage_events::StreamId;

    use crate::{Config, Engine, Release};

    #[test]
    fn who_asks_whether_emptying_the_cache_waits_is_told_and_changes_nothing() {
        for conf in ["", "expandable_segments:True", "max_split_size_mb:30"] {
            let config = Config::parse(conf, Release::NEWEST).unwrap();
            let [mut asked, mut other] =
                [0; 2].map(|_| Engine::new(Dry::new(1 << 30), config.clone()));
            let (mut live, mut told) = (Vec::new(), [0; 2]);
            for round in 0..400_u64 {
                // Sizes that share segments, that fill one, and that take several pages.
                let size = [700, 3 << 20, 12 << 20, 45 << 20][(round * 7 % 11 % 4) as usize];
                let stream = StreamId(round % 3 / 2);
                let blocks = [&mut asked, &mut other].map(|it| it.allocate(size, stream).unwrap());
                assert_eq!(blocks[0].address, blocks[1].address, "{conf}, round {round}");
                live.push(blocks);
                while live.len() > (round * 5 % 7) as usize {
                    let blocks = live.swap_remove((round * 3) as usize % live.len());
                    for (engine, block) in [&mut asked, &mut other].into_iter().zip(blocks) {
                        if round % 5 == 0 {
                            engine.record_stream_of(&block, StreamId(9)).unwrap();
                        }
                        engine.free(&block).unwrap();
                    }
                }
                let waits = asked.empty_cache_waits();
                assert_eq!(asked.stats(), other.stats(), "{conf}, round {round}");
                if round % 3 == 0 {
                    let before = other.stats().clone();
                    asked.empty_cache().unwrap();
                    other.empty_cache().unwrap();
                    let pending =
                        before.active_bytes.all.current.cast_unsigned() - before.memory_allocated();
                    let fell = other.stats().memory_reserved() < before.memory_reserved();
                    assert_eq!(waits, pending > 0 || fell, "{conf}, round {round}");
                    told[usize::from(waits)] += 1;
                }
            }
            assert!(told.iter().all(|count| *count > 5), "{conf}: {told:?}");
        }
    }
}
