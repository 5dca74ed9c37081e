//! What a snapshot recorded about its settings, laid over the string that it recorded too.
//!
//! In:  the separate fields of a snapshot's `allocator_settings`.
//! Out: the [`Config`] with those fields, and a list of the ones that say something else than the
//!      string did.
//!
//! The fields win: the string is only the last one parsed, and settings that earlier strings left
//! behind, or that were changed by other means, show in the fields alone.

use std::fmt;

use super::key::Key;
use super::{Config, DIVISION_SLOTS, MIB};

/// The settings that snapshots list one by one; none for those that one lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedSettings {
    /// Bytes, as the signed number that snapshots contain: -1 = unlimited.
    pub max_split_size: Option<i64>,
    /// See [`Config::garbage_collection_threshold`].
    pub garbage_collection_threshold: Option<f64>,
    /// See [`Config::expandable_segments`].
    pub expandable_segments: Option<bool>,
    /// See [`Config::roundup_power2_divisions`]; a snapshot lists the slots under `"1"`, `"2"`,
    /// `"4"` to `"32768"`.
    pub roundup_power2_divisions: Option<[u64; DIVISION_SLOTS]>,
    /// See [`Config::release_lock_on_cudamalloc`].
    pub release_lock_on_cudamalloc: Option<bool>,
    /// See [`Config::graph_capture_record_stream_reuse`].
    pub graph_capture_record_stream_reuse: Option<bool>,
    /// See [`Config::pinned_use_cuda_host_register`].
    pub pinned_use_cuda_host_register: Option<bool>,
    /// See [`Config::pinned_num_register_threads`].
    pub pinned_num_register_threads: Option<u64>,
}

/// A setting for which string and field disagreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The key in a settings string.
    pub key: &'static str,
    /// The value that the string gave, as a string would write it.
    pub from_string: String,
    /// The value of the field, which now holds.
    pub from_field: String,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, from_string, from_field } = self;
        write!(f, "{key}: {from_field} was recorded, the settings string gives {from_string}")
    }
}

impl Config {
    /// Lays the fields of a snapshot over the settings, and lists those that changed something.
    ///
    /// They are taken as they are, without the checks of the parser: they describe what was.
    pub fn apply_recorded(&mut self, fields: RecordedSettings) -> Vec<Override> {
        let mut overrides = Vec::new();
        if let Some(bytes) = fields.max_split_size {
            // PyTorch casts its unsigned bound, so large bounds are negative; -1 is its maximum.
            let recorded = (bytes != -1).then_some(bytes as u64);
            let place = &mut self.max_split_size;
            replace(Key::MaxSplitSizeMb, place, recorded, split_size, &mut overrides);
        }
        if let Some(threshold) = fields.garbage_collection_threshold {
            // Not-a-number is never above zero: off.
            let recorded = if threshold.is_nan() { 0.0 } else { threshold };
            let place = &mut self.garbage_collection_threshold;
            let key = Key::GarbageCollectionThreshold;
            replace(key, place, recorded, f64::to_string, &mut overrides);
        }
        if let Some(recorded) = fields.roundup_power2_divisions {
            let place = &mut self.roundup_power2_divisions;
            replace(Key::RoundupPower2Divisions, place, recorded, slots, &mut overrides);
        }
        if let Some(recorded) = fields.pinned_num_register_threads {
            let place = &mut self.pinned_num_register_threads;
            replace(Key::PinnedNumRegisterThreads, place, recorded, u64::to_string, &mut overrides);
        }
        for (key, place, field) in [
            (Key::ExpandableSegments, &mut self.expandable_segments, fields.expandable_segments),
            (
                Key::ReleaseLockOnCudamalloc,
                &mut self.release_lock_on_cudamalloc,
                fields.release_lock_on_cudamalloc,
            ),
            (
                Key::GraphCaptureRecordStreamReuse,
                &mut self.graph_capture_record_stream_reuse,
                fields.graph_capture_record_stream_reuse,
            ),
            (
                Key::PinnedUseCudaHostRegister,
                &mut self.pinned_use_cuda_host_register,
                fields.pinned_use_cuda_host_register,
            ),
        ] {
            if let Some(recorded) = field {
                replace(key, place, recorded, boolean, &mut overrides);
            }
        }
        overrides
    }
}

fn replace<T: PartialEq>(
    key: Key,
    place: &mut T,
    recorded: T,
    show: impl Fn(&T) -> String,
    overrides: &mut Vec<Override>,
) {
    if *place == recorded {
        return;
    }
    overrides.push(Override {
        key: key.name(),
        from_string: show(place),
        from_field: show(&recorded),
    });
    *place = recorded;
}

fn split_size(bytes: &Option<u64>) -> String {
    match bytes {
        None => "unlimited".into(),
        Some(bytes) if bytes.is_multiple_of(MIB) => (bytes / MIB).to_string(),
        Some(bytes) => format!("{bytes} bytes"),
    }
}

fn slots(divisions: &[u64; DIVISION_SLOTS]) -> String {
    divisions.map(|d| d.to_string()).join(" ")
}

fn boolean(on: &bool) -> String {
    if *on { "True".into() } else { "False".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Release;

    #[test]
    fn fields_that_agree_change_nothing() {
        let conf = "max_split_size_mb:40,garbage_collection_threshold:0.6,\
                    roundup_power2_divisions:8,expandable_segments:True";
        let mut config = Config::parse(conf, Release::V2_11).unwrap();
        let before = config.clone();
        let overrides = config.apply_recorded(RecordedSettings {
            max_split_size: Some(40 << 20),
            garbage_collection_threshold: Some(0.6),
            expandable_segments: Some(true),
            roundup_power2_divisions: Some([8; 16]),
            release_lock_on_cudamalloc: Some(false),
            graph_capture_record_stream_reuse: Some(false),
            pinned_use_cuda_host_register: Some(false),
            pinned_num_register_threads: Some(1),
        });
        assert_eq!((config, overrides), (before, vec![]));
    }

    #[test]
    fn fields_win_over_the_string_and_say_so() {
        let mut config = Config::parse("max_split_size_mb:40", Release::V2_11).unwrap();
        let overrides = config.apply_recorded(RecordedSettings {
            max_split_size: Some(-1),
            garbage_collection_threshold: Some(0.5),
            expandable_segments: Some(true),
            pinned_num_register_threads: Some(4),
            ..RecordedSettings::default()
        });
        assert_eq!(config.max_split_size_limit(), None);
        assert_eq!(config.garbage_collection_threshold(), 0.5);
        assert!(config.expandable_segments());
        assert_eq!(config.pinned_num_register_threads(), 4);
        assert_eq!(config.last_settings(), "max_split_size_mb:40");
        let lines: Vec<_> = overrides.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "max_split_size_mb: unlimited was recorded, the settings string gives 40",
                "garbage_collection_threshold: 0.5 was recorded, the settings string gives 0",
                "pinned_num_register_threads: 4 was recorded, the settings string gives 1",
                "expandable_segments: True was recorded, the settings string gives False",
            ]
        );
    }

    #[test]
    fn a_negative_split_size_other_than_minus_one_is_a_very_large_one() {
        let mut config = Config::parse("max_split_size_mb:-1", Release::V2_11).unwrap();
        let fields = RecordedSettings { max_split_size: Some(-1_048_576), ..Default::default() };
        assert_eq!(config.apply_recorded(fields), []);
    }
}
