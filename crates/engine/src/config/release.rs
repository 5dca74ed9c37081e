//! Which PyTorch release is being followed, and what that decides.
//!
//! In:  a version as people and `torch.__version__` write it.
//! Out: a [`Release`], with one question per difference between the releases.
//!
//! No other file compares release numbers: it asks here, so the table of differences can be read, and extended, in one place.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A PyTorch release whose allocator is followed to the letter.
///
/// Patch releases share their allocator: 2.12.0 and 2.12.1, 2.14.0 and 2.14.1 were compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Release {
    /// 2.8, checked against 2.8.0.
    V2_8,
    /// 2.9, checked against 2.9.1.
    V2_9,
    /// 2.10, checked against 2.10.0.
    V2_10,
    /// 2.11, checked against 2.11.0.
    V2_11,
    /// 2.12, checked against 2.12.1.
    V2_12,
    /// 2.13, checked against 2.13.0.
    V2_13,
    /// 2.14, checked against 2.14.1.
    V2_14,
    /// 2.15, checked against 2.15.0.
    #[default]
    V2_15,
}

/// Which of two free blocks of one stream and size serves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// The one at the lower address.
    Address,
    /// The one made first. A split makes its front part anew; what remains keeps its place in the
    /// order, and so does a block that absorbs others.
    Block,
    /// The one of the older segment; within a segment, the one at the lower address.
    Segment,
}

/// A version that is not one of the releases followed here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseReleaseError {
    /// Not a version of PyTorch.
    #[error(
        "`{0}` is not a version of PyTorch: write a release from {oldest} to {newest} \
         ({oldest}.0 and {newest}.0+cu130 will do too)",
        oldest = Release::OLDEST,
        newest = Release::NEWEST
    )]
    NotAVersion(String),
    /// A version older than the oldest release followed here.
    #[error(
        "PyTorch {0} is not followed here, the oldest release that is, is {oldest}: its rules may differ in \
         every point, so none are taken for it. Releases from {oldest} to {newest} can be asked for",
        oldest = Release::OLDEST,
        newest = Release::NEWEST
    )]
    TooOld(String),
    /// A version newer than the newest release followed here.
    #[error(
        "PyTorch {0} is newer than {newest}, the newest release followed here",
        newest = Release::NEWEST
    )]
    TooNew(String),
}

/// The release whose rules are nearest to those of some version of PyTorch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// The release followed.
    pub release: Release,
    /// The version that was asked for, if it is newer than any release followed here.
    unknown: Option<String>,
}

impl Nearest {
    /// What to tell whoever asked for a version that is not known yet; none for the releases that are.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let version = self.unknown.as_ref()?;
        let newest = self.release;
        Some(format!(
            "PyTorch {version} is newer than {newest}, the newest release followed here: the rules of {newest} \
             are taken, and may differ from its own"
        ))
    }
}

/// Reads what [`Release`] reads, and later versions too.
impl FromStr for Nearest {
    type Err = ParseReleaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(release) => Ok(Self { release, unknown: None }),
            Err(ParseReleaseError::TooNew(version)) => {
                Ok(Self { release: Release::NEWEST, unknown: Some(version) })
            }
            Err(error) => Err(error),
        }
    }
}

impl Release {
    /// Every release, oldest first.
    pub const ALL: [Self; 8] = [
        Self::V2_8,
        Self::V2_9,
        Self::V2_10,
        Self::V2_11,
        Self::V2_12,
        Self::V2_13,
        Self::V2_14,
        Self::V2_15,
    ];

    /// The oldest release followed.
    pub const OLDEST: Self = Self::V2_8;

    /// The newest release followed.
    pub const NEWEST: Self = Self::V2_15;

