//! Scopes that the program marked, as spans of entries.
//!
//! In: a device with its annotations. Out: [`Phase`]s by where they begin.

use rustc_hash::FxHashMap;
use serde::Serialize;
use tonnage_analysis::DeviceView;
use tonnage_snapshot::Stage;

/// The most that are sent: chosen, more than can be told apart on a page.
const MOST: usize = 10_000;

/// Longest part of a name that is sent.
const LONGEST_NAME: usize = 100;

/// A named span of entries. The end is exclusive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

pub(super) fn phases(device: &DeviceView<'_>) -> Vec<Phase> {
    let at = |time: u64| device.entries.partition_point(|entry| entry.time_us < time);
    // Scopes of one name may lie in each other.
    let mut open = FxHashMap::<&str, Vec<u64>>::default();
    let mut phases = Vec::new();
    for mark in &device.file.annotations {
        if mark.device != device.device || mark.time_us == 0 || phases.len() == MOST {
            continue;
        }
        match mark.stage {
            Stage::Start => open.entry(&mark.name).or_default().push(mark.time_us),
            Stage::End => {
                let begin = open.get_mut(&*mark.name).and_then(Vec::pop);
                phases.extend(begin.map(|begin| Phase {
                    name: mark.name.chars().take(LONGEST_NAME).collect(),
                    begin: at(begin),
                    end: at(mark.time_us.saturating_add(1)),
                }));
            }
            Stage::Other(_) => {}
        }
    }
    phases.sort_by_key(|it| (it.begin, usize::MAX - it.end));
    phases
}

#[cfg(test)]
mod tests {
    use tonnage_analysis::devices;
    use tonnage_events::{Action, Address, DeviceId, StreamId, TraceEntry};
    use tonnage_snapshot::{Annotation, SnapshotFile};

    use super::*;

    #[test]
    fn a_scope_holds_the_entries_between_its_marks_also_inside_another() {
        let entry = |time_us| TraceEntry {
            action: Action::Snapshot,
            address: Address(0),
            size: 0,
            stream: StreamId::DEFAULT,
            time_us,
            stack: None,
        };
        let mark = |name: &str, stage, time_us| Annotation {
            name: name.into(),
            stage,
            device: DeviceId(0),
            time_us,
        };
        let file = SnapshotFile {
            traces: vec![[10, 20, 30, 40].map(entry).to_vec()],
            annotations: vec![
                mark("step", Stage::Start, 15),
                mark("step", Stage::Start, 20),
                mark("step", Stage::End, 30),
                mark("step", Stage::End, 35),
                mark("lost", Stage::End, 40),
            ],
            ..SnapshotFile::default()
        };
        let found = phases(&devices(&file)[0]);
        let spans: Vec<_> = found.iter().map(|it| (it.begin, it.end)).collect();
        assert_eq!(spans, [(1, 3), (1, 3)]);
    }
}
