//! Stage 8: the figures, under PyTorch's names.
//!
//! Fed by events and by nothing else, always on. *allocated ≤ active ≤ reserved; active − allocated is
//! freed but pending; reserved − active is cached.*
//!
//! Figures are signed, as PyTorch's are. No more than [`MOST_RESERVED`] bytes are ever reserved, so those of a moment fit;
//! sums over a long life stop at the largest number.

use std::collections::BTreeMap;

use tonnage_events::{BlockEvent, Event, PoolId, PoolKind, SegmentEvent, SplitChange};

use crate::config::{Config, Release};

/// Most bytes that an allocator holds, whatever the device would give: figures of twice that still fit.
pub(crate) const MOST_RESERVED: u64 = 1 << 62;

/// A quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now. Below zero only for oversize figures, if `max_split_size_mb` changed in between.
    pub current: i64,
    /// The most it has been, since the last reset.
    pub peak: i64,
    /// Sum of all increases, since the last reset.
    pub allocated: i64,
    /// Sum of all decreases, since the last reset.
    pub freed: i64,
}

impl Stat {
    #[inline(always)]
    fn increase(&mut self, by: i64) {
        self.current += by;
        self.peak = self.peak.max(self.current);
        self.allocated = self.allocated.saturating_add(by);
    }

    #[inline(always)]
    fn decrease(&mut self, by: i64) {
        self.current -= by;
        self.freed = self.freed.saturating_add(by);
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }

    /// The four values with PyTorch's names for them.
    fn metrics(self) -> [(&'static str, i64); 4] {
        [
            ("allocated", self.allocated),
            ("current", self.current),
            ("freed", self.freed),
            ("peak", self.peak),
        ]
    }
}

/// A quantity over both halves of the pools, and over each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatArray {
    /// Both halves together.
    pub all: Stat,
    /// The small halves of all pools.
    pub small_pool: Stat,
    /// The large halves of all pools.
    pub large_pool: Stat,
}

impl StatArray {
    #[inline(always)]
    fn increase(&mut self, kind: PoolKind, by: i64) {
        self.all.increase(by);
        self.half(kind).increase(by);
    }

    #[inline(always)]
    fn decrease(&mut self, kind: PoolKind, by: i64) {
        self.all.decrease(by);
        self.half(kind).decrease(by);
    }

    /// By a net change; none is neither.
    #[inline(always)]
    fn change(&mut self, kind: PoolKind, by: i64) {
        match by {
            0 => {}
            1.. => self.increase(kind, by),
            _ => self.decrease(kind, -by),
        }
    }

    #[inline(always)]
    fn half(&mut self, kind: PoolKind) -> &mut Stat {
        match kind {
            PoolKind::Small => &mut self.small_pool,
            PoolKind::Large => &mut self.large_pool,
        }
    }

    fn stats_mut(&mut self) -> [&mut Stat; 3] {
        [&mut self.all, &mut self.small_pool, &mut self.large_pool]
    }

    /// The three with PyTorch's names for them.
    fn pools(&self) -> [(&'static str, Stat); 3] {
        [("all", self.all), ("large_pool", self.large_pool), ("small_pool", self.small_pool)]
    }
}

/// All figures of a device. Field names are PyTorch's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks handed out.
    pub allocation: StatArray,
    /// Fixed segments. Expandable ones are not counted.
    pub segment: StatArray,
    /// Blocks handed out, or freed but in use by a stream.
    pub active: StatArray,
    /// Free blocks that cannot go back to the device because their segment is in use.
    pub inactive_split: StatArray,
    /// Bytes of the blocks handed out.
    pub allocated_bytes: StatArray,
    /// Bytes obtained from the device.
    pub reserved_bytes: StatArray,
    /// Bytes obtained from the device for each private pool that has ever had any.
    pub reserved_bytes_by_private_pools: BTreeMap<PoolId, StatArray>,
    /// Bytes of active blocks.
    pub active_bytes: StatArray,
    /// Bytes of the free blocks of [`inactive_split`](Self::inactive_split).
    pub inactive_split_bytes: StatArray,
    /// Bytes that callers asked for, of active blocks.
    pub requested_bytes: StatArray,
    /// Blocks handed out that reach `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments that reach `max_split_size`.
    pub oversize_segments: Stat,
    /// Times the device was asked again after everything cached had been given back.
    pub num_alloc_retries: i64,
    /// Requests that failed.
    pub num_ooms: i64,
    /// Requests that were turned down before the device was asked.
    pub num_oom_rejections: i64,
    /// Times all outstanding events were waited for.
    pub num_sync_all_streams: i64,
    /// Times memory was obtained from the device.
    pub num_device_alloc: i64,
    /// Times memory was returned to the device.
    pub num_device_free: i64,
    /// `max_split_size` when the allocator was made; −1 if unlimited.
    pub max_split_size: i64,
}

impl Stats {
    /// Those of an allocator with these settings that nobody has asked for anything.
    #[must_use]
    pub fn of_no_use(config: &Config) -> Self {
        Self::new(config.max_split_size_limit())
    }

