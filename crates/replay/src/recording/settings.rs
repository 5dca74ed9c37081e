//! What the file tells about the allocator that wrote it: its settings, its device's total.
//!
//! Whatever had to be concluded is said in `inferred`.

use tonnage_engine::config::{RecordedSettings, Reserve};
use tonnage_engine::{Config, Release, Start};
use tonnage_events::{Action, Bytes, DeviceId};
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

use super::ranges::{Reach, most_granted};
use super::release::Told;
use super::start::{History, segments_of};
use super::timeline::Timeline;

/// Device total to assume if nothing tells it. It sizes expandable ranges, of which larger ones decide the same as long
/// as none is exhausted, and the limits and reserves that settings give as a share of the device.
const ASSUMED_TOTAL: u64 = 1 << 40;

/// Most bytes of a device that distances between ranges tell: ranges that lie farther apart are not those of a device,
/// or not next to each other.
const MOST_TOLD: u64 = 1 << 44;

/// The device's total, from how far apart its expandable ranges lie.
pub(super) fn total_of(history: &History<'_>, start: &Start, inferred: &mut Vec<String>) -> u64 {
    let mut maps = history.entries.iter().filter(|entry| entry.action == Action::SegmentMap);
    if start.ranges.is_empty() && maps.next().is_none() {
        return ASSUMED_TOTAL;
    }
    let apart = least_distance(history, start);
    let total = apart.and_then(|apart| total_by_distance(history.config, apart));
    if total.is_none() && history.reach != Reach::WholeDevice {
        inferred.push(format!(
            "device total: taken as {}; where expandable_segments_reserve sizes the address ranges of expandable \
             segments, they do not tell it: say --total, so that ranges end where they did",
            Bytes(ASSUMED_TOTAL)
        ));
        return ASSUMED_TOTAL;
    }
    let Some(total) = total else {
        inferred.push(format!(
            "device total: taken as {}; no two address ranges of expandable segments lie side by side, which would tell \
             it",
            Bytes(ASSUMED_TOTAL)
        ));
        return ASSUMED_TOTAL;
    };
    inferred.push(format!(
        "device total: at most {}, by the address ranges of expandable segments, which it sizes",
        Bytes(total)
    ));
    total
}

/// The bytes of a device, by how far apart its expandable ranges lie: a few MiB too many at most. None where nothing
/// tells: there are not two ranges, or settings size them otherwise.
#[must_use]
pub fn told_total(file: &SnapshotFile, ordinal: usize) -> Option<u64> {
    let entries = file.traces.get(ordinal)?;
    entries.iter().find(|entry| entry.action == Action::SegmentMap)?;
    let (config, segments) = (recorded_config(file), segments_of(file, ordinal));
    let history = History {
        entries,
        from: 0,
        timeline: &Timeline::default(),
        at_end: &segments,
        config: &config,
        told: file.entry_pools(DeviceId(u32::try_from(ordinal).ok()?)),
        reach: Reach::of(&config, None),
    };
    total_by_distance(&config, least_distance(&history, &Start::default())?)
}

/// The least distance between where two expandable ranges begin.
fn least_distance(history: &History<'_>, start: &Start) -> Option<u64> {
    let bases: Vec<u64> = match history.reach {
        Reach::WholeDevice => {
            let maps = history.entries.iter().filter(|entry| entry.action == Action::SegmentMap);
            let mut pages: Vec<_> = maps.map(|entry| entry.address.0).collect();
            pages.extend(start.ranges.iter().map(|base| base.0));
            pages.sort_unstable();
            // Pages of one range lie together: farther apart than all memory there ever was, they belong to
            // two.
            let most = most_granted(history.entries, history.at_end);
            let begins = pages.windows(2).filter(|pair| pair[1] - pair[0] > most);
            pages.first().copied().into_iter().chain(begins.map(|pair| pair[1])).collect()
        }
        _ => history.ranges().into_iter().map(|(base, _)| base).collect(),
    };
    bases.windows(2).map(|pair| pair[1] - pair[0]).min()
}

/// What the least distance between two ranges tells of the device, which they are an eighth larger than unless settings
/// make them smaller.
fn total_by_distance(config: &Config, apart: u64) -> Option<u64> {
    let by_class = !config.expandable_segments_reserve_by_class().is_empty();
    let total = match config.expandable_segments_reserve() {
        _ if by_class => None,
        None => Some(apart / 9 * 8),
        Some(reserve @ Reserve::Gib(_)) => (apart < reserve.bytes(0)).then_some(apart / 9 * 8),
        Some(Reserve::Fraction(share)) => Some((apart as f64 / share.min(1.125)) as u64),
    };
    total.filter(|&total| total <= MOST_TOLD)
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

#[cfg(test)]
mod tests {
    use tonnage_device::Dry;
    use tonnage_engine::{Engine, RecordOptions, StreamId};

    use super::*;

    /// Two streams, each with a range of large pages.
    fn recorded(conf: &str) -> SnapshotFile {
        let config = Config::parse(conf, Release::V2_15).unwrap();
        let mut engine = Engine::new(Dry::new(8 << 30), config);
        engine.record_history(Some(RecordOptions::default()));
        for stream in [0, 64, 128] {
            engine.allocate(30 << 20, StreamId(stream)).unwrap();
        }
        crate::snapshot_file(engine.snapshot(), DeviceId(0))
    }

    #[test]
    fn ranges_tell_the_total_unless_settings_size_them() {
        let (gib, slack) = (1_u64 << 30, 40 << 20);
        for (conf, total) in [
            ("expandable_segments:True", Some(8 * gib)),
            ("expandable_segments:True,expandable_segments_reserve:0.25", Some(8 * gib)),
            ("expandable_segments:True,expandable_segments_reserve:4", Some(8 * gib)),
            ("expandable_segments:True,expandable_segments_reserve:1G", None),
            ("expandable_segments:True,expandable_segments_reserve:90G", Some(8 * gib)),
            ("expandable_segments:True,expandable_segments_reserve_by_class:[a:1G]", None),
            ("", None),
        ] {
            let file = recorded(conf);
            let told = told_total(&file, 0);
            let near = |told: u64| total.is_some_and(|total| told.abs_diff(total) < 4 * slack);
            assert!(told.map_or(total.is_none(), near), "{conf}: {told:?}");
            let options = crate::recording::RecordingOptions::default();
            let outcome = crate::recording::replay_recording(&file, &options).unwrap();
            assert!(outcome.exact(), "{conf}: {:?} {:?}", outcome.difference, outcome.inferred);
            let says = outcome.inferred.iter().any(|line| line.contains("say --total"));
            assert_eq!(says, total.is_none() && !conf.is_empty(), "{conf}: {:?}", outcome.inferred);
        }
    }
}
