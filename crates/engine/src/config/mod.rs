//! The allocator's settings as a value.
//!
//! In:  a settings string in the syntax of `PYTORCH_CUDA_ALLOC_CONF`, the variables of an
//!      environment, calls to a builder, or the separate fields of a snapshot.
//! Out: a [`Config`], the same as the named release of PyTorch would have made of it; or a
//!      [`ConfigError`] that says what was wrong, where, what is allowed and what PyTorch raises.
//!
//! A `Config` decides nothing by itself and is never process-wide: whoever needs one is handed
//! one. Among other things it does not apply `per_process_memory_fraction`, which PyTorch does
//! once, when a device's allocator is created.

use std::collections::BTreeMap;
use std::fmt;

// 1. Which release's rules hold.
mod release;

// 2. The words of the settings: keys, backends, numbers, tokens.
mod backend;
mod key;
mod number;
mod reserve;
mod token;

// 3. What a value may be, and what is said when it may not.
mod bounds;
mod error;

// 4. The ways to a `Config`.
mod builder;
mod environment;
mod parse;
mod recorded;

// 5. And back to a string.
mod conf_string;

pub use backend::Backend;
pub use builder::{ConfigBuilder, Divisions};
pub use environment::{from_environment, from_process_environment};
pub use error::{ConfigError, ConfigErrorKind};
pub use recorded::{Override, RecordedSettings};
pub use release::{Nearest, ParseReleaseError, Release, Tie};
pub use reserve::Reserve;

use parse::Parser;

/// Bytes of the unit that settings call MB.
pub const MIB: u64 = 1 << 20;

/// Intervals of sizes that can have divisions of their own: below 2 MiB, then one per power of
/// two, the last from 32 GiB up.
pub const DIVISION_SLOTS: usize = 16;

/// The settings of an allocator.
///
/// Equal configs lead to equal decisions, except that [`last_settings`](Self::last_settings),
/// which is compared too, is for show.
#[derive(Clone, PartialEq)]
pub struct Config {
    release: Release,
    max_split_size: Option<u64>,
    max_non_split_rounding: u64,
    garbage_collection_threshold: f64,
    roundup_power2_divisions: [u64; DIVISION_SLOTS],
    expandable_segments: bool,
    large_segment_size: u64,
    per_process_memory_fraction: f64,
    release_lock_on_cudamalloc: bool,
    graph_capture_record_stream_reuse: bool,
    pinned_use_cuda_host_register: bool,
    pinned_num_register_threads: u64,
    pinned_use_background_threads: bool,
    pinned_reserve_segment_size: u64,
    pinned_free_catch_all: bool,
    pinned_max_round_threshold: Option<u64>,
    pinned_max_cached_size: Option<u64>,
    throw_on_cudamalloc_oom: bool,
    expandable_segments_reserve: Option<Reserve>,
    expandable_segments_reserve_by_class: BTreeMap<String, Reserve>,
    backend: Backend,
    last_settings: String,
}

impl Default for Config {
    /// The defaults of the newest release.
    fn default() -> Self {
        Self::for_release(Release::default())
    }
}

impl Config {
    /// The defaults of a release.
    #[must_use]
    pub fn for_release(release: Release) -> Self {
        Self {
            release,
            max_split_size: None,
            max_non_split_rounding: bounds::DEFAULT_LARGE_SEGMENT_SIZE,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: [0; DIVISION_SLOTS],
            expandable_segments: false,
            large_segment_size: bounds::DEFAULT_LARGE_SEGMENT_SIZE,
            per_process_memory_fraction: 1.0,
            release_lock_on_cudamalloc: false,
            graph_capture_record_stream_reuse: false,
            pinned_use_cuda_host_register: false,
            pinned_num_register_threads: 1,
            pinned_use_background_threads: false,
            pinned_reserve_segment_size: 0,
            pinned_free_catch_all: false,
            pinned_max_round_threshold: None,
            pinned_max_cached_size: None,
            throw_on_cudamalloc_oom: false,
            expandable_segments_reserve: None,
            expandable_segments_reserve_by_class: BTreeMap::new(),
            backend: Backend::Native,
            last_settings: String::new(),
        }
    }

