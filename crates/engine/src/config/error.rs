//! Why a setting was refused.
//!
//! A [`ConfigError`] names the key, the value, what would have been allowed and where it stood,
//! and the exception that PyTorch raises for the same mistake.

use std::fmt;

use thiserror::Error;

use super::Release;
use super::bounds::allowed;
use super::key::{Key, hint};

/// Longest part of a key or value that a message repeats. A chosen number: more than any key has.
const SHOWN: usize = 60;

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{}` ({place}): {problem}; PyTorch {release} takes {allowed}", self.setting())]
pub struct ConfigError {
    key: Box<str>,
    value: Option<Box<str>>,
    problem: Problem,
    allowed: Box<str>,
    place: Place,
    release: Release,
}

/// The Python exception that PyTorch raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfigErrorKind {
    /// `ValueError`: an unknown key or a bad value from 2.10 on, and what is no number at all.
    ValueError,
    /// `RuntimeError`: a string that breaks off or lacks a separator, a changed backend, and
    /// before 2.10 unknown keys and bad values too.
    RuntimeError,
    /// `IndexError`: a number too large for the type it is read into. The C++ exception is
    /// `std::out_of_range`, for which that is the binding's translation.
    IndexError,
}

/// What is wrong, apart from where and with which value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Problem {
    #[error("not a known key")]
    UnknownKey,
    #[error("not a known key, {0}")]
    UnknownKeyWithHint(Box<str>),
    #[error("the settings end before its value")]
    MissingValue,
    #[error("the settings end where `{0}` should follow")]
    MissingSeparator(char),
    #[error("`{0}` belongs here")]
    WrongSeparator(char),
    #[error("the list is not closed with `]`")]
    UnclosedList,
    #[error("neither `True` nor `False`, in this spelling")]
    NotABoolean,
    #[error("not a number")]
    NotANumber,
    #[error("a number too large, or too close to zero, to be read")]
    NumberTooLarge,
    #[error("out of range")]
    OutOfRange,
    #[error("not a power of two")]
    NotAPowerOfTwo,
    #[error("not a whole number of MiB")]
    NotWholeMib,
    #[error("not a backend")]
    UnknownBackend,
    #[error("the backend was chosen at start and cannot change")]
    BackendFixed,
}

/// Where a setting stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At a byte of a settings string, which may have come from a variable of the environment.
    Settings { at: usize, variable: Option<&'static str> },
    /// In a call to the builder.
    Builder,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings { at, variable: None } => write!(f, "byte {at} of the settings"),
            Self::Settings { at, variable: Some(name) } => write!(f, "byte {at} of {name}"),
            Self::Builder => f.write_str("given to the builder"),
        }
    }
}

impl ConfigError {
    /// A known key with a value that is missing or refused.
    pub(super) fn refused(
        key: Key,
        value: Option<&str>,
        problem: Problem,
        place: Place,
        release: Release,
        large_segment_size: u64,
    ) -> Self {
        Self {
            key: key.name().into(),
            value: value.map(Into::into),
            problem,
            allowed: allowed(key, release, large_segment_size).into(),
            place,
            release,
        }
    }

    /// A key that the release does not have.
    pub(super) fn unknown_key(key: &str, place: Place, release: Release) -> Self {
        let names: Vec<_> = Key::known_to(release).map(Key::name).collect();
        let problem = match hint(key, release) {
            Some(hint) => Problem::UnknownKeyWithHint(hint.into()),
            None => Problem::UnknownKey,
        };
        let allowed = format!("the keys {}", names.join(", ")).into();
        Self { key: key.into(), value: None, problem, allowed, place, release }
    }

    /// The same error in a string that came from this variable.
    pub(super) fn in_variable(mut self, name: &'static str) -> Self {
        if let Place::Settings { variable, .. } = &mut self.place {
            *variable = Some(name);
        }
        self
    }

    /// The key, as it was written if it is not known.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value that was refused; none if the key was, or the value is missing.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// What would have been taken, in words.
    #[must_use]
    pub fn allowed(&self) -> &str {
        &self.allowed
    }

    /// The byte of the settings string at which the trouble begins; its length if something is
    /// missing at the end. None for the builder.
    #[must_use]
    pub fn position(&self) -> Option<usize> {
        match self.place {
            Place::Settings { at, .. } => Some(at),
            Place::Builder => None,
        }
    }

    /// The variable of the environment that holds the settings, if they came from one.
    #[must_use]
    pub fn variable(&self) -> Option<&'static str> {
        match self.place {
            Place::Settings { variable, .. } => variable,
            Place::Builder => None,
        }
    }

    /// The release whose rules were applied.
    #[must_use]
    pub fn release(&self) -> Release {
        self.release
    }

    /// The exception that PyTorch raises for this.
    #[must_use]
    pub fn kind(&self) -> ConfigErrorKind {
        match self.problem {
            Problem::NotANumber => ConfigErrorKind::ValueError,
            Problem::NumberTooLarge => ConfigErrorKind::IndexError,
            Problem::MissingValue
            | Problem::MissingSeparator(_)
            | Problem::WrongSeparator(_)
            | Problem::UnclosedList
            | Problem::BackendFixed => ConfigErrorKind::RuntimeError,
            _ if self.release.bad_setting_is_value_error() => ConfigErrorKind::ValueError,
            _ => ConfigErrorKind::RuntimeError,
        }
    }

    /// `key:value`, or the key alone.
    fn setting(&self) -> String {
        match &self.value {
            Some(value) => format!("{}:{}", shown(&self.key), shown(value)),
            None => shown(&self.key),
        }
    }
}

/// `text` for a message: control characters escaped, cut if long.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for ConfigErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ValueError => "ValueError",
            Self::RuntimeError => "RuntimeError",
            Self::IndexError => "IndexError",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use ConfigErrorKind::{IndexError, RuntimeError, ValueError};

    fn refuse(conf: &str, release: Release) -> ConfigError {
        Config::parse(conf, release).expect_err(conf)
    }

    #[test]
    fn a_refused_value_is_told_in_one_sentence() {
        assert_eq!(
            refuse("expandable_segments:True,max_split_size_mb:10", Release::V2_11).to_string(),
            "`max_split_size_mb:10` (byte 43 of the settings): out of range; \
             PyTorch 2.11 takes a whole number of MB, at least 20"
        );
    }

    #[test]
    fn each_refusal_names_key_value_place_and_what_is_allowed() {
        let rows: &[(&str, &str, Option<&str>, usize, &str)] = &[
            ("max_split_size_mb:10", "max_split_size_mb", Some("10"), 18, "at least 20"),
            (
                "max_non_split_rounding_mb:19",
                "max_non_split_rounding_mb",
                Some("19"),
                26,
                "at least 20",
            ),
            (
                "garbage_collection_threshold:1",
                "garbage_collection_threshold",
                Some("1"),
                29,
                "strictly between 0 and 1",
            ),
            (
                "per_process_memory_fraction:1.1",
                "per_process_memory_fraction",
                Some("1.1"),
                28,
                "from 0 to 1",
            ),
            ("large_segment_size_mb:10", "large_segment_size_mb", Some("10"), 22, "more than 10"),
            (
                "roundup_power2_divisions:3",
                "roundup_power2_divisions",
                Some("3"),
                25,
                "power of two",
            ),
            (
                "roundup_power2_divisions:[4:3]",
                "roundup_power2_divisions",
                Some("3"),
                28,
                "0 or powers of two",
            ),
            (
                "roundup_power2_divisions:[3:4]",
                "roundup_power2_divisions",
                Some("3"),
                26,
                "powers of two in MB",
            ),
            ("roundup_power2_divisions:[4:4", "roundup_power2_divisions", None, 29, "a list"),
            (
                "expandable_segments:true",
                "expandable_segments",
                Some("true"),
                20,
                "`True` or `False`",
            ),
            ("expandable_segments", "expandable_segments", None, 19, "`True` or `False`"),
            ("expandable_segments:", "expandable_segments", None, 20, "`True` or `False`"),
            ("pinned_num_register_threads:3", "pinned_num_register_threads", Some("3"), 28, "128"),
            (
                "pinned_num_register_threads:256",
                "pinned_num_register_threads",
                Some("256"),
                28,
                "128",
            ),
            (
                "pinned_reserve_segment_size_mb:0",
                "pinned_reserve_segment_size_mb",
                Some("0"),
                31,
                "more than 0",
            ),
            ("backend:malloc", "backend", Some("malloc"), 8, "`native` or `cudaMallocAsync`"),
            ("max_split_size_mb:many", "max_split_size_mb", Some("many"), 18, "whole number of MB"),
            ("no_such_key:1", "no_such_key", None, 0, "max_split_size_mb"),
        ];
        for &(conf, key, value, at, allowed) in rows {
            let error = refuse(conf, Release::V2_11);
            assert_eq!(
                (error.key(), error.value(), error.position()),
                (key, value, Some(at)),
                "{conf}"
            );
            let message = error.to_string();
            assert!(error.allowed().contains(allowed), "{message}");
            for part in [key, value.unwrap_or(key), allowed, &format!("byte {at} "), "2.11"] {
                assert!(message.contains(part), "{message} should contain {part}");
            }
        }
    }

    #[test]
    fn the_exception_depends_on_the_mistake_and_the_release() {
        let rows: &[(&str, ConfigErrorKind, ConfigErrorKind)] = &[
            ("no_such_key:1", RuntimeError, ValueError),
            ("max_split_size_mb:10", RuntimeError, ValueError),
            ("garbage_collection_threshold:0", RuntimeError, ValueError),
            ("expandable_segments:yes", RuntimeError, ValueError),
            ("backend:malloc", RuntimeError, ValueError),
            ("roundup_power2_divisions:0", RuntimeError, ValueError),
            ("max_split_size_mb:x", ValueError, ValueError),
            ("garbage_collection_threshold:x", ValueError, ValueError),
            ("max_split_size_mb:99999999999999999999", IndexError, IndexError),
            ("expandable_segments:", RuntimeError, RuntimeError),
            ("expandable_segments", RuntimeError, RuntimeError),
            ("roundup_power2_divisions:[4:4", RuntimeError, RuntimeError),
            ("backend:native,backend:cudaMallocAsync", RuntimeError, RuntimeError),
        ];
        for &(conf, before, later) in rows {
            for release in Release::ALL {
                let wanted = if release < Release::V2_10 { before } else { later };
                assert_eq!(refuse(conf, release).kind(), wanted, "{release}: {conf}");
            }
        }
        for (conf, until) in [
            ("throw_on_cudamalloc_oom:True", Release::V2_11),
            ("pinned_free_catch_all:True", Release::V2_11),
            ("pinned_max_cached_size_mb:1", Release::V2_12),
            ("expandable_segments_reserve:0.5", Release::V2_14),
            ("expandable_segments_handle_type:posix_fd", Release::NEWEST),
        ] {
            let releases = Release::ALL.into_iter();
            for release in releases.filter(|&release| Release::V2_10 <= release && release <= until)
            {
                assert_eq!(refuse(conf, release).kind(), ValueError, "{release}: {conf}");
            }
        }
    }

    #[test]
    fn a_key_of_a_later_release_is_recognised_as_such() {
        let message = refuse("throw_on_cudamalloc_oom:True", Release::V2_11).to_string();
        assert!(message.contains("it came with PyTorch 2.12"), "{message}");
        let message = refuse("large_segment_size_mb:32", Release::V2_10).to_string();
        assert!(message.contains("it came with PyTorch 2.11"), "{message}");
    }

    #[test]
    fn long_and_unprintable_text_is_cut_and_escaped() {
        let message = refuse(&format!("a\x1b{}:1", "b".repeat(1000)), Release::V2_11).to_string();
        assert!(message.starts_with("`a\\u{1b}bbb"), "{message}");
        assert!(message.contains("bb…`"), "{message}");
    }
}
