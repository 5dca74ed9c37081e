//! Settings made by calls instead of a string.
//!
//! In:  typed values, sizes in bytes.
//! Out: a [`Config`] that some settings string could have made too, checked by the same bounds.
//!
//! What no string can say is refused: sizes that are not whole MiB, settings that the release does
//! not have yet, numbers that it cannot read. A setting with its default value needs no key and is
//! always fine.

use super::error::{ConfigError, Place, Problem};
use super::key::Key;
use super::token::tokenise;
use super::{Backend, Config, DIVISION_SLOTS, Release, Reserve, bounds};

/// Collects settings; [`build`](Self::build) checks them.
///
/// The order of the calls does not matter.
#[derive(Clone, Debug)]
pub struct ConfigBuilder {
    config: Config,
    /// None follows the large segment size.
    max_non_split_rounding: Option<u64>,
    divisions: Divisions,
}

/// How many divisions: for all sizes, or for each slot of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisions {
    /// The same for every size: a power of two.
    All(u64),
    /// One number per slot, each 0 or a power of two.
    PerSlot([u64; DIVISION_SLOTS]),
}

impl From<u64> for Divisions {
    fn from(divisions: u64) -> Self {
        Self::All(divisions)
    }
}

impl From<[u64; DIVISION_SLOTS]> for Divisions {
    fn from(divisions: [u64; DIVISION_SLOTS]) -> Self {
        Self::PerSlot(divisions)
    }
}

impl ConfigBuilder {
    pub(super) fn starting_from(config: Config) -> Self {
        let rounding = config.max_non_split_rounding;
        Self {
            max_non_split_rounding: (rounding != config.large_segment_size).then_some(rounding),
            divisions: Divisions::PerSlot(config.roundup_power2_divisions),
            config,
        }
    }

    /// The release whose rules hold.
    #[must_use]
    pub fn release(mut self, release: Release) -> Self {
        self.config.release = release;
        self
    }

    /// Blocks of at least this many bytes are not split. Pass `None` for no such bound.
    #[must_use]
    pub fn max_split_size(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.config.max_split_size = bytes.into();
        self
    }

    /// A block that may not be split serves requests that are less than this many bytes smaller.
    #[must_use]
    pub fn max_non_split_rounding(mut self, bytes: u64) -> Self {
        self.max_non_split_rounding = Some(bytes);
        self
    }

    /// The share of the memory limit above which cached blocks are given back; 0 = off.
    #[must_use]
    pub fn garbage_collection_threshold(mut self, threshold: f64) -> Self {
        self.config.garbage_collection_threshold = threshold;
        self
    }

    /// Divisions for rounding: a number for all sizes, or an array with one per slot.
    #[must_use]
    pub fn roundup_power2_divisions(mut self, divisions: impl Into<Divisions>) -> Self {
        self.divisions = divisions.into();
        self
    }

    /// Whether new segments can grow in place.
    #[must_use]
    pub fn expandable_segments(mut self, on: bool) -> Self {
        self.config.expandable_segments = on;
        self
    }

    /// Bytes of the segments that serve requests between 1 MiB and 10 MiB.
    #[must_use]
    pub fn large_segment_size(mut self, bytes: u64) -> Self {
        self.config.large_segment_size = bytes;
        self
    }

    /// The share of a device's memory that its allocator may hold; 1 = no limit.
    #[must_use]
    pub fn per_process_memory_fraction(mut self, fraction: f64) -> Self {
        self.config.per_process_memory_fraction = fraction;
        self
    }

    /// Whether the lock is released while the driver allocates.
    #[must_use]
    pub fn release_lock_on_cudamalloc(mut self, on: bool) -> Self {
        self.config.release_lock_on_cudamalloc = on;
        self
    }

    /// Whether blocks freed during a capture are reused when the graph proves them unused.
    #[must_use]
    pub fn graph_capture_record_stream_reuse(mut self, on: bool) -> Self {
        self.config.graph_capture_record_stream_reuse = on;
        self
    }

    /// Whether pinned memory is ordinary memory, registered.
    #[must_use]
    pub fn pinned_use_cuda_host_register(mut self, on: bool) -> Self {
        self.config.pinned_use_cuda_host_register = on;
        self
    }

    /// Threads that register pinned memory: a power of two up to 128.
    #[must_use]
    pub fn pinned_num_register_threads(mut self, count: u64) -> Self {
        self.config.pinned_num_register_threads = count;
        self
    }