    /// Whether an allocator serves requests in the same way under both, apart from what the releases do differently by
    /// themselves. What concerns locks, pinned memory and captured streams decides nothing here.
    #[must_use]
    pub fn decides_like(&self, other: &Self) -> bool {
        // Each field is named, so that none is forgotten.
        let Self {
            release: _,
            max_split_size,
            max_non_split_rounding,
            garbage_collection_threshold,
            roundup_power2_divisions,
            expandable_segments,
            large_segment_size,
            per_process_memory_fraction,
            release_lock_on_cudamalloc: _,
            graph_capture_record_stream_reuse: _,
            pinned_use_cuda_host_register: _,
            pinned_num_register_threads: _,
            pinned_use_background_threads: _,
            pinned_reserve_segment_size: _,
            pinned_free_catch_all: _,
            pinned_max_round_threshold: _,
            pinned_max_cached_size: _,
            throw_on_cudamalloc_oom,
            expandable_segments_reserve,
            expandable_segments_reserve_by_class,
            backend,
            last_settings: _,
        } = self;
        *max_split_size == other.max_split_size
            && *max_non_split_rounding == other.max_non_split_rounding
            && *garbage_collection_threshold == other.garbage_collection_threshold
            && *roundup_power2_divisions == other.roundup_power2_divisions
            && *expandable_segments == other.expandable_segments
            && *large_segment_size == other.large_segment_size
            && *per_process_memory_fraction == other.per_process_memory_fraction
            && *throw_on_cudamalloc_oom == other.throw_on_cudamalloc_oom
            && *expandable_segments_reserve == other.expandable_segments_reserve
            && *expandable_segments_reserve_by_class == other.expandable_segments_reserve_by_class
            && *backend == other.backend
    }

    /// The settings that a process of `release` starts with if `conf` is in its environment.
    pub fn parse(conf: &str, release: Release) -> Result<Self, ConfigError> {
        let mut config = Self::for_release(release);
        config.backend = parse::backend_at_load(conf, release);
        config.apply(conf)?;
        Ok(config)
    }

    /// Parses `conf` at run time, as `torch._C._accelerator_setAllocatorSettings` does.
    ///
    /// First `max_split_size`, the divisions and the garbage collection threshold go back to
    /// their defaults, from 2.11 on `max_non_split_rounding` too; every other setting keeps its value
    /// unless `conf` names it. The backend cannot change any more.
    ///
    /// After an error the settings before the mistake stay applied, the resets are done, and
    /// `last_settings` is `conf`.
    pub fn apply(&mut self, conf: &str) -> Result<(), ConfigError> {
        Parser::of(self.release).iter().try_for_each(|parser| parser.read(self, conf))
    }

    /// A builder that begins with the defaults of the newest release.
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        Self::default().to_builder()
    }

    /// A builder that begins with these settings.
    #[must_use]
    pub fn to_builder(&self) -> ConfigBuilder {
        ConfigBuilder::starting_from(self.clone())
    }

    /// The release whose rules hold.
    #[must_use]
    pub fn release(&self) -> Release {
        self.release
    }

    /// Blocks of at least this many bytes are not split; `u64::MAX` if there is no such bound.
    #[must_use]
    pub fn max_split_size(&self) -> u64 {
        self.max_split_size.unwrap_or(u64::MAX)
    }

    /// [`max_split_size`](Self::max_split_size), or none if unlimited.
    #[must_use]
    pub fn max_split_size_limit(&self) -> Option<u64> {
        self.max_split_size
    }

    /// A block that may not be split serves requests that are less than this many bytes smaller.
    #[must_use]
    pub fn max_non_split_rounding(&self) -> u64 {
        self.max_non_split_rounding
    }

    /// The share of the memory limit above which cached blocks are given back; 0 = off.
    #[must_use]
    pub fn garbage_collection_threshold(&self) -> f64 {
        self.garbage_collection_threshold
    }

    /// Into how many parts each interval between powers of two is divided for rounding, per slot;
    /// 0 and 1 = not at all.
    #[must_use]
    pub fn roundup_power2_divisions(&self) -> &[u64; DIVISION_SLOTS] {
        &self.roundup_power2_divisions
    }

    /// The divisions that apply to a request of this size.
    #[must_use]
    pub fn divisions_for(&self, bytes: u64) -> u64 {
        let above_mib = bytes.checked_ilog2().unwrap_or(0).saturating_sub(MIB.ilog2());
        self.roundup_power2_divisions[(above_mib as usize).min(DIVISION_SLOTS - 1)]
    }

    /// Whether new segments can grow in place.
    #[must_use]
    pub fn expandable_segments(&self) -> bool {
        self.expandable_segments
    }

    /// Bytes of the segments that serve requests between 1 MiB and 10 MiB, and of an expandable
    /// segment's pages in the large pool.
    #[must_use]
    pub fn large_segment_size(&self) -> u64 {
        self.large_segment_size
    }

    /// The share of a device's memory that its allocator may hold when it is created; 1 = all,
    /// without a limit.
    #[must_use]
    pub fn per_process_memory_fraction(&self) -> f64 {
        self.per_process_memory_fraction
    }

    /// Whether the lock is released while the driver allocates.
    #[must_use]
    pub fn release_lock_on_cudamalloc(&self) -> bool {
        self.release_lock_on_cudamalloc
    }

    /// Whether blocks freed during a capture are reused when the graph proves them unused.
    #[must_use]
    pub fn graph_capture_record_stream_reuse(&self) -> bool {
        self.graph_capture_record_stream_reuse
    }

    /// Whether pinned memory is ordinary memory, registered.
    #[must_use]
    pub fn pinned_use_cuda_host_register(&self) -> bool {
        self.pinned_use_cuda_host_register
    }

    /// Threads that register pinned memory.
    #[must_use]
    pub fn pinned_num_register_threads(&self) -> u64 {
        self.pinned_num_register_threads
    }

    /// Whether threads in the background process the events of pinned memory.
    #[must_use]
    pub fn pinned_use_background_threads(&self) -> bool {
        self.pinned_use_background_threads
    }

    /// Bytes of the segment that pinned memory is cut from; 0 = none.
    #[must_use]
    pub fn pinned_reserve_segment_size(&self) -> u64 {
        self.pinned_reserve_segment_size
    }

    /// Whether one list takes pinned blocks of every size back.
    #[must_use]
    pub fn pinned_free_catch_all(&self) -> bool {
        self.pinned_free_catch_all
    }

    /// Bytes above which requests for pinned memory are not rounded to powers of two; none = no bound.
    #[must_use]
    pub fn pinned_max_round_threshold(&self) -> Option<u64> {
        self.pinned_max_round_threshold
    }

    /// Bytes above which pinned blocks are not kept for reuse; none = no bound.
    #[must_use]
    pub fn pinned_max_cached_size(&self) -> Option<u64> {
        self.pinned_max_cached_size
    }

    /// Whether requests that would take more than `per_process_memory_fraction` of the device are
    /// rejected before the driver is asked.
    #[must_use]
    pub fn throw_on_cudamalloc_oom(&self) -> bool {
        self.throw_on_cudamalloc_oom
    }

    /// Addresses that an expandable segment reserves, if not an eighth more than the device has.
    #[must_use]
    pub fn expandable_segments_reserve(&self) -> Option<Reserve> {
        self.expandable_segments_reserve
    }

    /// The same for segments of streams that are tagged with a class.
    #[must_use]
    pub fn expandable_segments_reserve_by_class(&self) -> &BTreeMap<String, Reserve> {
        &self.expandable_segments_reserve_by_class
    }

    /// The allocator behind the memory functions.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The string that was parsed last, as snapshots show it.
    #[must_use]
    pub fn last_settings(&self) -> &str {
        &self.last_settings
    }
}

