//! The history and the state of a device as a file that PyTorch's tools read.
//!
//! In:  the engine's snapshot.
//! Out: what a snapshot file holds, or such a file.

use std::path::Path;

use tonnage_engine::{Config, Release, Snapshot};
use tonnage_events::DeviceId;
pub use tonnage_snapshot::SaveError;
use tonnage_snapshot::{AllocatorSettings, Keys, SnapshotFile};

use crate::view::Memory;

impl Memory<'_> {
    /// Saves the state and the history as a file, as `torch.cuda.memory._dump_snapshot` does:
    /// Python's `pickle`, `torch.cuda._memory_viz`, PyTorch's page and `tonnage replay` read it.
    /// A name that ends in `.zst` or `.gz` is compressed, which the first three do not read.
    ///
    /// The history is there if [`record_history`](Memory::record_history) was called before. Other
    /// threads go on allocating while the file is written.
    ///
    /// ```
    /// use tonnage_memory::{Device, RecordOptions};
    ///
    /// let device = Device::dry("80 GiB")?;
    /// device.memory().record_history(Some(RecordOptions::default()));
    /// let block = device.allocate(1000)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("snapshot.pickle");
    /// device.memory().dump_snapshot(&path)?;
    /// # assert_eq!(tonnage_snapshot::open(&path)?.traces[0].len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the file cannot be written; what was there before then still is.
    #[doc(alias = "_dump_snapshot")]
    #[doc(alias = "save_snapshot")]
    pub fn dump_snapshot(&self, path: impl AsRef<Path>) -> Result<(), SaveError> {
        tonnage_snapshot::save(path.as_ref(), &snapshot_file(self.snapshot(), self.device.id()))
    }
}

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