    pub(crate) fn new(max_split_size: Option<u64>) -> Self {
        let max_split_size = max_split_size.map_or(-1, u64::cast_signed);
        Self { max_split_size, ..Self::default() }
    }

    /// Counts one event. Inlined where it is emitted, so that nothing is left of the choice.
    #[inline(always)]
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Alloc(block) => self.count_alloc(block),
            Event::FreeRequested(block) => {
                self.allocation.decrease(block.kind, 1);
                self.allocated_bytes.decrease(block.kind, signed(block.size));
                if block.oversize {
                    self.oversize_allocations.decrease(1);
                }
            }
            Event::FreeCompleted(block) => {
                self.active.decrease(block.kind, 1);
                self.active_bytes.decrease(block.kind, signed(block.size));
                self.requested_bytes.decrease(block.kind, signed(block.requested));
                self.count_split(block.kind, block.split);
            }
            Event::SegmentAlloc(it) => {
                self.segment.increase(it.kind, 1);
                self.count_reserved(it, StatArray::increase);
                self.num_device_alloc += 1;
                if it.oversize {
                    self.oversize_segments.increase(1);
                }
            }
            Event::SegmentFree(it) => {
                self.segment.decrease(it.kind, 1);
                self.count_reserved(it, StatArray::decrease);
                self.num_device_free += 1;
                if it.oversize {
                    self.oversize_segments.decrease(1);
                }
            }
            Event::SegmentMap(it) => {
                self.count_reserved(it, StatArray::increase);
                self.num_device_alloc += 1;
            }
            Event::SegmentUnmap(it) => {
                self.count_reserved(it, StatArray::decrease);
                self.num_device_free += 1;
            }
            Event::Oom { .. } => self.num_ooms += 1,
            Event::Rejected => self.num_oom_rejections += 1,
            Event::Retry => self.num_alloc_retries += 1,
            Event::Synchronize => self.num_sync_all_streams += 1,
            Event::Snapshot { .. } => {}
        }
    }

    /// Counts pages that came into use in one place or went out of use in another: the device knows nothing of it.
    pub(crate) fn apply_move(&mut self, event: &Event) {
        match event {
            Event::SegmentMap(it) => self.count_reserved(it, StatArray::increase),
            Event::SegmentUnmap(it) => self.count_reserved(it, StatArray::decrease),
            other => self.apply(other),
        }
    }

    fn count_reserved(&mut self, it: &SegmentEvent, change: fn(&mut StatArray, PoolKind, i64)) {
        change(&mut self.reserved_bytes, it.kind, signed(it.size));
        if !it.pool.is_default() {
            let of_pool = self.reserved_bytes_by_private_pools.entry(it.pool).or_default();
            change(of_pool, it.kind, signed(it.size));
        }
    }

    #[inline(always)]
    fn count_alloc(&mut self, block: &BlockEvent) {
        let size = signed(block.size);
        self.allocation.increase(block.kind, 1);
        self.allocated_bytes.increase(block.kind, size);
        self.active.increase(block.kind, 1);
        self.active_bytes.increase(block.kind, size);
        self.requested_bytes.increase(block.kind, signed(block.requested));
        if block.oversize {
            self.oversize_allocations.increase(1);
        }
        self.count_split(block.kind, block.split);
    }

    #[inline(always)]
    fn count_split(&mut self, kind: PoolKind, split: SplitChange) {
        self.inactive_split.change(kind, split.count);
        self.inactive_split_bytes.change(kind, split.bytes);
    }

    /// Lets every peak begin again at the current value.
    pub(crate) fn reset_peak(&mut self) {
        self.each_stat_mut(Stat::reset_peak);
    }

    /// Lets every sum and count begin again at zero.
    pub(crate) fn reset_accumulated(&mut self) {
        self.each_stat_mut(Stat::reset_accumulated);
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_oom_rejections = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }

    fn each_stat_mut(&mut self, mut change: impl FnMut(&mut Stat)) {
        let arrays = [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ];
        let pools = self.reserved_bytes_by_private_pools.values_mut();
        arrays.into_iter().chain(pools).flat_map(StatArray::stats_mut).for_each(&mut change);
        change(&mut self.oversize_allocations);
        change(&mut self.oversize_segments);
    }

    /// The arrays with PyTorch's names, by name.
    fn arrays(&self) -> [(&'static str, &StatArray); 9] {
        [
            ("active", &self.active),
            ("active_bytes", &self.active_bytes),
            ("allocated_bytes", &self.allocated_bytes),
            ("allocation", &self.allocation),
            ("inactive_split", &self.inactive_split),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("segment", &self.segment),
        ]
    }

    /// The figures of `torch.cuda.memory_stats()` that every release has, 122 of them, sorted by name as there.
    #[must_use]
    pub fn memory_stats(&self) -> Vec<(String, i64)> {
        self.memory_stats_of(Release::OLDEST)
    }

    /// All figures of `torch.cuda.memory_stats()` in a release, sorted by name as there.
    #[must_use]
    pub fn memory_stats_of(&self, release: Release) -> Vec<(String, i64)> {
        let mut figures = Vec::with_capacity(123);
        let mut add = |name: &str, stats: &StatArray| {
            for (pool, stat) in stats.pools() {
                for (metric, value) in stat.metrics() {
                    figures.push((format!("{name}.{pool}.{metric}"), value));
                }
            }
        };
        for (name, stats) in self.arrays() {
            add(name, stats);
        }
        if release.stats_have_private_pools() {
            for (PoolId(first, second), stats) in &self.reserved_bytes_by_private_pools {
                add(&format!("reserved_bytes_by_private_pools.{first}_{second}"), stats);
            }
        }
        if release.stats_have_rejections() {
            figures.push(("num_oom_rejections".to_owned(), self.num_oom_rejections));
        }
        for (name, stat) in [
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ] {
            for (metric, value) in stat.metrics() {
                figures.push((format!("{name}.{metric}"), value));
            }
        }
        for (name, value) in [
            ("max_split_size", self.max_split_size),
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
        ] {
            figures.push((name.to_owned(), value));
        }
        figures.sort_unstable();
        figures
    }

    /// Bytes of the blocks handed out: `torch.cuda.memory_allocated()`.
    #[must_use]
    pub fn memory_allocated(&self) -> u64 {
        unsigned(self.allocated_bytes.all.current)
    }

    /// The most of these: `torch.cuda.max_memory_allocated()`.
    #[must_use]
    pub fn max_memory_allocated(&self) -> u64 {
        unsigned(self.allocated_bytes.all.peak)
    }

    /// Requests that were not served: out of memory, or rejected before the device was asked.
    #[must_use]
    pub fn failed_requests(&self) -> i64 {
        self.num_ooms.saturating_add(self.num_oom_rejections)
    }

    /// Bytes obtained from the device: `torch.cuda.memory_reserved()`.
    #[must_use]
    pub fn memory_reserved(&self) -> u64 {
        unsigned(self.reserved_bytes.all.current)
    }

    /// The most of these: `torch.cuda.max_memory_reserved()`.
    #[must_use]
    pub fn max_memory_reserved(&self) -> u64 {
        unsigned(self.reserved_bytes.all.peak)
    }
}

