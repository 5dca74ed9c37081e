//! The engine's own snapshot, as a file has it.
//!
//! In:  the engine's snapshot, the device it is of.
//! Out: a [`SnapshotFile`]: to save, or to look at like anyone else's.

use tonnage_engine::{Config, SaidScope, Snapshot};
use tonnage_events::DeviceId;
use tonnage_snapshot::{
    AllocatorSettings, Annotation, EntryNote, Keys, Pinned, RecordedPurposes, SnapshotFile, Stage,
};

/// What the file of a snapshot holds: its history is that of `device`, its settings are those in
/// force, its keys are those of the release followed.
#[must_use]
pub fn snapshot_file(snapshot: Snapshot, device: DeviceId) -> SnapshotFile {
    let Snapshot { segments, entries, pools, purposes, scopes, stacks, config } = snapshot;
    let recorded = !entries.is_empty();
    let release = config.release();
    let keys = Keys {
        compile_context: recorded,
        user_metadata: recorded && release.trace_has_user_metadata(),
        forward_frames: false,
        pool_id: recorded && release.trace_has_pool_ids(),
    };
    // A list for each device, by ordinal; those before this one have no history here.
    let mut traces = vec![Vec::new(); device.0 as usize];
    traces.push(entries);
    let settings = Some(settings_of(&config));
    let pinned = release.snapshot_has_host_memory().then(Pinned::default);
    let notes = pools.into_iter().filter(|_| keys.pool_id).map(|(entry, pool)| EntryNote {
        device,
        entry: u32::try_from(entry).unwrap_or(u32::MAX),
        pool,
        user_metadata: "".into(),
        internal_metadata: None,
    });
    let notes = notes.collect();
    let annotation = |SaidScope { name, begins, time_us }| Annotation {
        name: name.into(),
        stage: if begins { Stage::Start } else { Stage::End },
        device,
        time_us,
    };
    let annotations = scopes.into_iter().map(annotation).collect();
    let mut recorded = RecordedPurposes::default();
    for it in purposes {
        recorded.say(device, it.after, it.address, it.purpose);
    }
    SnapshotFile {
        segments,
        traces,
        pinned,
        notes,
        settings,
        annotations,
        purposes: recorded,
        stacks,
        keys,
        ..Default::default()
    }
}

/// The settings as PyTorch lists them.
fn settings_of(config: &Config) -> AllocatorSettings {
    let release = config.release();
    let has_bounds = release.recorded_settings_have_pinned_bounds();
    let bound = |bytes: Option<u64>| has_bounds.then(|| bytes.unwrap_or(u64::MAX).cast_signed());
    AllocatorSettings {
        conf: conf_of(config),
        // PyTorch casts its unsigned bound, so that none is −1.
        max_split_size: Some(config.max_split_size().cast_signed()),
        garbage_collection_threshold: Some(config.garbage_collection_threshold()),
        expandable_segments: Some(config.expandable_segments()),
        pinned_num_register_threads: Some(config.pinned_num_register_threads()),
        release_lock_on_cudamalloc: Some(config.release_lock_on_cudamalloc()),
        pinned_use_cuda_host_register: Some(config.pinned_use_cuda_host_register()),
        graph_capture_record_stream_reuse: release
            .recorded_settings_have_capture_reuse()
            .then(|| config.graph_capture_record_stream_reuse()),
        max_round_threshold: bound(config.pinned_max_round_threshold()),
        max_cached_size: bound(config.pinned_max_cached_size()),
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
    use tonnage_engine::Release;

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
