//! Stage 1: one device's part of a file.
//!
//! In: a [`SnapshotFile`]. Out: a [`DeviceView`] for each device that has segments or a history.

use std::collections::BTreeMap;

use tonnage_engine::Config;
use tonnage_events::{DeviceId, SnapshotSegment, TraceEntry};
use tonnage_replay::recording::recorded_config;
use tonnage_snapshot::SnapshotFile;

/// One device's part of a file.
#[derive(Clone, Debug)]
pub struct DeviceView<'a> {
    /// The device.
    pub device: DeviceId,
    /// The file it is from.
    pub file: &'a SnapshotFile,
    /// Its history, oldest entry first; empty if none was recorded.
    pub entries: &'a [TraceEntry],
    /// Its segments when the snapshot was taken, by ascending address.
    pub segments: Vec<&'a SnapshotSegment>,
}

/// The devices that have segments or a history, by ordinal.
#[must_use]
pub fn devices(file: &SnapshotFile) -> Vec<DeviceView<'_>> {
    let mut segments = BTreeMap::<DeviceId, Vec<&SnapshotSegment>>::new();
    for segment in &file.segments {
        segments.entry(segment.device).or_default().push(segment);
    }
    for (ordinal, entries) in (0_u32..).zip(&file.traces) {
        if !entries.is_empty() {
            segments.entry(DeviceId(ordinal)).or_default();
        }
    }
    let views = segments.into_iter().map(|(device, mut segments)| {
        segments.sort_by_key(|segment| segment.address);
        let entries = file.traces.get(device.0 as usize).map_or(&[][..], Vec::as_slice);
        DeviceView { device, file, entries, segments }
    });
    views.collect()
}

impl DeviceView<'_> {
    /// The settings that decide how large blocks are: rounding and splitting. They are the same in
    /// every release.
    pub(crate) fn sizing(&self) -> Config {
        recorded_config(self.file)
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Action, Address, StreamId};

    use super::*;

    #[test]
    fn devices_with_neither_segments_nor_history_are_left_out() {
        let entry = TraceEntry {
            action: Action::Snapshot,
            address: Address(0),
            size: 0,
            stream: StreamId::DEFAULT,
            time_us: 0,
            stack: None,
        };
        let file =
            SnapshotFile { traces: vec![vec![], vec![entry], vec![]], ..SnapshotFile::default() };
        let found: Vec<_> = devices(&file).iter().map(|it| it.device).collect();
        assert_eq!(found, [DeviceId(1)]);
        assert!(devices(&SnapshotFile::default()).is_empty());
    }
}