/// Sizes stay below [`MOST_RESERVED`], far from the sign.
fn signed(bytes: u64) -> i64 {
    bytes.cast_signed()
}

/// Only oversize figures can go below zero.
fn unsigned(bytes: i64) -> u64 {
    bytes.max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_122_distinct_figures_in_order() {
        let figures = Stats::new(None).memory_stats();
        assert_eq!(figures.len(), 122);
        assert!(figures.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(figures.contains(&("max_split_size".to_owned(), -1)));
    }

    #[test]
    fn sums_over_a_long_life_stop_at_the_largest_number() {
        let mut stats = Stats::default();
        let most = MOST_RESERVED.cast_signed();
        for _ in 0..3 {
            stats.allocated_bytes.increase(PoolKind::Large, most);
            stats.allocated_bytes.decrease(PoolKind::Large, most);
        }
        let stat = Stat { current: 0, peak: most, allocated: i64::MAX, freed: i64::MAX };
        assert_eq!(stats.allocated_bytes.all, stat);
    }

    #[test]
    fn later_releases_have_more_figures() {
        let mut stats = Stats::new(None);
        let event = SegmentEvent {
            address: tonnage_events::Address(0),
            size: 2 << 20,
            stream: tonnage_events::StreamId(0),
            pool: PoolId(0, 1),
            kind: PoolKind::Small,
            oversize: false,
        };
        stats.apply(&Event::SegmentAlloc(event));
        stats.apply(&Event::Rejected);
        let counts = Release::ALL.map(|release| stats.memory_stats_of(release).len());
        assert_eq!(counts, [122, 122, 122, 122, 123, 135, 135, 135]);
        let figures = stats.memory_stats_of(Release::NEWEST);
        assert!(figures.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (name, value) in [
            ("num_oom_rejections", 1),
            ("reserved_bytes_by_private_pools.0_1.all.current", 2 << 20),
            ("reserved_bytes_by_private_pools.0_1.large_pool.peak", 0),
        ] {
            assert!(figures.contains(&(name.to_owned(), value)), "{name}");
        }
    }

    #[test]
    fn a_reset_of_peaks_keeps_sums_and_a_reset_of_sums_keeps_peaks() {
        let mut stats = Stats::new(Some(20 << 20));
        stats.allocation.change(PoolKind::Small, 3);
        stats.allocation.change(PoolKind::Small, -2);
        stats.num_ooms = 4;
        stats.reset_peak();
        assert_eq!(
            stats.allocation.small_pool,
            Stat { current: 1, peak: 1, allocated: 3, freed: 2 }
        );
        stats.reset_accumulated();
        assert_eq!(stats.allocation.all, Stat { current: 1, peak: 1, allocated: 0, freed: 0 });
        assert_eq!((stats.num_ooms, stats.max_split_size), (0, 20 << 20));
    }
}
