//! What the tests share.

use std::path::{Path, PathBuf};

use tonnage_events::Stacks;
use tonnage_snapshot::SnapshotFile;

pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

/// The same file as if no stacks had been recorded.
pub(crate) fn without_stacks(mut file: SnapshotFile) -> SnapshotFile {
    for entry in file.traces.iter_mut().flatten() {
        entry.stack = None;
    }
    for segment in &mut file.segments {
        segment.stack = None;
        for block in &mut segment.blocks {
            block.stack = None;
        }
    }
    SnapshotFile { stacks: Stacks::default(), ..file }
}