/// Release and settings as a string: what matters at a glance.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("release", &format_args!("{}", self.release))
            .field("conf", &self.to_conf_string())
            .field("last_settings", &self.last_settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_pytorchs() {
        for release in Release::ALL {
            let config = Config::for_release(release);
            assert_eq!(config.release(), release);
            assert_eq!(config.max_split_size(), u64::MAX);
            assert_eq!(config.max_split_size_limit(), None);
            assert_eq!(config.max_non_split_rounding(), 20_971_520);
            assert_eq!(config.garbage_collection_threshold(), 0.0);
            assert_eq!(config.roundup_power2_divisions(), &[0; 16]);
            assert_eq!(config.large_segment_size(), 20_971_520);
            assert_eq!(config.per_process_memory_fraction(), 1.0);
            assert_eq!(config.pinned_num_register_threads(), 1);
            assert_eq!(config.pinned_reserve_segment_size(), 0);
            assert_eq!(config.backend(), Backend::Native);
            assert_eq!(config.last_settings(), "");
            assert!(!config.expandable_segments() && !config.release_lock_on_cudamalloc());
            assert!(!config.graph_capture_record_stream_reuse());
            assert!(!config.pinned_use_cuda_host_register());
            assert!(!config.pinned_use_background_threads());
            assert!(!config.pinned_free_catch_all() && !config.throw_on_cudamalloc_oom());
            assert_eq!(config.pinned_max_round_threshold(), None);
            assert_eq!(config.pinned_max_cached_size(), None);
            assert_eq!(config.expandable_segments_reserve(), None);
            assert!(config.expandable_segments_reserve_by_class().is_empty());
            assert_eq!(Config::parse("", release), Ok(config));
        }
        assert_eq!(Config::default(), Config::for_release(Release::default()));
    }

    #[test]
    fn divisions_are_looked_up_by_the_power_of_two_below() {
        let config = Config {
            roundup_power2_divisions: std::array::from_fn(|slot| 1 << slot),
            ..Config::default()
        };
        assert_eq!(config.divisions_for(0), 1);
        for power in 0..64_u32 {
            let slot = power.saturating_sub(20).min(15);
            let start = 1_u64 << power;
            for bytes in [start, start + start / 2, start + (start - 1)] {
                assert_eq!(config.divisions_for(bytes), 1 << slot, "{bytes}");
            }
        }
        assert_eq!(config.divisions_for(2 * MIB - 1), 1);
        assert_eq!(config.divisions_for(2 * MIB), 2);
        assert_eq!(config.divisions_for(32 << 30), 1 << 15);
    }
}
