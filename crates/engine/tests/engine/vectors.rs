//! The test vectors of the specification (section 28), for every release they hold for.
//!
//! Each vector begins with an empty device of 8 GiB. `S1`, `S2`, … are segments in the order of
//! their creation, mapped runs of expandable ranges included; places are relative to their first
//! byte.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonnage_device::Dry;
use tonnage_engine::{
    Address, AllocError, Allocation, CacheError, Capture, CaptureError, Config, Engine,
    OutOfMemory, PoolId, RecordOptions, Release, Stat, Stats, StreamFilter, StreamId,
};
use tonnage_events::{Action, BlockState, SnapshotSegment};

const TOTAL: u64 = 8 << 30;
const MIB: u64 = 1 << 20;

/// A figure under the letters of the specification.
type Figure = (&'static str, fn(&Stats) -> i64);

const R: Figure = ("R", |stats| stats.reserved_bytes.all.current);
const A: Figure = ("A", |stats| stats.allocated_bytes.all.current);
const V: Figure = ("V", |stats| stats.active_bytes.all.current);
const IB: Figure = ("IB", |stats| stats.inactive_split_bytes.all.current);
const IN: Figure = ("IN", |stats| stats.inactive_split.all.current);
const SEGMENTS: Figure = ("segments", |stats| stats.segment.all.current);
const RETRIES: Figure = ("retries", |stats| stats.num_alloc_retries);
const OOMS: Figure = ("ooms", |stats| stats.num_ooms);
const SYNCS: Figure = ("syncs", |stats| stats.num_sync_all_streams);
const REJECTIONS: Figure = ("rejections", |stats| stats.num_oom_rejections);
const DEVICE_ALLOCS: Figure = ("num_device_alloc", |stats| stats.num_device_alloc);
const DEVICE_FREES: Figure = ("num_device_free", |stats| stats.num_device_free);

const P: PoolId = PoolId(0, 1);
const P7: PoolId = PoolId(0, 7);
const P8: PoolId = PoolId(0, 8);

const S1: usize = 0;
const S2: usize = 1;
const S3: usize = 2;
const S4: usize = 3;

/// An allocator whose blocks and segments have names.
struct Vector {
    engine: Engine<Dry>,
    blocks: BTreeMap<&'static str, Allocation>,
    /// Where each segment begins, in order of creation.
    segments: Vec<Address>,
}

impl Vector {
    fn new(release: Release, conf: &str) -> Self {
        Self::on(Dry::new(TOTAL), release, conf)
    }

    fn on(device: Dry, release: Release, conf: &str) -> Self {
        let config = Config::parse(conf, release).unwrap();
        let engine = Engine::new(device, config);
        Self { engine, blocks: BTreeMap::new(), segments: Vec::new() }
    }

    fn release(&self) -> Release {
        self.engine.config().release()
    }

    fn alloc(&mut self, name: &'static str, bytes: u64) {
        self.alloc_on(name, bytes, 0);
    }

    #[track_caller]
    fn alloc_on(&mut self, name: &'static str, bytes: u64, stream: u64) {
        let block = self.engine.allocate(bytes, StreamId(stream));
        let block = block.unwrap_or_else(|error| panic!("{name}, {}: {error}", self.release()));
        assert_eq!(block.requested, bytes, "{name}");
        assert!(self.blocks.insert(name, block).is_none(), "{name} is taken");
        for segment in self.engine.segments() {
            if !self.segments.contains(&segment.address) {
                self.segments.push(segment.address);
            }
        }
    }

    #[track_caller]
    fn alloc_fails(&mut self, bytes: u64) -> OutOfMemory {
        match self.engine.allocate(bytes, StreamId(0)) {
            Err(AllocError::OutOfMemory(report)) => *report,
            other => panic!("{bytes} bytes should not fit: {other:?}"),
        }
    }

    #[track_caller]
    fn free(&mut self, name: &str) {
        let block = self.blocks.remove(name).unwrap();
        self.engine.free(&block).unwrap();
    }

    fn record(&mut self, name: &str, stream: u64) {
        self.engine.record_stream(self.blocks[name].address, StreamId(stream)).unwrap();
    }

    fn empty_cache(&mut self) {
        self.engine.empty_cache().unwrap();
    }

    fn divert_to(&mut self, pool: PoolId) {
        self.engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
    }

    /// A graph capture that allocates from a pool, in a program of one thread.
    fn capture_to(&mut self, pool: PoolId) {
        self.divert_to(pool);
        self.engine.begin_capture(Capture::Everywhere);
    }

    fn end_capture(&mut self, pool: PoolId) {
        self.engine.end_capture().unwrap();
        self.end(pool);
    }

    fn end(&mut self, pool: PoolId) {
        self.engine.end_allocate_to_pool(pool).unwrap();
    }

    fn fraction(&mut self, fraction: f64) {
        self.engine.set_memory_fraction(fraction).unwrap();
    }

    fn size_of(&self, name: &str) -> u64 {
        self.blocks[name].size
    }

    /// The segment, or mapped run, that begins where this one did.
    fn segment(&self, number: usize) -> SnapshotSegment {
        let at = self.segments[number];
        let found = self.engine.segments().into_iter().find(|segment| segment.address == at);
        found.unwrap_or_else(|| panic!("S{} is gone", number + 1))
    }

    /// The segment, or mapped run, that holds a block.
    fn segment_of(&self, name: &str) -> SnapshotSegment {
        let at = self.blocks[name].address;
        let mut segments = self.engine.segments().into_iter();
        segments.rfind(|segment| segment.address <= at).unwrap()
    }

    #[track_caller]
    fn assert_at(&self, name: &str, segment: usize, offset: u64) {
        let expected = self.segments[segment].offset(offset);
        let got = self.blocks[name].address;
        assert_eq!(got, expected, "{name} at S{}+{offset}, {}", segment + 1, self.release());
    }

    #[track_caller]
    fn assert_segment_size(&self, segment: usize, bytes: u64) {
        assert_eq!(self.segment(segment).total_size, bytes, "S{}", segment + 1);
    }

    /// The blocks of a segment: bytes and whether they are in use.
    #[track_caller]
    fn assert_blocks(&self, segment: usize, expected: &[(u64, BlockState)]) {
        let blocks = self.segment(segment).blocks;
        let blocks: Vec<_> = blocks.iter().map(|block| (block.size, block.state)).collect();
        assert_eq!(blocks, expected, "S{}, {}", segment + 1, self.release());
    }

    #[track_caller]
    fn expect<const N: usize>(&self, figures: [(Figure, i64); N]) {
        let stats = self.engine.stats();
        let got = figures.map(|((name, read), _)| (name, read(stats)));
        let expected = figures.map(|((name, _), value)| (name, value));
        assert_eq!(got, expected, "release {}", self.release());
    }
}

fn each_release(conf: &str, vector: impl Fn(&mut Vector)) {
    for release in Release::ALL {
        vector(&mut Vector::new(release, conf));
    }
}

#[test]
fn v1_small_requests_are_packed_into_small_segments() {
    each_release("", |it| {
        it.alloc("a", 1);
        it.alloc("b", 512);
        it.alloc("c", 513);
        it.alloc("d", 1_048_576);
        it.assert_at("a", S1, 0);
        it.assert_at("b", S1, 512);
        it.assert_at("c", S1, 1_024);
        it.assert_at("d", S1, 2_048);
        it.expect([(R, 2_097_152), (A, 1_050_624), (IB, 1_046_528), (IN, 1)]);
        it.alloc("e", 1_048_064);
        it.assert_at("e", S2, 0);
        it.expect([(R, 4_194_304), (A, 2_098_688), (IB, 2_095_616), (IN, 2)]);
    });
}

#[test]
fn v2_the_boundaries_between_segment_sizes_are_exact() {
    each_release("", |it| {
        it.alloc("a", 1_048_577);
        it.assert_at("a", S1, 0);
        it.assert_segment_size(S1, 20 * MIB);
        it.expect([(A, 1_049_088)]);
        it.alloc("b", 10_485_248);
        it.assert_at("b", S1, 1_049_088);
        it.expect([(A, 11_534_336)]);
        it.alloc("c", 10_485_249);
        it.assert_at("c", S2, 0);
        it.assert_segment_size(S2, 10_485_760);
        it.expect([(R, 31_457_280)]);
        it.alloc("d", 10_485_760);
        it.assert_at("d", S3, 0);
        it.assert_segment_size(S3, 10_485_760);
        it.expect([(R, 41_943_040)]);
        it.alloc("e", 10_485_761);
        it.assert_at("e", S4, 0);
        it.assert_segment_size(S4, 12_582_912);
        it.assert_blocks(
            S4,
            &[(10_486_272, BlockState::ActiveAllocated), (2_096_640, BlockState::Inactive)],
        );
        it.expect([(R, 54_525_952), (A, 42_992_128), (IB, 11_533_824), (IN, 2)]);
    });
}

#[test]
fn v3_freed_neighbours_merge_and_serve_larger_requests() {
    each_release("", |it| {
        for (name, offset) in [("a", 0), ("b", 5_242_880), ("c", 10_485_760), ("d", 15_728_640)] {
            it.alloc(name, 5_242_880);
            it.assert_at(name, S1, offset);
        }
        it.expect([(IB, 0), (IN, 0)]);
        it.alloc("e", 5_242_880);
        it.assert_at("e", S2, 0);
        it.expect([(R, 41_943_040)]);
        it.free("b");
        it.expect([(IB, 20_971_520), (IN, 2)]);
        it.free("c");
        it.expect([(IB, 26_214_400), (IN, 2)]);
        it.alloc("g", 9_437_184);
        it.assert_at("g", S1, 5_242_880);
        assert_eq!(it.size_of("g"), 10_485_760, "a remainder of exactly 1 MiB is not cut off");
        it.expect([(A, 26_214_400), (IB, 15_728_640), (IN, 1)]);
        it.free("a");
        it.expect([(IB, 20_971_520), (IN, 2)]);
        it.free("g");
        it.expect([(IB, 31_457_280), (IN, 2)]);
        it.free("d");
        it.expect([(IB, 15_728_640), (IN, 1)]);
        it.assert_blocks(S1, &[(20 * MIB, BlockState::Inactive)]);
        it.free("e");
        it.expect([(IB, 0), (IN, 0), (R, 41_943_040)]);
        it.empty_cache();
        it.expect([(R, 0)]);
    });
}

#[test]
fn v4_a_remainder_of_one_mebibyte_stays_and_one_granule_more_is_cut_off() {
    each_release("", |it| {
        it.alloc("a", 19_922_944);
        it.expect([(A, 20_971_520)]);
        it.alloc("b", 19_922_432);
        it.expect([(R, 41_943_040), (A, 40_893_952), (IB, 1_049_088), (IN, 1)]);
    });
}

#[test]
fn v5_of_equal_blocks_the_lowest_address_serves() {
    each_release("", |it| {
        for name in ["a", "b", "c", "d"] {
            it.alloc(name, 2_097_152);
            assert_eq!(it.segments.len(), 1);
        }
        it.free("c");
        it.free("a");
        it.alloc("x", 2_097_152);
        it.assert_at("x", S1, 0);
        it.expect([(IB, 14_680_064), (IN, 2)]);
    });
}

#[test]
fn v6_streams_do_not_share_segments() {
    each_release("", |it| {
        it.alloc_on("a", 1_000, 0);
        it.alloc_on("b", 1_000, 1);
        it.expect([(R, 4_194_304)]);
        it.free("a");
        it.alloc_on("c", 1_000, 1);
        it.assert_at("c", S2, 1_024);
        it.alloc_on("d", 1_000, 0);
        it.assert_at("d", S1, 0);
        it.expect([(R, 4_194_304), (A, 3_072)]);
    });
}

#[test]
fn v7_a_block_used_on_another_stream_waits_for_its_event() {
    each_release("", |it| {
        it.engine.device_mut().hold_events();
        it.alloc("a", 3_000_000);
        assert_eq!(it.size_of("a"), 3_000_320);
        it.record("a", 1);
        it.free("a");
        it.expect([(A, 0), (V, 3_000_320)]);
        it.alloc("b", 3_000_000);
        it.assert_at("b", S1, 3_000_320);
        it.expect([(A, 3_000_320), (V, 6_000_640)]);
        it.engine.device_mut().complete_events();
        it.expect([(V, 6_000_640)]);
        it.alloc("c", 3_000_000);
        it.assert_at("c", S1, 0);
        it.expect([(A, 6_000_640), (V, 6_000_640)]);
    });
}

#[test]
fn v8_oversize_blocks_are_kept_whole_and_for_large_requests() {
    each_release("max_split_size_mb:40", |it| {
        it.alloc("a", 52_428_800);
        it.free("a");
        it.alloc("b", 31_457_280);
        it.assert_at("b", S2, 0);
        it.expect([(R, 83_886_080)]);
        it.alloc("c", 47_185_920);
        it.assert_at("c", S1, 0);
        assert_eq!(it.size_of("c"), 52_428_800);
        it.expect([(A, 83_886_080)]);
        it.free("c");
        it.alloc("d", 41_943_040);
        it.assert_at("d", S1, 0);
        assert_eq!(it.size_of("d"), 52_428_800);
        let before = it.engine.segments();
        it.empty_cache();
        assert_eq!(it.engine.segments(), before);
        it.expect([(R, 83_886_080), (A, 83_886_080)]);
    });
}

#[test]
fn v9_a_free_segment_as_large_as_max_split_no_longer_serves_small_requests() {
    for release in Release::ALL {
        if !release.split_size_may_equal_large_segment() {
            assert!(Config::parse("max_split_size_mb:20", release).is_err());
            continue;
        }
        let mut it = Vector::new(release, "max_split_size_mb:20");
        it.alloc("a", 5_242_880);
        it.free("a");
        it.alloc("b", 5_242_880);
        it.assert_at("b", S2, 0);
        it.expect([(R, 41_943_040)]);
    }
}

#[test]
fn v10_expandable_segments_grow_and_shrink_by_pages() {
    each_release("expandable_segments:True", |it| {
        it.alloc("a", 100);
        it.expect([(R, 2_097_152), (A, 512), (SEGMENTS, 0)]);
        it.alloc("b", 5_242_880);
        it.assert_at("b", S2, 0);
        it.expect([(R, 23_068_672)]);
        it.alloc("c", 20_971_520);
        it.assert_at("c", S2, 5_242_880);
        it.expect([(R, 44_040_192)]);
        it.alloc("d", 20_971_520);
        it.assert_at("d", S2, 26_214_400);
        it.expect([(R, 65_011_712)]);
        it.free("b");
        it.free("d");
        it.empty_cache();
        it.expect([(R, 44_040_192), (DEVICE_FREES, 1)]);
        it.assert_segment_size(S2, 41_943_040);
        it.assert_blocks(
            S2,
            &[
                (5_242_880, BlockState::Inactive),
                (20_971_520, BlockState::ActiveAllocated),
                (15_728_640, BlockState::Inactive),
            ],
        );
        it.alloc("e", 31_457_280);
        it.assert_at("e", S2, 26_214_400);
        it.expect([(R, 65_011_712), (DEVICE_ALLOCS, 5), (SEGMENTS, 0)]);
        let tail = it.segment(S2).blocks.pop().unwrap();
        assert_eq!((tail.size, tail.state), (5_242_880, BlockState::Inactive));
        // The device places ranges one behind the other, so their sizes show.
        it.alloc_on("another range", 5_242_880, 1);
        let distance = |to: usize, from: usize| it.segments[to].distance_from(it.segments[from]);
        assert_eq!(distance(S2, S1), 9_663_676_416);
        assert_eq!(distance(S3, S2), 9_667_870_720);
    });
}

#[test]
fn v11_a_hole_in_an_expandable_segment_is_filled_again() {
    each_release("expandable_segments:True", |it| {
        for name in ["a", "b", "c"] {
            it.alloc(name, 20_971_520);
        }
        it.free("b");
        it.empty_cache();
        it.expect([(R, 41_943_040)]);
        assert_eq!(it.engine.segments().len(), 2);
        it.alloc("d", 10_485_760);
        it.assert_at("d", S1, 20_971_520);
        it.expect([(R, 62_914_560)]);
        assert_eq!(it.engine.segments().len(), 1);
        it.alloc("e", 31_457_280);
        it.assert_at("e", S1, 62_914_560);
        it.expect([(R, 104_857_600)]);
    });
}

#[test]
fn v12_holes_are_preferred_to_the_growing_end() {
    each_release("expandable_segments:True", |it| {
        it.alloc("a", 20_971_520);
        it.alloc("b", 5_242_880);
        it.alloc("c", 5_242_880);
        it.free("a");
        it.alloc("d", 5_242_880);
        it.assert_at("d", S1, 0);
    });
}

#[test]
fn v13_garbage_collection_gives_back_the_blocks_older_than_the_mean() {
    each_release("garbage_collection_threshold:0.6", |it| {
        it.fraction(0.9);
        for name in ["a", "b", "c"] {
            it.alloc(name, 104_857_600);
        }
        it.free("a");
        it.alloc_on("q", 31_457_280, 1);
        it.free("b");
        it.fraction(0.05);
        // Less 0.4 bytes, or 0.6 more.
        let rounded = it.release() >= Release::V2_13;
        assert_eq!(it.engine.limit(), Some(429_496_729 + u64::from(rounded)));
        it.expect([(R, 346_030_080)]);
        it.alloc("d", 125_829_120);
        it.expect([(R, 367_001_600), (A, 262_144_000), (DEVICE_FREES, 1)]);
        // Only a's segment went: b's is still there, free.
        assert_eq!(it.segment(S2).allocated_size, 0);
        it.assert_segment_size(S2, 104_857_600);
    });
}

#[test]
fn v14_several_oversize_segments_go_back_for_one_request() {
    each_release("max_split_size_mb:40", |it| {
        it.fraction(0.0125);
        assert_eq!(it.engine.limit(), Some(107_374_182));
        it.alloc("a", 52_428_800);
        it.alloc("b", 52_428_800);
        it.free("a");
        it.free("b");
        it.alloc("c", 62_914_560);
        it.expect([(R, 62_914_560), (RETRIES, 0), (DEVICE_FREES, 2)]);
    });
}

#[test]
fn v15_everything_cached_goes_back_before_a_request_fails() {
    for release in Release::ALL {
        let device = Dry::new(TOTAL).with_capacity(300_000_000);
        let mut it = Vector::on(device, release, "");
        it.alloc("a", 209_715_200);
        it.free("a");
        it.alloc("b", 251_658_240);
        it.expect([(R, 251_658_240), (RETRIES, 1), (SYNCS, 1)]);
        let report = it.alloc_fails(104_857_600);
        let message = report.pytorch_message();
        assert!(message.contains("Tried to allocate 100.00 MiB."), "{message}");
        it.expect([(RETRIES, 2), (OOMS, 1), (SYNCS, 2), (R, 251_658_240)]);
    }
}

#[test]
fn v16_the_fraction_limits_reserved_memory_and_not_its_reuse() {
    each_release("", |it| {
        it.fraction(0.0125);
        it.alloc("a", 62_914_560);
        it.alloc("b", 41_943_040);
        it.expect([(R, 104_857_600)]);
        it.free("a");
        it.alloc("c", 41_943_040);
        it.assert_at("c", S1, 0);
        it.alloc("d", 10_485_760);
        it.assert_at("d", S1, 41_943_040);
        it.alloc_fails(20_971_520);
        it.expect([(R, 104_857_600), (A, 94_371_840), (RETRIES, 1), (OOMS, 1)]);
    });
}

#[test]
fn v17_a_private_pools_memory_goes_back_only_once_it_is_released() {
    each_release("", |it| {
        it.divert_to(P);
        it.alloc("a", 1_000);
        it.end(P);
        it.alloc("b", 1_000);
        it.expect([(R, 4_194_304)]);
        assert_eq!(it.segment_of("a").pool, P);
        assert_eq!(it.segment_of("b").pool, PoolId::DEFAULT);
        it.free("a");
        it.empty_cache();
        it.expect([(R, 4_194_304)]);
        it.engine.release_pool(P).unwrap();
        it.empty_cache();
        it.expect([(R, 2_097_152)]);
    });
}

#[test]
fn v18_a_use_recorded_in_a_capture_is_forgotten_with_the_capture() {
    each_release("", |it| {
        it.engine.device_mut().hold_events();
        it.capture_to(P);
        it.alloc("a", 3_000_000);
        it.record("a", 1);
        it.free("a");
        it.expect([(A, 0), (V, 3_000_320)]);
        assert_eq!(it.segment(S1).blocks[0].state, BlockState::ActivePendingFree);
        it.end_capture(P);
        it.alloc("b", 3_000_000);
        it.assert_at("b", S2, 0);
        it.expect([(V, 3_000_320)]);
    });
}

#[test]
fn v19_a_use_recorded_before_a_capture_is_waited_for() {
    each_release("", |it| {
        it.engine.device_mut().hold_events();
        it.alloc("a", 3_000_000);
        it.record("a", 1);
        it.capture_to(P);
        it.record("a", 2);
        it.free("a");
        it.end_capture(P);
        it.alloc("b", 3_000_000);
        it.assert_at("b", S1, 3_000_320);
        it.expect([(V, 6_000_640)]);
        // It waits for stream 1 alone: stream 2 was recorded in the capture, and never completes.
        it.engine.device_mut().complete_events_of(StreamId(1));
        it.alloc("c", 3_000_000);
        it.assert_at("c", S1, 0);
    });
}

#[test]
fn v20_divisions_round_block_sizes_up() {
    each_release("roundup_power2_divisions:4", |it| {
        for (name, bytes, size) in [
            ("a", 1_200, 1_536),
            ("b", 88_080_384, 100_663_296),
            ("c", 1_100_000, 1_310_720),
            ("d", 2_049, 2_560),
            ("e", 2_048, 2_048),
            ("f", 512, 512),
        ] {
            it.alloc(name, bytes);
            assert_eq!(it.size_of(name), size, "{bytes}");
        }
        it.expect([(R, 123_731_968), (A, 101_980_672)]);
    });
}

#[test]
fn v21_expandable_mode_cuts_ordinary_cached_blocks_by_granules() {
    each_release("", |it| {
        it.alloc("a", 20_971_520);
        it.free("a");
        it.engine.configure("expandable_segments:True").unwrap();
        it.alloc("b", 20_970_496);
        it.assert_at("b", S1, 0);
        it.assert_blocks(
            S1,
            &[(20_970_496, BlockState::ActiveAllocated), (1_024, BlockState::Inactive)],
        );
        it.expect([(A, 20_970_496), (IB, 1_024), (IN, 1)]);
    });
}

#[test]
fn v22_of_nested_diversions_the_newest_wins_and_before_2_10_the_oldest() {
    each_release("", |it| {
        it.divert_to(P7);
        it.divert_to(P8);
        it.alloc("a", 1_000);
        it.end(P8);
        it.alloc("b", 1_000);
        let pools = [it.segment_of("a").pool, it.segment_of("b").pool];
        if it.release() < Release::V2_10 {
            assert_eq!(pools, [P7, P7]);
            it.expect([(R, 2_097_152)]);
        } else {
            assert_eq!(pools, [P8, P7]);
            it.expect([(R, 4_194_304)]);
        }
    });
}

#[test]
fn v23_a_spare_pool_serves_before_the_flush_from_2_11_on_and_after_it_before() {
    each_release("", |it| {
        it.divert_to(P7);
        it.alloc("a", 41_943_040);
        it.free("a");
        it.end(P7);
        it.engine.set_pool_use_on_oom(P7, true);
        it.alloc("q", 31_457_280);
        it.free("q");
        it.fraction(0.01);
        it.alloc("r", 36_700_160);
        if it.release() >= Release::V2_11 {
            it.assert_at("r", S1, 0);
            assert_eq!(it.segment_of("r").pool, P7);
            it.expect([(R, 73_400_320), (RETRIES, 0), (DEVICE_FREES, 0)]);
        } else {
            let segment = it.segment_of("r");
            assert_eq!((segment.pool, segment.total_size), (PoolId::DEFAULT, 37_748_736));
            it.expect([(R, 79_691_776), (RETRIES, 1), (DEVICE_FREES, 1)]);
        }
    });
}

#[test]
fn v24_the_large_segment_size_survives_a_new_settings_string() {
    for release in Release::ALL {
        if !release.large_segment_configurable() {
            assert!(Config::parse("large_segment_size_mb:32", release).is_err(), "{release}");
            continue;
        }
        let mut it = Vector::new(release, "large_segment_size_mb:32");
        it.alloc("a", 5_242_880);
        it.expect([(R, 33_554_432)]);
        it.alloc("b", 10_485_760);
        it.assert_at("b", S1, 5_242_880);
        it.engine.configure("").unwrap();
        assert_eq!(it.engine.config().large_segment_size(), 32 * MIB);
        it.alloc("c", 30_000_000);
        it.assert_at("c", S2, 0);
        it.assert_segment_size(S2, 31_457_280);
        it.assert_blocks(
            S2,
            &[(30_000_128, BlockState::ActiveAllocated), (1_457_152, BlockState::Inactive)],
        );
        it.expect([(R, 65_011_712)]);
    }
}

#[test]
fn v25_peaks_and_sums_outlive_the_memory() {
    each_release("", |it| {
        it.alloc("a", 100);
        it.alloc("b", 5_242_880);
        it.free("a");
        it.free("b");
        it.empty_cache();
        let stats = it.engine.stats();
        let flat = |of| Stat { current: 0, peak: of, allocated: of, freed: of };
        for (name, stat, expected) in [
            ("reserved_bytes", stats.reserved_bytes.all, flat(23_068_672)),
            ("inactive_split_bytes", stats.inactive_split_bytes.all, flat(17_825_280)),
            ("requested_bytes", stats.requested_bytes.all, flat(5_242_980)),
            ("segment", stats.segment.all, flat(2)),
        ] {
            assert_eq!(stat, expected, "{name}, {}", it.release());
        }
    });
}

// What changed from 2.12 to 2.15: the examples of the addendum, and what the released libraries answered to a few
// more.

#[test]
fn e1_of_equal_blocks_the_lowest_serves_and_in_2_12_the_one_made_first() {
    each_release("", |it| {
        for name in ["s1", "s2", "s3", "s4"] {
            it.alloc(name, 524_288);
        }
        it.free("s1");
        it.free("s4");
        it.alloc("z", 524_288);
        // What remains of a split is the older block, and s4 is what remained.
        it.assert_at("z", S1, if it.release() == Release::V2_12 { 1_572_864 } else { 0 });
    });
}

#[test]
fn e2_of_equal_blocks_the_one_of_the_older_segment_serves_from_2_12_on() {
    each_release("", |it| {
        it.alloc("big", 20_971_520);
        it.free("big");
        it.alloc("p", 1_048_576);
        it.alloc("q", 1_048_576);
        it.empty_cache();
        // Its segment lies where the first one was, below that of p and q.
        it.alloc("r", 1_048_576);
        it.assert_at("r", S1, 0);
        it.free("p");
        it.alloc("z", 1_048_576);
        if it.release() < Release::V2_12 {
            it.assert_at("z", S1, 1_048_576);
        } else {
            it.assert_at("z", S2, 0);
        }
    });
}

#[test]
fn e3_events_are_polled_in_a_pool_scope_from_2_13_on() {
    each_release("", |it| {
        it.alloc("x", 3_000_000);
        it.record("x", 4096);
        it.divert_to(P);
        it.free("x");
        it.alloc("y", 100);
        it.expect([(V, if it.release() < Release::V2_13 { 3_000_832 } else { 512 })]);
    });
    // In a capture they never are.
    each_release("", |it| {
        it.alloc("x", 3_000_000);
        it.record("x", 4096);
        it.capture_to(P);
        it.free("x");
        it.alloc("y", 100);
        it.expect([(V, 3_000_832)]);
        it.end_capture(P);
        it.alloc("z", 100);
        it.expect([(V, 1_024)]);
    });
}

#[test]
fn e4_a_request_in_a_pool_scope_flushes_from_2_13_on() {
    for release in Release::ALL {
        let scope = || {
            let device = Dry::new(TOTAL).with_capacity(100 * MIB);
            let mut it = Vector::on(device, release, "");
            it.alloc("x", 62_914_560);
            it.free("x");
            it
        };
        let mut it = scope();
        it.divert_to(P);
        if release < Release::V2_13 {
            it.alloc_fails(62_914_560);
            it.expect([(R, 62_914_560), (RETRIES, 0), (OOMS, 1), (SYNCS, 0)]);
        } else {
            it.alloc("y", 62_914_560);
            it.assert_at("y", S1, 0);
            it.expect([(R, 62_914_560), (RETRIES, 1), (OOMS, 0), (SYNCS, 1)]);
        }
        let mut it = scope();
        it.capture_to(P);
        it.alloc_fails(62_914_560);
        it.expect([(RETRIES, 0), (OOMS, 1), (SYNCS, 0)]);
    }
}

#[test]
fn e5_a_released_pool_may_be_split_again_from_2_14_on() {
    for release in Release::ALL.into_iter().filter(|release| release.no_split_pools()) {
        let mut it = Vector::new(release, "");
        it.divert_to(P);
        it.engine.set_pool_no_split(P).unwrap();
        it.alloc("x", 100);
        it.expect([(A, 2_097_152)]);
        it.free("x");
        it.end(P);
        it.engine.release_pool(P).unwrap();
        it.empty_cache();
        it.divert_to(P);
        it.alloc("y", 100);
        it.expect([(A, if release < Release::V2_14 { 2_097_152 } else { 512 })]);
    }
}

#[test]
fn e6_only_threads_whose_stream_captures_are_in_a_capture() {
    for release in Release::ALL.into_iter().filter(|release| !release.pool_scope_is_capture()) {
        let mut it = Vector::new(release, "");
        it.alloc("x", 3_000_000);
        it.record("x", 4096);
        let here = Arc::new(AtomicBool::new(true));
        let captures = Arc::clone(&here);
        it.engine.begin_capture(Capture::When(Arc::new(move || captures.load(Ordering::Relaxed))));
        it.free("x");
        it.alloc("y", 100);
        it.expect([(V, 3_000_832)]);
        here.store(false, Ordering::Relaxed);
        it.alloc("z", 100);
        it.expect([(V, 1_024)]);
        it.engine.end_capture().unwrap();
        assert_eq!(it.engine.end_capture(), Err(CaptureError));
    }
}

#[test]
fn e7_a_pool_can_be_emptied_in_a_scope_from_2_13_on_and_in_no_capture() {
    each_release("", |it| {
        it.divert_to(P7);
        it.alloc("x", 100);
        it.free("x");
        it.end(P7);
        it.engine.release_pool(P7).unwrap();
        it.capture_to(P8);
        assert_eq!(it.engine.empty_cache_of(P7), Err(CacheError::Capturing(P7)));
        it.expect([(R, 2_097_152), (SYNCS, 1)]);
        it.engine.end_capture().unwrap();
        let possible = it.release() >= Release::V2_13;
        assert_eq!(it.engine.empty_cache_of(P7).is_ok(), possible);
        it.expect([(R, if possible { 0 } else { 2_097_152 }), (SYNCS, 2)]);
    });
}

#[test]
fn e8_requests_beyond_the_fraction_are_rejected_from_2_12_on() {
    for release in Release::ALL.into_iter().filter(|release| release.rejection_configurable()) {
        let conf = "throw_on_cudamalloc_oom:True";
        let mut it = Vector::on(Dry::new(100 * MIB), release, conf);
        it.engine.record_history(Some(RecordOptions::default()));
        it.alloc("x", 62_914_560);
        let rejected = |it: &mut Vector, bytes| match it.engine.allocate(bytes, StreamId(0)) {
            Err(AllocError::Rejected(rejected)) => rejected,
            other => panic!("{bytes} bytes are not rejected: {other:?}"),
        };
        let told = rejected(&mut it, 62_914_560);
        assert_eq!((told.moment.reserved, told.allowed), (62_914_560, 100 * MIB));
        assert!(told.to_string().contains("throw_on_cudamalloc_oom"), "{told}");
        it.free("x");
        // Nothing cached is given back for it.
        rejected(&mut it, 104_857_601);
        it.expect([(R, 62_914_560), (RETRIES, 0), (OOMS, 0), (SYNCS, 0), (REJECTIONS, 2)]);
        // What is cached serves, and a limit comes first.
        it.alloc("z", 41_943_040);
        it.fraction(0.5);
        it.alloc_fails(52_428_800);
        it.expect([(RETRIES, 1), (OOMS, 1), (REJECTIONS, 2)]);
        // The fraction of the settings is meant, whether or not it is in force; and whole segments, of pages too.
        it.fraction(1.0);
        let conf = "per_process_memory_fraction:0.7,expandable_segments:True";
        it.engine.configure(conf).unwrap();
        assert_eq!(it.engine.limit(), None);
        it.alloc("p", 1);
        rejected(&mut it, 22_020_096);
        it.expect([(R, 65_011_712), (REJECTIONS, 3)]);
        let entries = it.engine.history().unwrap().entries();
        assert_eq!(entries.filter(|entry| entry.action == Action::Oom).count(), 1);
    }
}

#[test]
fn e9_the_range_of_an_expandable_segment_has_the_size_that_is_set() {
    let conf = "expandable_segments:True,expandable_segments_reserve:0.001,\
                expandable_segments_reserve_by_class:[wide:0.01]";
    let mut it = Vector::new(Release::V2_15, conf);
    // A thousandth of 8 GiB is one page of 20 MiB, and 30,000,000 bytes take two.
    it.alloc_fails(30_000_000);
    it.expect([(R, 0), (RETRIES, 1), (OOMS, 1)]);
    it.alloc("y", 3_000_000);
    it.alloc_on("z", 3_000_000, 4096);
    assert_eq!(it.blocks["z"].address.distance_from(it.blocks["y"].address), 20_971_520);
    it.engine.set_stream_reserve_class(StreamId(8192), "wide");
    it.alloc_on("w", 30_000_000, 8192);
    it.engine.set_stream_reserve_class(StreamId(12288), "unknown");
    assert!(it.engine.allocate(30_000_000, StreamId(12288)).is_err());
    it.engine.set_stream_reserve_class(StreamId(12288), "wide");
    it.alloc_on("v", 30_000_000, 12288);
    it.engine.set_stream_reserve_class(StreamId(16384), "wide");
    it.engine.set_stream_reserve_class(StreamId(16384), "");
    assert!(it.engine.allocate(30_000_000, StreamId(16384)).is_err());
}

#[test]
fn e10_private_pools_have_their_own_reserved_bytes() {
    each_release("", |it| {
        it.divert_to(P7);
        assert!(it.engine.stats().reserved_bytes_by_private_pools.is_empty());
        it.alloc("x", 100);
        it.free("x");
        it.end(P7);
        it.engine.release_pool(P7).unwrap();
        it.empty_cache();
        let two = Stat { current: 0, peak: 2_097_152, allocated: 2_097_152, freed: 2_097_152 };
        let of_pool = it.engine.stats().reserved_bytes_by_private_pools[&P7];
        assert_eq!((of_pool.all, of_pool.small_pool), (two, two));
        it.divert_to(P7);
        it.alloc("y", 30_000_000);
        let of_pool = it.engine.stats().reserved_bytes_by_private_pools[&P7];
        let all =
            Stat { current: 31_457_280, peak: 31_457_280, allocated: 33_554_432, freed: 2_097_152 };
        assert_eq!((of_pool.all, of_pool.small_pool), (all, two));
        it.engine.reset_accumulated_stats();
        it.engine.reset_peak_stats();
        let of_pool = it.engine.stats().reserved_bytes_by_private_pools[&P7];
        let now = Stat { current: 31_457_280, peak: 31_457_280, allocated: 0, freed: 0 };
        assert_eq!((of_pool.all, of_pool.small_pool), (now, Stat::default()));
    });
}

#[test]
fn e11_a_fraction_of_one_at_run_time_limits_nothing_from_2_10_on() {
    each_release("garbage_collection_threshold:0.25", |it| {
        assert_eq!(it.engine.limit(), None);
        it.fraction(1.0);
        let limited = it.release() < Release::V2_10;
        assert_eq!(it.engine.limit(), limited.then_some(TOTAL));
        assert_eq!(it.engine.memory_fraction(), 1.0);
        it.alloc("x", 3_221_225_472);
        it.free("x");
        // Beyond a quarter of the device, garbage is collected where there is a limit.
        it.alloc("y", 4_294_967_296);
        let (reserved, frees) = if limited { (4_294_967_296, 1) } else { (7_516_192_768, 0) };
        it.expect([(R, reserved), (RETRIES, 0), (DEVICE_FREES, frees)]);
    });
}

#[test]
fn e14_the_limit_is_rounded_from_2_13_on() {
    each_release("", |it| {
        let bytes = 41_943_040;
        for (behind, limit) in [(0.4, bytes), (0.5, bytes + 1), (0.6, bytes + 1)] {
            it.fraction((bytes as f64 + behind) / TOTAL as f64);
            let cut = it.release() < Release::V2_13;
            assert_eq!(it.engine.limit(), Some(if cut { bytes } else { limit }), "{behind}");
        }
        it.fraction((bytes as f64 - 0.5) / TOTAL as f64);
        if it.release() < Release::V2_13 {
            it.alloc_fails(bytes);
        } else {
            it.alloc("x", bytes);
        }
    });
    // Where requests are rejected, and garbage is collected, shares are cut off still.
    for release in Release::ALL.into_iter().filter(|release| release.rejection_configurable()) {
        let bytes = 41_943_040;
        let fraction = (bytes as f64 - 0.4) / TOTAL as f64;
        let mut it = Vector::new(release, "");
        let conf = format!("throw_on_cudamalloc_oom:True,per_process_memory_fraction:{fraction}");
        it.engine.configure(&conf).unwrap();
        let rejected = it.engine.allocate(bytes, StreamId(0));
        assert!(matches!(rejected, Err(AllocError::Rejected(_))), "{release}: {rejected:?}");
        let mut it = Vector::new(release, "");
        it.engine.configure(&format!("garbage_collection_threshold:{}", 2.0 * fraction)).unwrap();
        it.fraction(0.5);
        it.alloc("x", bytes);
        it.free("x");
        it.alloc("y", 2 * bytes);
        it.expect([(R, 83_886_080), (DEVICE_FREES, 1)]);
    }
}

#[test]
fn e13_a_large_segment_beyond_all_numbers_stops_only_new_segments() {
    // Minus one MiB, as a number of 64 bits; the sum with what is reserved has 64 bits too.
    for release in Release::ALL.into_iter().filter(|release| release.large_segment_configurable()) {
        let mut it = Vector::new(release, "expandable_segments:True");
        it.alloc("x", 41_943_040);
        it.fraction(0.01);
        it.engine.configure("large_segment_size_mb:-1").unwrap();
        it.alloc("y", 8_388_608);
        it.assert_at("y", S1, 41_943_040);
        it.engine.configure("large_segment_size_mb:-1,expandable_segments:False").unwrap();
        it.alloc_fails(9_437_184);
        it.expect([(R, 62_914_560), (OOMS, 1)]);
    }
}

#[test]
fn e12_a_spare_pool_is_searched_without_expandable_segments_from_2_10_on() {
    each_release("expandable_segments:True", |it| {
        it.divert_to(P7);
        it.alloc("x", 41_943_040);
        it.free("x");
        it.end(P7);
        it.engine.set_pool_use_on_oom(P7, true);
        it.fraction(0.0025);
        if it.release() < Release::V2_10 {
            // Served out of the pool's pages, and cut.
            it.alloc("y", 3_000_000);
            assert_eq!(it.segment_of("y").pool, P7);
            it.expect([(R, 41_943_040), (A, 3_000_320), (OOMS, 0)]);
        } else {
            it.alloc_fails(3_000_000);
            it.expect([(R, 41_943_040), (A, 0), (OOMS, 1)]);
        }
    });
}
