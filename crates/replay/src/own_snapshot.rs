//! The engine's own snapshot, as a file has it.
//!
//! In:  the engine's snapshot, the device it is of.
//! Out: a [`SnapshotFile`]: to save, or to look at like anyone else's.

use tonnage_engine::{Config, Release, Snapshot};
use tonnage_events::DeviceId;
use tonnage_snapshot::{AllocatorSettings, Keys, SnapshotFile};

/// What the file of a snapshot holds: its history is that of `device`, its settings are those in
/// force.
#[must_use]
pub fn snapshot_file(snapshot: Snapshot, device: DeviceId) -> SnapshotFile {
    let Snapshot { segments, entries, stacks, config } = snapshot;
    let recorded = !entries.is_empty();
    let keys = Keys {
        compile_context: recorded,
        user_metadata: recorded && config.release() >= Release::V2_10,
        forward_frames: false,
        pool_id: false,
    };
    // A list for each device, by ordinal; those before this one have no history here.
    let mut traces = vec![Vec::new(); device.0 as usize];
    traces.push(entries);
    let settings = Some(settings_of(&config));
    SnapshotFile { segments, traces, settings, stacks, keys, ..SnapshotFile::default() }
}

/// The settings as PyTorch lists them.
fn settings_of(config: &Config) -> AllocatorSettings {
    AllocatorSettings {
        conf: conf_of(config),
        // PyTorch casts its unsigned bound, so that none is −1.
        max_split_size: Some(config.max_split_size().cast_signed()),
        garbage_collection_threshold: Some(config.garbage_collection_threshold()),
        expandable_segments: Some(config.expandable_segments()),
        pinned_num_register_threads: Some(config.pinned_num_register_threads()),
        release_lock_on_cudamalloc: Some(config.release_lock_on_cudamalloc()),
        pinned_use_cuda_host_register: Some(config.pinned_use_cuda_host_register()),
        graph_capture_record_stream_reuse: Some(config.graph_capture_record_stream_reuse()),
        max_round_threshold: None,
        max_cached_size: None,
        roundup_power2_divisions: Some(*config.roundup_power2_divisions()),
    }
}

/// The settings as a string: the last that was parsed, if it alone leads to them. Several, one after
/// the other, may have: then one that says it all, since the separate fields do not.
fn conf_of(config: &Config) -> String {
    let last = config.last_settings();
    match Config::parse(last, config.release()) {
        Ok(parsed) if parsed == *config => last.to_owned(),
        _ => config.to_conf_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_string_in_the_file_makes_the_settings_that_hold() {
        let release = Release::default();
        let alone = Config::parse("max_split_size_mb: 64 ", release).unwrap();
        assert_eq!(conf_of(&alone), "max_split_size_mb: 64 ");
        let mut both = Config::parse("large_segment_size_mb:40", release).unwrap();
        both.apply("expandable_segments:True").unwrap();
        let again = Config::parse(&conf_of(&both), release).unwrap();
        assert!(again.expandable_segments());
        assert_eq!(again.large_segment_size(), both.large_segment_size());
    }
}
