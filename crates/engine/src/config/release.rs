//! Which PyTorch release is being followed, and what that decides.
//!
//! In:  a version as people and `torch.__version__` write it.
//! Out: a [`Release`], with one question per difference between the releases.
//!
//! No other file compares release numbers: it asks here, so the table of differences (section 26
//! of the specification) can be read, and extended, in one place.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A PyTorch release whose allocator is followed to the letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Release {
    /// 2.9, checked against 2.9.1.
    V2_9,
    /// 2.10, checked against 2.10.0.
    V2_10,
    /// 2.11, checked against 2.11.0.
    #[default]
    V2_11,
}

/// A version that is not one of the releases followed here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a PyTorch release that is followed here: write 2.9, 2.10 or 2.11 \
     (2.9.1 and 2.11.0+cu130 will do too)"
)]
pub struct ParseReleaseError {
    text: String,
}

impl Release {
    /// Every release, oldest first.
    pub const ALL: [Self; 3] = [Self::V2_9, Self::V2_10, Self::V2_11];

    /// The major and minor number, as in `2.11`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V2_9 => "2.9",
            Self::V2_10 => "2.10",
            Self::V2_11 => "2.11",
        }
    }

    // How requests are served.

    /// Of several active diversions that accept a stream, the one begun last gets the request;
    /// before 2.10 the one begun first.
    #[must_use]
    pub fn newest_diversion_wins(self) -> bool {
        self >= Self::V2_10
    }

    /// Pools marked `use_on_oom` are tried before any cache is given back; before 2.11 they come
    /// last, when everything else has failed.
    #[must_use]
    pub fn use_on_oom_before_reclaim(self) -> bool {
        self >= Self::V2_11
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

    /// Restoring a checkpoint accepts an expandable segment that has grown since.
    #[must_use]
    pub fn checkpoint_accepts_grown_segments(self) -> bool {
        self >= Self::V2_11
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

    /// `PYTORCH_ALLOC_CONF`, the variable without a vendor's name, is read.
    #[must_use]
    pub fn generic_variable_honoured(self) -> bool {
        self >= Self::V2_10
    }

    /// `max_split_size_mb` and `max_non_split_rounding_mb` may equal the large segment size;
    /// in 2.9 they must exceed it.
    #[must_use]
    pub fn split_size_may_equal_large_segment(self) -> bool {
        self >= Self::V2_10
    }

    /// In a list of divisions `>` fills from the slot after the last key; in 2.9 from the last
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
        self == Self::V2_9
    }

    /// A bad setting raises Python's `ValueError`; in 2.9 a `RuntimeError`.
    #[must_use]
    pub fn bad_setting_is_value_error(self) -> bool {
        self >= Self::V2_10
    }

    /// Every kind of white space is dropped; in 2.9 only the space itself, so that a tab becomes
    /// part of the word it touches.
    #[must_use]
    pub fn drops_all_white_space(self) -> bool {
        self >= Self::V2_10
    }

    /// The keys common to all accelerators are read by one parser and those of CUDA by a second
    /// one, which starts when the first has finished; in 2.9 one parser reads all.
    #[must_use]
    pub fn two_parsers(self) -> bool {
        self >= Self::V2_10
    }

    /// Whole numbers are read as a C `int`; from 2.10 on as an `unsigned long long`.
    #[must_use]
    pub fn reads_numbers_as_int(self) -> bool {
        self == Self::V2_9
    }

    // What recordings contain.

    /// `_record_memory_history` takes `skip_actions`.
    #[must_use]
    pub fn skip_actions(self) -> bool {
        self >= Self::V2_11
    }

    /// `memory_snapshot` takes `include_traces`.
    #[must_use]
    pub fn include_traces(self) -> bool {
        self >= Self::V2_11
    }

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
        let public = trimmed.split('+').next().unwrap_or_default();
        let public = public.strip_prefix('v').unwrap_or(public);
        let mut numbers = public.splitn(3, '.');
        let (major, minor, patch) = (numbers.next(), numbers.next(), numbers.next());
        let patch_is_number = patch.is_none_or(|p| p.starts_with(|c: char| c.is_ascii_digit()));
        let release = match (major, minor) {
            (Some("2"), Some("9")) => Some(Self::V2_9),
            (Some("2"), Some("10")) => Some(Self::V2_10),
            (Some("2"), Some("11")) => Some(Self::V2_11),
            _ => None,
        };
        release
            .filter(|_| patch_is_number)
            .ok_or_else(|| ParseReleaseError { text: trimmed.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_torch_writes_them() {
        for (text, release) in [
            ("2.9", Release::V2_9),
            ("2.9.1", Release::V2_9),
            ("2.10.0", Release::V2_10),
            ("2.11", Release::V2_11),
            (" v2.11.0 ", Release::V2_11),
            ("2.11.0+cu130", Release::V2_11),
            ("2.11.0a0+git1f2e3d", Release::V2_11),
        ] {
            assert_eq!(text.parse(), Ok(release), "{text}");
        }
        for release in Release::ALL {
            assert_eq!(release.to_string().parse(), Ok(release));
        }
    }

    #[test]
    fn an_unknown_version_says_which_are_known() {
        for text in ["", "2", "2.1", "2.8.0", "2.12.0", "3.9", "2.9x", "2.9.x", "2,9", "2.110"] {
            let message = text.parse::<Release>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{text}`")), "{message}");
            assert!(message.contains("2.9, 2.10 or 2.11"), "{message}");
        }
    }

    #[test]
    fn later_releases_are_greater_and_the_newest_is_the_default() {
        assert!(Release::V2_9 < Release::V2_10 && Release::V2_10 < Release::V2_11);
        assert_eq!(Release::default(), Release::V2_11);
    }

    #[test]
    fn each_difference_appears_in_the_release_of_the_table() {
        type Question = fn(Release) -> bool;
        let table: [(Question, [bool; 3]); 15] = [
            (Release::newest_diversion_wins, [false, true, true]),
            (Release::use_on_oom_before_reclaim, [false, false, true]),
            (Release::no_split_pools, [false, true, true]),
            (Release::large_segment_configurable, [false, false, true]),
            (Release::generic_variable_honoured, [false, true, true]),
            (Release::memory_fraction_configurable, [false, true, true]),
            (Release::split_size_may_equal_large_segment, [false, true, true]),
            (Release::division_tail_starts_after_last_key, [false, true, true]),
            (Release::bad_setting_is_value_error, [false, true, true]),
            (Release::separators_enforced, [true, false, false]),
            (Release::reparse_resets_non_split_rounding, [false, false, true]),
            (Release::skip_actions, [false, false, true]),
            (Release::include_traces, [false, false, true]),
            (Release::pinned_reserve_configurable, [false, true, true]),
            (Release::drops_all_white_space, [false, true, true]),
        ];
        for (row, (question, answers)) in table.into_iter().enumerate() {
            assert_eq!(Release::ALL.map(question), answers, "row {row}");
        }
    }
}
