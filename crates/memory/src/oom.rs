//! A snapshot of the moment when a request fails.
//!
//! In:  the error, and where to save: [`DeviceOptions::snapshot_on_oom`](crate::DeviceOptions), or the
//!      environment variable `TONNAGE_OOM_SNAPSHOT`.
//! Out: the same error; its message says where the snapshot is, or why there is none.

use std::path::PathBuf;

use tonnage_engine::AllocError;

use crate::device::Device;

/// Where the environment wants it.
pub(crate) fn snapshot_from_env() -> Option<PathBuf> {
    std::env::var_os("TONNAGE_OOM_SNAPSHOT").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Device {
    /// The error, with a snapshot if one is wanted. The last failure's takes the place of the one before.
    #[cold]
    pub(crate) fn explained(&self, error: AllocError) -> AllocError {
        let (AllocError::OutOfMemory(mut report), Some(path)) =
            (error.clone(), &self.shared.snapshot_on_oom)
        else {
            return error;
        };
        let saved = self.memory().dump_snapshot(path);
        report.snapshot = Some(saved.map(|()| path.clone()).map_err(|error| error.to_string()));
        AllocError::OutOfMemory(report)
    }
}

#[cfg(test)]
mod tests {
    use crate::{AllocError, Device, DeviceOptions, RecordOptions};

    #[test]
    fn a_failed_request_leaves_a_snapshot_and_says_where_in_twelve_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oom.pickle");
        let options =
            DeviceOptions { snapshot_on_oom: Some(path.clone()), ..DeviceOptions::default() };
        let device = Device::dry_with(64_u64 << 20, options).unwrap();
        device.memory().record_history(Some(RecordOptions::default()));
        let kept = device.allocate(40 << 20).unwrap();
        let error = device.allocate(40 << 20).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        assert!(text.contains("Verdict: need: 40.00 MiB"), "{text}");
        assert!(text.contains("memory/src/oom.rs:"), "{text}");
        assert!(text.lines().count() <= 12, "{text}");
        assert!(matches!(error, AllocError::OutOfMemory(_)));
        let file = tonnage_snapshot::open(&path).unwrap();
        assert_eq!(file.segments.len(), 1);
        drop(kept);
    }
}
