//! What the file tells about the allocator that wrote it: its settings, its device's total.
//!
//! Whatever had to be concluded is said in `inferred`.

use tonnage_engine::config::RecordedSettings;
use tonnage_engine::{Config, Release, Start};
use tonnage_events::{Action, Bytes, TraceEntry};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

use super::release::Told;

/// Device total to assume if nothing tells it. It sizes expandable ranges and nothing else, and
/// larger ones decide the same as long as no range is exhausted.
const ASSUMED_TOTAL: u64 = 1 << 40;

/// The device's total, from how far apart its expandable ranges lie: each is an eighth larger than
/// the device.
pub(super) fn total_of(
    entries: &[TraceEntry],
    start: &Start,
    granted_peak: u64,
    inferred: &mut Vec<String>,
) -> u64 {
    let maps = entries.iter().filter(|entry| entry.action == Action::SegmentMap);
    let mut starts: Vec<_> = maps.map(|entry| entry.address.0).collect();
    starts.extend(start.ranges.iter().map(|base| base.0));
    if starts.is_empty() {
        return ASSUMED_TOTAL;
    }
    starts.sort_unstable();
    // Pages of one range lie together: farther apart than all memory there ever was, they belong to
    // two.
    let mut bases = vec![starts[0]];
    for pair in starts.windows(2) {
        if pair[1] - pair[0] > granted_peak {
            bases.push(pair[1]);
        }
    }
    let apart = bases.windows(2).map(|pair| pair[1] - pair[0]).min();
    let total = apart.map_or(ASSUMED_TOTAL, |apart| apart / 9 * 8);
    inferred.push(format!(
        "device total: at most {}, by the address ranges of expandable segments, which it sizes",
        Bytes(total)
    ));
    total
}

/// The settings that a file was recorded under, by the rules of the release that wrote it, as far as its keys
/// tell. A string that cannot be read counts as none.
#[must_use]
pub fn recorded_config(file: &SnapshotFile) -> Config {
    let default = AllocatorSettings::default();
    let release = Told::of(file, None).newest();
    let settings = file.settings.as_ref().unwrap_or(&default);
    config_of(settings, release, &mut Vec::new()).0
}

/// The settings of a recording, and as a string: the recorded one, and over it the separate fields.
pub(super) fn config_of(
    settings: &AllocatorSettings,
    release: Release,
    inferred: &mut Vec<String>,
) -> (Config, String) {
    let parsed = Config::parse(&settings.conf, release);
    let valid = parsed.is_ok();
    let mut config = parsed.unwrap_or_else(|error| {
        inferred.push(format!("settings: the string is not valid: {error}"));
        Config::for_release(release)
    });
    let overrides = config.apply_recorded(RecordedSettings {
        max_split_size: settings.max_split_size,
        garbage_collection_threshold: settings.garbage_collection_threshold,
        expandable_segments: settings.expandable_segments,
        roundup_power2_divisions: settings.roundup_power2_divisions,
        release_lock_on_cudamalloc: settings.release_lock_on_cudamalloc,
        graph_capture_record_stream_reuse: settings.graph_capture_record_stream_reuse,
        pinned_use_cuda_host_register: settings.pinned_use_cuda_host_register,
        pinned_num_register_threads: settings.pinned_num_register_threads,
    });
    for changed in &overrides {
        inferred.push(format!("settings: changed at run time: {changed}"));
    }
    if config.graph_capture_record_stream_reuse() {
        inferred.push(
            "settings: graph_capture_record_stream_reuse is set, and changes nothing here: blocks of a capture \
             that it would reuse stay in use"
                .to_owned(),
        );
    }
    let as_recorded = valid && overrides.is_empty();
    let conf = if as_recorded { settings.conf.clone() } else { config.to_conf_string() };
    (config, conf)
}