    /// Whether threads in the background process the events of pinned memory.
    #[must_use]
    pub fn pinned_use_background_threads(mut self, on: bool) -> Self {
        self.config.pinned_use_background_threads = on;
        self
    }

    /// Bytes of the segment that pinned memory is cut from; 0 = none.
    #[must_use]
    pub fn pinned_reserve_segment_size(mut self, bytes: u64) -> Self {
        self.config.pinned_reserve_segment_size = bytes;
        self
    }

    /// Whether one list takes pinned blocks of every size back.
    #[must_use]
    pub fn pinned_free_catch_all(mut self, on: bool) -> Self {
        self.config.pinned_free_catch_all = on;
        self
    }

    /// Bytes above which requests for pinned memory are not rounded to powers of two. Pass `None` for no
    /// such bound.
    #[must_use]
    pub fn pinned_max_round_threshold(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.config.pinned_max_round_threshold = bytes.into();
        self
    }

    /// Bytes above which pinned blocks are not kept for reuse. Pass `None` for no such bound.
    #[must_use]
    pub fn pinned_max_cached_size(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.config.pinned_max_cached_size = bytes.into();
        self
    }

    /// Whether requests beyond `per_process_memory_fraction` are rejected before the driver is asked.
    #[must_use]
    pub fn throw_on_cudamalloc_oom(mut self, on: bool) -> Self {
        self.config.throw_on_cudamalloc_oom = on;
        self
    }

    /// Addresses that an expandable segment reserves. Pass `None` for an eighth more than the device has.
    #[must_use]
    pub fn expandable_segments_reserve(mut self, reserve: impl Into<Option<Reserve>>) -> Self {
        self.config.expandable_segments_reserve = reserve.into();
        self
    }

    /// The same for segments of the streams that are tagged with this class.
    #[must_use]
    pub fn expandable_segments_reserve_of_class(
        mut self,
        class: impl Into<String>,
        reserve: Reserve,
    ) -> Self {
        self.config.expandable_segments_reserve_by_class.insert(class.into(), reserve);
        self
    }

    /// The allocator behind the memory functions.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.config.backend = backend;
        self
    }

    /// The settings, if a string could have made them. That string becomes `last_settings`.
    pub fn build(self) -> Result<Config, ConfigError> {
        let Self { mut config, max_non_split_rounding, divisions } = self;
        let (release, defaults) = (config.release, Config::for_release(config.release));

        let check = Checks { release, large_segment_size: config.large_segment_size };
        if config.large_segment_size != defaults.large_segment_size {
            let size = config.large_segment_size;
            check.size(Key::LargeSegmentSizeMb, size, bounds::large_segment_size)?;
        }
        let split_size = |mb| bounds::split_size(mb, release, config.large_segment_size);
        if let Some(size) = config.max_split_size {
            check.size(Key::MaxSplitSizeMb, size, split_size)?;
        }
        if let Some(size) = max_non_split_rounding {
            check.size(Key::MaxNonSplitRoundingMb, size, split_size)?;
        }
        config.max_non_split_rounding = max_non_split_rounding.unwrap_or(config.large_segment_size);
        if config.garbage_collection_threshold != defaults.garbage_collection_threshold {
            let value = config.garbage_collection_threshold;
            let result = bounds::garbage_collection_threshold(value);
            check.result(Key::GarbageCollectionThreshold, value, result)?;
        }
        if config.per_process_memory_fraction != defaults.per_process_memory_fraction {
            let value = config.per_process_memory_fraction;
            let result = bounds::memory_fraction(value);
            check.result(Key::PerProcessMemoryFraction, value, result)?;
        }
        let threads = config.pinned_num_register_threads;
        let result = bounds::register_threads(threads);
        check.result(Key::PinnedNumRegisterThreads, threads, result)?;
        if config.pinned_reserve_segment_size != defaults.pinned_reserve_segment_size {
            let size = config.pinned_reserve_segment_size;
            let bound = bounds::pinned_reserve_segment_size;
            check.size(Key::PinnedReserveSegmentSizeMb, size, bound)?;
        }
        for (key, bound) in [
            (Key::PinnedMaxRoundThresholdMb, config.pinned_max_round_threshold),
            (Key::PinnedMaxCachedSizeMb, config.pinned_max_cached_size),
        ] {
            if let Some(bytes) = bound {
                check.size(key, bytes, bounds::pinned_bound)?;
            }
        }
        for (key, on) in [
            (Key::GraphCaptureRecordStreamReuse, config.graph_capture_record_stream_reuse),
            (Key::PinnedFreeCatchAll, config.pinned_free_catch_all),
            (Key::ThrowOnCudamallocOom, config.throw_on_cudamalloc_oom),
        ] {
            if on {
                check.result(key, "True", Ok(()))?;
            }
        }
        if let Some(reserve) = config.expandable_segments_reserve {
            check.result(Key::ExpandableSegmentsReserve, reserve, bounds::reserve(reserve))?;
        }
        for (class, &reserve) in &config.expandable_segments_reserve_by_class {
            let key = Key::ExpandableSegmentsReserveByClass;
            let tokens = tokenise(class, release);
            let is_one = tokens.len() == 1 && tokens[0].is(class) && class != "]";
            let result = if is_one { bounds::reserve(reserve) } else { Err(Problem::OutOfRange) };
            check.result(key, format_args!("{class}:{reserve}"), result)?;
        }
        config.roundup_power2_divisions = check.divisions(divisions)?;
        config.last_settings = config.to_conf_string();
        Ok(config)
    }
}

