//! What each setting may be: one check per setting, for the parser and the builder alike.
//!
//! In:  a number, already read.
//! Out: the value to store (sizes in bytes), or the [`Problem`] with it.
//!
//! Numbers cannot overflow: a size of more MB than bytes fit into 64 bits is the largest whole
//! number of MB that does fit, [`MAX_MB`]. PyTorch does the same for all sizes but
//! `pinned_reserve_segment_size_mb`, whose product wraps around there.

use super::error::Problem;
use super::key::Key;
use super::{Backend, MIB, Release, Reserve};

/// Large segments, unless `large_segment_size_mb` says otherwise.
pub(super) const DEFAULT_LARGE_SEGMENT_SIZE: u64 = 20 * MIB;

/// Requests of this many MB get segments of their own, so large segments must exceed it.
const MIN_LARGE_ALLOC_MB: u64 = 10;

/// The most MB whose bytes fit into 64 bits.
pub(super) const MAX_MB: u64 = u64::MAX / MIB;

/// The most threads that register pinned memory.
const MAX_REGISTER_THREADS: u64 = 128;

/// What a key takes, to complete "PyTorch 2.11 takes …".
pub(super) fn allowed(key: Key, release: Release, large_segment_size: u64) -> String {
    let segment = large_segment_size / MIB;
    match key {
        Key::LargeSegmentSizeMb => {
            format!("a whole number of MB, more than {MIN_LARGE_ALLOC_MB}")
        }
        Key::MaxSplitSizeMb | Key::MaxNonSplitRoundingMb => {
            let bound =
                if release.split_size_may_equal_large_segment() { "at least" } else { "more than" };
            format!("a whole number of MB, {bound} {segment}")
        }
        Key::PinnedReserveSegmentSizeMb => "a whole number of MB, more than 0".into(),
        Key::GarbageCollectionThreshold => "a number strictly between 0 and 1".into(),
        Key::PerProcessMemoryFraction => "a number from 0 to 1".into(),
        Key::PinnedNumRegisterThreads => {
            format!("a power of two, at most {MAX_REGISTER_THREADS}")
        }
        Key::RoundupPower2Divisions => "a power of two, or a list as in `[256:1,512:2,>:4]` whose \
             keys are powers of two in MB and whose values are 0 or powers of two"
            .into(),
        Key::Backend => {
            format!("`{}` or `{}`", Backend::Native, Backend::CudaMallocAsync)
        }
        Key::PinnedMaxRoundThresholdMb | Key::PinnedMaxCachedSizeMb => "a whole number of MB".into(),
        Key::ExpandableSegmentsReserve => {
            "a positive share of the device's memory, as in `0.5`, or a size, as in `40G`".into()
        }
        Key::ExpandableSegmentsReserveByClass => {
            "a list of classes with a share of the device's memory or a size each, as in `[a:0.25,b:2G]`".into()
        }
        Key::PinnedFreeCatchAll
        | Key::ThrowOnCudamallocOom
        | Key::ExpandableSegments
        | Key::PinnedUseBackgroundThreads
        | Key::ReleaseLockOnCudamalloc
        | Key::GraphCaptureRecordStreamReuse
        | Key::PinnedUseCudaHostRegister => "`True` or `False`".into(),
    }
}

/// `large_segment_size_mb`.
pub(super) fn large_segment_size(mb: u64) -> Result<u64, Problem> {
    if mb > MIN_LARGE_ALLOC_MB { Ok(bytes(mb)) } else { Err(Problem::OutOfRange) }
}

/// `max_split_size_mb` and `max_non_split_rounding_mb`, which share their bound.
pub(super) fn split_size(
    mb: u64,
    release: Release,
    large_segment_size: u64,
) -> Result<u64, Problem> {
    let least = large_segment_size / MIB;
    let enough = mb > least || (mb == least && release.split_size_may_equal_large_segment());
    if enough { Ok(bytes(mb)) } else { Err(Problem::OutOfRange) }
}

/// `pinned_reserve_segment_size_mb`.
pub(super) fn pinned_reserve_segment_size(mb: u64) -> Result<u64, Problem> {
    if mb > 0 { Ok(bytes(mb)) } else { Err(Problem::OutOfRange) }
}

/// `pinned_max_round_threshold_mb` and `pinned_max_cached_size_mb`, which may be anything.
pub(super) fn pinned_bound(mb: u64) -> Result<u64, Problem> {
    Ok(bytes(mb))
}

/// A value of `expandable_segments_reserve` that a string can give.
pub(super) fn reserve(value: Reserve) -> Result<Reserve, Problem> {
    if value.is_valid() { Ok(value) } else { Err(Problem::OutOfRange) }
}