    /// The major and minor number, as in `2.11`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V2_8 => "2.8",
            Self::V2_9 => "2.9",
            Self::V2_10 => "2.10",
            Self::V2_11 => "2.11",
            Self::V2_12 => "2.12",
            Self::V2_13 => "2.13",
            Self::V2_14 => "2.14",
            Self::V2_15 => "2.15",
        }
    }

    /// The minor number of 2.x.
    fn minor(self) -> u64 {
        8 + self as u64
    }

    // How requests are served.

    /// Of several active diversions that accept a stream, the one begun last gets the request;
    /// before 2.10 the one begun first.
    #[must_use]
    pub fn newest_diversion_wins(self) -> bool {
        self >= Self::V2_10
    }

    /// Which of several free blocks of one stream and size serves first.
    #[must_use]
    pub fn tie(self) -> Tie {
        match self {
            Self::V2_8 | Self::V2_9 | Self::V2_10 | Self::V2_11 => Tie::Address,
            Self::V2_12 => Tie::Block,
            Self::V2_13 | Self::V2_14 | Self::V2_15 => Tie::Segment,
        }
    }

    /// An open pool scope counts as a graph capture: no events are polled, frees that wait for other
    /// streams are deferred, nothing is flushed. From 2.13 on only a capture that was begun as one does.
    #[must_use]
    pub fn pool_scope_is_capture(self) -> bool {
        self < Self::V2_13
    }

    /// Pools marked `use_on_oom` are tried before any cache is given back; before 2.11 they come
    /// last, when everything else has failed.
    #[must_use]
    pub fn use_on_oom_before_reclaim(self) -> bool {
        self >= Self::V2_11
    }

    /// A pool marked `use_on_oom` is searched, and its blocks are cut, as if expandable segments were off; before 2.10
    /// as any other pool.
    #[must_use]
    pub fn use_on_oom_ignores_expandable(self) -> bool {
        self >= Self::V2_10
    }

    /// A memory fraction of 1 that is set at run time removes the limit; before 2.10 it is a limit of the whole device,
    /// under which garbage may be collected.
    #[must_use]
    pub fn fraction_of_one_removes_limit(self) -> bool {
        self >= Self::V2_10
    }

    /// The memory limit is the device's share to the nearest byte; before 2.13 what lies behind the point is cut off, as
    /// it is of other shares in every release.
    #[must_use]
    pub fn memory_limit_is_rounded(self) -> bool {
        self >= Self::V2_13
    }

    /// The limit that a memory fraction makes on a device of `total` bytes.
    #[must_use]
    pub fn memory_limit(self, total: u64, fraction: f64) -> u64 {
        let share = fraction * total as f64;
        // As PyTorch computes it: a product of doubles.
        (if self.memory_limit_is_rounded() { share.round() } else { share }) as u64
    }

    /// Destroying a pool takes its `use_on_oom` mark away; before 2.11 the mark outlives it.
    #[must_use]
    pub fn destroyed_pool_loses_use_on_oom(self) -> bool {
        self >= Self::V2_11
    }

    /// A pool can be marked `no_split`.
    #[must_use]
    pub fn no_split_pools(self) -> bool {
        self >= Self::V2_10
    }

    /// A pool loses its `no_split` mark with its last use; before 2.14 the mark outlives it.
    #[must_use]
    pub fn released_pool_loses_no_split(self) -> bool {
        self >= Self::V2_14
    }

    /// A range that is too small for the request it was reserved for is given back; before 2.15 it stays.
    #[must_use]
    pub fn gives_back_small_ranges(self) -> bool {
        self >= Self::V2_15
    }

    // What the settings can say.

    /// The size of large segments is a setting (`large_segment_size_mb`) and not a constant.
    #[must_use]
    pub fn large_segment_configurable(self) -> bool {
        self >= Self::V2_11
    }

    /// `per_process_memory_fraction` is a setting.
    #[must_use]
    pub fn memory_fraction_configurable(self) -> bool {
        self >= Self::V2_10
    }

    /// `pinned_reserve_segment_size_mb` is a setting.
    #[must_use]
    pub fn pinned_reserve_configurable(self) -> bool {
        self >= Self::V2_10
    }

    /// `graph_capture_record_stream_reuse` is a setting.
    #[must_use]
    pub fn capture_reuse_configurable(self) -> bool {
        self >= Self::V2_9
    }

    /// `throw_on_cudamalloc_oom` is a setting, and rejected requests are counted
    /// (`num_oom_rejections`).
    #[must_use]
    pub fn rejection_configurable(self) -> bool {
        self >= Self::V2_12
    }

    /// `pinned_free_catch_all` is a setting.
    #[must_use]
    pub fn pinned_catch_all_configurable(self) -> bool {
        self >= Self::V2_12
    }

    /// `pinned_max_round_threshold_mb` and `pinned_max_cached_size_mb` are settings.
    #[must_use]
    pub fn pinned_bounds_configurable(self) -> bool {
        self >= Self::V2_13
    }

    /// `expandable_segments_reserve` and `expandable_segments_reserve_by_class` are settings.
    #[must_use]
    pub fn reserve_configurable(self) -> bool {
        self >= Self::V2_15
    }

    /// `max_split_size_mb` and `max_non_split_rounding_mb` may equal the large segment size;
    /// before 2.10 they must exceed it.
    #[must_use]
    pub fn split_size_may_equal_large_segment(self) -> bool {
        self >= Self::V2_10
    }

    /// In a list of divisions `>` fills from the slot after the last key; before 2.10 from the last
    /// key's own slot, overwriting it.
    #[must_use]
    pub fn division_tail_starts_after_last_key(self) -> bool {
        self >= Self::V2_10
    }

    /// Parsing again sets `max_non_split_rounding` back to the large segment size.
    #[must_use]
    pub fn reparse_resets_non_split_rounding(self) -> bool {
        self >= Self::V2_11
    }

    // How the settings are read.

    /// A wrong separator is an error; from 2.10 on any token does in its place.
    #[must_use]
    pub fn separators_enforced(self) -> bool {
        self < Self::V2_10
    }

    /// A bad setting raises Python's `ValueError`; before 2.10 a `RuntimeError`.
    #[must_use]
    pub fn bad_setting_is_value_error(self) -> bool {
        self >= Self::V2_10
    }

    /// Every kind of white space is dropped; before 2.10 only the space itself, so that a tab becomes
    /// part of the word it touches.
    #[must_use]
    pub fn drops_all_white_space(self) -> bool {
        self >= Self::V2_10
    }

    /// The keys common to all accelerators are read by one parser and those of CUDA by a second
    /// one, which starts when the first has finished; before 2.10 one parser reads all.
    #[must_use]
    pub fn two_parsers(self) -> bool {
        self >= Self::V2_10
    }

    /// Whole numbers are read as a C `int`; from 2.10 on as an `unsigned long long`.
    #[must_use]
    pub fn reads_numbers_as_int(self) -> bool {
        self < Self::V2_10
    }

    // What the figures contain.

    /// `memory_stats` has `num_oom_rejections`.
    #[must_use]
    pub fn stats_have_rejections(self) -> bool {
        self >= Self::V2_12
    }

    /// `memory_stats` has `reserved_bytes_by_private_pools`.
    #[must_use]
    pub fn stats_have_private_pools(self) -> bool {
        self >= Self::V2_13
    }

    // What recordings contain.

    /// Trace entries carry `user_metadata`.
    #[must_use]
    pub fn trace_has_user_metadata(self) -> bool {
        self >= Self::V2_10
    }

    /// Trace entries may carry `forward_frames`.
    #[must_use]
    pub fn trace_has_forward_frames(self) -> bool {
        self >= Self::V2_11
    }

    /// Trace entries carry `pool_id`: the pool that each is about.
    #[must_use]
    pub fn trace_has_pool_ids(self) -> bool {
        self >= Self::V2_12
    }

    /// Traces may have entries of the action `annotate`.
    #[must_use]
    pub fn trace_has_annotations(self) -> bool {
        self >= Self::V2_14
    }

    /// Trace entries carry `internal_metadata`.
    #[must_use]
    pub fn trace_has_internal_metadata(self) -> bool {
        self >= Self::V2_15
    }

    /// Snapshots list pinned memory: `host_segments` and `host_traces`.
    #[must_use]
    pub fn snapshot_has_host_memory(self) -> bool {
        self >= Self::V2_14
    }

    /// The settings in a snapshot have `graph_capture_record_stream_reuse`.
    #[must_use]
    pub fn recorded_settings_have_capture_reuse(self) -> bool {
        self >= Self::V2_9
    }

    /// The settings in a snapshot have `max_round_threshold` and `max_cached_size`.
    #[must_use]
    pub fn recorded_settings_have_pinned_bounds(self) -> bool {
        self >= Self::V2_13
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads `2.11`, `v2.11`, `2.11.0`, `2.11.0+cu130`, `2.11.0a0+git1234`. What follows the minor
/// number is not looked at: patch releases share their allocator.
impl FromStr for Release {
    type Err = ParseReleaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let not_a_version = || ParseReleaseError::NotAVersion(trimmed.to_owned());
        let (major, minor) = numbers_of(trimmed).ok_or_else(not_a_version)?;
        let known = |release: &Self| major == 2 && release.minor() == minor;
        let version = || trimmed.trim_start_matches('v').to_owned();
        Self::ALL.into_iter().find(known).ok_or_else(|| {
            if (major, minor) < (2, Self::OLDEST.minor()) {
                ParseReleaseError::TooOld(version())
            } else {
                ParseReleaseError::TooNew(version())
            }
        })
    }
}