/// The rules in force, and how a refusal becomes an error.
struct Checks {
    release: Release,
    large_segment_size: u64,
}

impl Checks {
    fn size(
        &self,
        key: Key,
        bytes: u64,
        bound: impl Fn(u64) -> Result<u64, Problem>,
    ) -> Result<u64, ConfigError> {
        let result = bounds::whole_mb(bytes, self.release).and_then(bound);
        self.result(key, format_args!("{bytes} bytes"), result)
    }

    fn divisions(&self, divisions: Divisions) -> Result<[u64; DIVISION_SLOTS], ConfigError> {
        let key = Key::RoundupPower2Divisions;
        let slots = match divisions {
            Divisions::All(all) => {
                self.result(key, all, bounds::divisions_for_all(all))?;
                [all; DIVISION_SLOTS]
            }
            Divisions::PerSlot(slots) => slots,
        };
        for divisions in slots {
            let result = bounds::divisions_for_slot(divisions)
                .and_then(|divisions| bounds::readable(divisions, self.release));
            self.result(key, divisions, result)?;
        }
        Ok(slots)
    }

    fn result<T>(
        &self,
        key: Key,
        value: impl std::fmt::Display,
        result: Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        if !key.exists_in(self.release) {
            return Err(ConfigError::unknown_key(key.name(), Place::Builder, self.release));
        }
        result.map_err(|problem| {
            let Self { release, large_segment_size } = *self;
            let value = value.to_string();
            let place = Place::Builder;
            ConfigError::refused(key, Some(&value), problem, place, release, large_segment_size)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigErrorKind, MIB};

    #[test]
    fn a_builder_makes_what_the_string_makes() {
        let built = Config::builder()
            .release(Release::V2_15)
            .expandable_segments(true)
            .max_split_size(128 * MIB)
            .max_non_split_rounding(64 * MIB)
            .garbage_collection_threshold(0.6)
            .roundup_power2_divisions(8)
            .large_segment_size(32 * MIB)
            .per_process_memory_fraction(0.5)
            .release_lock_on_cudamalloc(true)
            .graph_capture_record_stream_reuse(true)
            .pinned_use_cuda_host_register(true)
            .pinned_num_register_threads(8)
            .pinned_use_background_threads(true)
            .pinned_reserve_segment_size(MIB)
            .pinned_free_catch_all(true)
            .pinned_max_round_threshold(MIB)
            .pinned_max_cached_size(0)
            .throw_on_cudamalloc_oom(true)
            .expandable_segments_reserve(Reserve::Fraction(0.5))
            .expandable_segments_reserve_of_class("a", Reserve::Gib(1.5))
            .backend(Backend::CudaMallocAsync)
            .build()
            .unwrap();
        assert_eq!(Config::parse(built.last_settings(), Release::V2_15), Ok(built));
        let defaults = Config::builder().release(Release::V2_9).build();
        assert_eq!(defaults, Ok(Config::for_release(Release::V2_9)));
    }

    #[test]
    fn an_existing_config_can_be_changed_in_one_setting() {
        let config = Config::parse("large_segment_size_mb:32,max_split_size_mb:40", Release::V2_11);
        let changed = config.unwrap().to_builder().max_split_size(None).build().unwrap();
        assert_eq!(changed.max_split_size(), u64::MAX);
        assert_eq!(changed.large_segment_size(), 32 * MIB);
        assert_eq!(changed.max_non_split_rounding(), 32 * MIB, "follows the segment size");
    }

    #[test]
    fn the_bounds_are_the_parsers() {
        let rows: [(ConfigBuilder, &str, &str, &str); 13] = [
            (
                Config::builder()
                    .release(Release::V2_15)
                    .expandable_segments_reserve(Reserve::Fraction(0.0)),
                "expandable_segments_reserve",
                "0",
                "positive",
            ),
            (
                Config::builder()
                    .release(Release::V2_15)
                    .expandable_segments_reserve_of_class("a b", Reserve::Gib(1.0)),
                "expandable_segments_reserve_by_class",
                "a b:1G",
                "list of classes",
            ),
            (
                Config::builder().max_split_size(10 * MIB),
                "max_split_size_mb",
                "10485760 bytes",
                "at least 20",
            ),
            (
                Config::builder().max_split_size(64 * MIB + 1),
                "max_split_size_mb",
                "67108865 bytes",
                "whole number of MiB",
            ),
            (
                Config::builder().max_non_split_rounding(MIB),
                "max_non_split_rounding_mb",
                "1048576 bytes",
                "at least 20",
            ),
            (
                Config::builder().large_segment_size(10 * MIB),
                "large_segment_size_mb",
                "10485760 bytes",
                "more than 10",
            ),
            (
                Config::builder().garbage_collection_threshold(1.0),
                "garbage_collection_threshold",
                "1",
                "between 0 and 1",
            ),
            (
                Config::builder().garbage_collection_threshold(f64::NAN),
                "garbage_collection_threshold",
                "NaN",
                "between 0 and 1",
            ),
            (
                Config::builder().per_process_memory_fraction(2.0),
                "per_process_memory_fraction",
                "2",
                "from 0 to 1",
            ),
            (
                Config::builder().roundup_power2_divisions(3),
                "roundup_power2_divisions",
                "3",
                "power of two",
            ),
            (
                Config::builder().roundup_power2_divisions(0),
                "roundup_power2_divisions",
                "0",
                "power of two",
            ),
            (
                Config::builder().roundup_power2_divisions([3; 16]),
                "roundup_power2_divisions",
                "3",
                "power of two",
            ),
            (
                Config::builder().pinned_num_register_threads(0),
                "pinned_num_register_threads",
                "0",
                "at most 128",
            ),
        ];
        for (builder, key, value, allowed) in rows {
            let error = builder.build().unwrap_err();
            assert_eq!((error.key(), error.value()), (key, Some(value)));
            assert_eq!(error.position(), None);
            let message = error.to_string();
            assert!(message.contains("given to the builder"), "{message}");
            assert!(message.contains(allowed), "{message}");
        }
    }

    #[test]
    fn a_setting_of_a_later_release_is_refused() {
        let oldest = Config::builder().release(Release::V2_8);
        let error = oldest.graph_capture_record_stream_reuse(true).build().unwrap_err();
        assert!(error.to_string().contains("it came with PyTorch 2.9"), "{error}");
        let builder = || Config::builder().release(Release::V2_9);
        for (builder, key) in [
            (builder().large_segment_size(32 * MIB), "large_segment_size_mb"),
            (builder().per_process_memory_fraction(0.5), "per_process_memory_fraction"),
            (builder().pinned_reserve_segment_size(MIB), "pinned_reserve_segment_size_mb"),
            (builder().pinned_free_catch_all(true), "pinned_free_catch_all"),
            (builder().throw_on_cudamalloc_oom(true), "throw_on_cudamalloc_oom"),
            (builder().pinned_max_round_threshold(0), "pinned_max_round_threshold_mb"),
            (builder().pinned_max_cached_size(MIB), "pinned_max_cached_size_mb"),
            (
                builder().expandable_segments_reserve(Reserve::Gib(2.0)),
                "expandable_segments_reserve",
            ),
            (
                builder().expandable_segments_reserve_of_class("a", Reserve::Fraction(0.5)),
                "expandable_segments_reserve_by_class",
            ),
        ] {
            let error = builder.build().unwrap_err();
            assert_eq!((error.key(), error.kind()), (key, ConfigErrorKind::RuntimeError));
            assert!(error.to_string().contains("it came with"), "{error}");
        }
    }

    #[test]
    fn in_2_9_bounds_are_strict_and_numbers_are_ints() {
        let builder = || Config::builder().release(Release::V2_9);
        assert!(builder().max_split_size(20 * MIB).build().is_err());
        assert!(builder().max_split_size(21 * MIB).build().is_ok());
        assert!(builder().max_split_size(MIB << 31).build().is_err());
        assert!(builder().roundup_power2_divisions(1 << 31).build().is_err());
        assert!(builder().release(Release::V2_10).max_split_size(MIB << 31).build().is_ok());
    }
}