/// `garbage_collection_threshold`.
pub(super) fn garbage_collection_threshold(value: f64) -> Result<f64, Problem> {
    // Normal: no NaN, and none of the tiny numbers that `strtod` refuses to read.
    if value.is_normal() && value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err(Problem::OutOfRange)
    }
}

/// `per_process_memory_fraction`.
pub(super) fn memory_fraction(value: f64) -> Result<f64, Problem> {
    let readable = value.is_normal() || value == 0.0;
    if readable && (0.0..=1.0).contains(&value) { Ok(value) } else { Err(Problem::OutOfRange) }
}

/// `pinned_num_register_threads`.
pub(super) fn register_threads(count: u64) -> Result<u64, Problem> {
    if !count.is_power_of_two() {
        Err(Problem::NotAPowerOfTwo)
    } else if count > MAX_REGISTER_THREADS {
        Err(Problem::OutOfRange)
    } else {
        Ok(count)
    }
}

/// `roundup_power2_divisions` for all sizes at once.
pub(super) fn divisions_for_all(divisions: u64) -> Result<u64, Problem> {
    if divisions.is_power_of_two() { Ok(divisions) } else { Err(Problem::NotAPowerOfTwo) }
}

/// The value of a list entry of `roundup_power2_divisions`, where 0 switches rounding off.
pub(super) fn divisions_for_slot(divisions: u64) -> Result<u64, Problem> {
    if divisions == 0 { Ok(0) } else { divisions_for_all(divisions) }
}

/// A size of the builder, in the MB that the parser would have read.
pub(super) fn whole_mb(bytes: u64, release: Release) -> Result<u64, Problem> {
    if bytes.is_multiple_of(MIB) {
        readable(bytes / MIB, release)
    } else {
        Err(Problem::NotWholeMib)
    }
}

/// A number of the builder, refused if a settings string of the release cannot express it.
pub(super) fn readable(number: u64, release: Release) -> Result<u64, Problem> {
    if release.reads_numbers_as_int() && number > i32::MAX as u64 {
        Err(Problem::NumberTooLarge)
    } else {
        Ok(number)
    }
}

fn bytes(mb: u64) -> u64 {
    mb.min(MAX_MB) * MIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_bound_is_strict_before_2_10_only() {
        let least = |release| (0..64).find(|&mb| split_size(mb, release, 20 * MIB).is_ok());
        assert_eq!(Release::ALL.map(least), [21, 21, 20, 20, 20, 20, 20, 20].map(Some));
    }

    #[test]
    fn the_split_bound_follows_the_large_segment_size() {
        assert_eq!(split_size(31, Release::V2_11, 32 * MIB), Err(Problem::OutOfRange));
        assert_eq!(split_size(32, Release::V2_11, 32 * MIB), Ok(32 * MIB));
    }

    #[test]
    fn large_segments_exceed_the_size_that_gets_its_own_segment() {
        assert_eq!(large_segment_size(10), Err(Problem::OutOfRange));
        assert_eq!(large_segment_size(11), Ok(11 * MIB));
    }

    #[test]
    fn sizes_saturate_at_the_last_whole_mb() {
        let largest = 0xffff_ffff_fff0_0000;
        for mb in [MAX_MB, MAX_MB + 1, u64::MAX] {
            assert_eq!(large_segment_size(mb), Ok(largest));
            assert_eq!(split_size(mb, Release::V2_9, 20 * MIB), Ok(largest));
            assert_eq!(pinned_reserve_segment_size(mb), Ok(largest));
        }
    }

    #[test]
    fn fractions_have_open_or_closed_ends() {
        for bad in [0.0, 1.0, -0.1, 1.5, f64::NAN, f64::INFINITY] {
            assert!(garbage_collection_threshold(bad).is_err(), "{bad}");
        }
        for good in [f64::MIN_POSITIVE, 0.5, 0.999_999] {
            assert_eq!(garbage_collection_threshold(good), Ok(good));
        }
        for bad in [-0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert!(memory_fraction(bad).is_err(), "{bad}");
        }
        for good in [0.0, 0.5, 1.0] {
            assert_eq!(memory_fraction(good), Ok(good));
        }
    }

    #[test]
    fn threads_are_a_power_of_two_up_to_128() {
        let good: Vec<_> = (0..1000).filter(|&n| register_threads(n).is_ok()).collect();
        assert_eq!(good, [1, 2, 4, 8, 16, 32, 64, 128]);
    }

    #[test]
    fn zero_divisions_are_for_single_slots_only() {
        assert_eq!(divisions_for_all(0), Err(Problem::NotAPowerOfTwo));
        assert_eq!(divisions_for_slot(0), Ok(0));
        assert_eq!(divisions_for_all(1), Ok(1));
        for bad in [3, 6, u64::MAX] {
            assert!(divisions_for_all(bad).is_err() && divisions_for_slot(bad).is_err(), "{bad}");
        }
    }
}