/// Major and minor number of a version.
fn numbers_of(version: &str) -> Option<(u64, u64)> {
    let public = version.split('+').next().unwrap_or_default();
    let public = public.strip_prefix('v').unwrap_or(public);
    let mut parts = public.splitn(3, '.');
    // Digits alone: `parse` would take a sign too.
    let mut number =
        || parts.next().filter(|part| part.bytes().all(|b| b.is_ascii_digit()))?.parse().ok();
    let numbers = (number()?, number()?);
    let patch_is_number = parts.next().is_none_or(|p| p.starts_with(|c: char| c.is_ascii_digit()));
    patch_is_number.then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_torch_writes_them() {
        for (text, release) in [
            ("2.8", Release::V2_8),
            ("2.9", Release::V2_9),
            ("2.9.1", Release::V2_9),
            ("2.10.0", Release::V2_10),
            ("2.11", Release::V2_11),
            (" v2.11.0 ", Release::V2_11),
            ("2.11.0+cu130", Release::V2_11),
            ("2.11.0a0+git1f2e3d", Release::V2_11),
            ("2.15.0", Release::V2_15),
        ] {
            assert_eq!(text.parse(), Ok(release), "{text}");
        }
        for release in Release::ALL {
            assert_eq!(release.to_string().parse(), Ok(release));
        }
    }

    #[test]
    fn what_is_no_version_says_which_are_known() {
        for text in
            ["", "2", "2.", "2.9x", "2.9.x", "2,9", "-2.9", "2.+9", "two", "2.99999999999999999999"]
        {
            let error = text.parse::<Release>().unwrap_err();
            assert_eq!(error, ParseReleaseError::NotAVersion(text.to_owned()));
            let message = error.to_string();
            assert!(message.contains(&format!("`{text}`")), "{message}");
            assert!(message.contains("2.8 to 2.15"), "{message}");
            assert_eq!(text.parse::<Nearest>(), Err(error));
        }
    }

    #[test]
    fn older_versions_are_refused() {
        for text in ["2.7.1", "2.1", "1.13.1", "0.4"] {
            let error = text.parse::<Nearest>().unwrap_err();
            assert_eq!(error, ParseReleaseError::TooOld(text.to_owned()));
            let message = error.to_string();
            assert!(message.starts_with(&format!("PyTorch {text} ")), "{message}");
            assert!(message.contains("2.8"), "{message}");
        }
    }

    #[test]
    fn newer_versions_get_the_nearest_rules_and_a_sentence() {
        for text in ["2.16", "2.16.0", "v2.110", "3.0.0a0"] {
            assert!(matches!(text.parse::<Release>(), Err(ParseReleaseError::TooNew(_))), "{text}");
            let nearest: Nearest = text.parse().unwrap();
            assert_eq!(nearest.release, Release::NEWEST);
            let note = nearest.note().unwrap();
            assert!(
                note.starts_with(&format!("PyTorch {} is newer than 2.15", &text.replace('v', ""))),
                "{note}"
            );
        }
        let known: Nearest = "2.9.1".parse().unwrap();
        assert_eq!((known.release, known.note()), (Release::V2_9, None));
    }

    #[test]
    fn later_releases_are_greater_and_the_newest_is_the_default() {
        assert!(Release::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(Release::ALL.first(), Some(&Release::OLDEST));
        assert_eq!(Release::ALL.last(), Some(&Release::NEWEST));
        assert_eq!(Release::default(), Release::NEWEST);
    }

    #[test]
    fn each_difference_appears_in_the_release_of_the_table() {
        type Question = fn(Release) -> bool;
        // Questions that become true with a release, and those that cease to be.
        let since: [(Question, Release); 30] = [
            (Release::capture_reuse_configurable, Release::V2_9),
            (Release::recorded_settings_have_capture_reuse, Release::V2_9),
            (Release::newest_diversion_wins, Release::V2_10),
            (Release::no_split_pools, Release::V2_10),
            (Release::use_on_oom_ignores_expandable, Release::V2_10),
            (Release::fraction_of_one_removes_limit, Release::V2_10),
            (Release::memory_fraction_configurable, Release::V2_10),
            (Release::split_size_may_equal_large_segment, Release::V2_10),
            (Release::division_tail_starts_after_last_key, Release::V2_10),
            (Release::bad_setting_is_value_error, Release::V2_10),
            (Release::pinned_reserve_configurable, Release::V2_10),
            (Release::drops_all_white_space, Release::V2_10),
            (Release::two_parsers, Release::V2_10),
            (Release::trace_has_user_metadata, Release::V2_10),
            (Release::use_on_oom_before_reclaim, Release::V2_11),
            (Release::large_segment_configurable, Release::V2_11),
            (Release::reparse_resets_non_split_rounding, Release::V2_11),
            (Release::rejection_configurable, Release::V2_12),
            (Release::pinned_catch_all_configurable, Release::V2_12),
            (Release::stats_have_rejections, Release::V2_12),
            (Release::memory_limit_is_rounded, Release::V2_13),
            (Release::pinned_bounds_configurable, Release::V2_13),
            (Release::stats_have_private_pools, Release::V2_13),
            (Release::recorded_settings_have_pinned_bounds, Release::V2_13),
            (Release::released_pool_loses_no_split, Release::V2_14),
            (Release::trace_has_annotations, Release::V2_14),
            (Release::snapshot_has_host_memory, Release::V2_14),
            (Release::reserve_configurable, Release::V2_15),
            (Release::gives_back_small_ranges, Release::V2_15),
            (Release::trace_has_internal_metadata, Release::V2_15),
        ];
        let until: [(Question, Release); 3] = [
            (Release::separators_enforced, Release::V2_10),
            (Release::reads_numbers_as_int, Release::V2_10),
            (Release::pool_scope_is_capture, Release::V2_13),
        ];
        for release in Release::ALL {
            for (row, (question, first)) in since.into_iter().enumerate() {
                assert_eq!(question(release), release >= first, "{release}, row {row}");
            }
            for (row, (question, first)) in until.into_iter().enumerate() {
                assert_eq!(question(release), release < first, "{release}, row {row}");
            }
        }
        use Tie::{Address, Block, Segment};
        assert_eq!(
            Release::ALL.map(Release::tie),
            [Address, Address, Address, Address, Block, Segment, Segment, Segment]
        );
    }
}
