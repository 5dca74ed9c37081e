//! A history is whole if nothing was there before it, and the state that a replay rebuilds says the same.

use std::path::PathBuf;

use tonnage_analysis::{HistoryKind, Inspection};
use tonnage_replay::recording::rebuild_start;
use tonnage_snapshot::SnapshotFile;

use crate::support::testdata;

fn recordings() -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(testdata().join("traces")).unwrap().map(|entry| entry.unwrap().path());
    let is_recording = |path: &PathBuf| path.to_string_lossy().ends_with(".pickle.zst");
    let mut paths: Vec<_> = entries.filter(is_recording).collect();
    paths.sort();
    paths
}

fn assert_agree(file: &SnapshotFile, what: &str) {
    let inspection = Inspection::of(file);
    for device in &inspection.devices {
        let whole = rebuild_start(file, device.device as usize).is_empty();
        let said = device.history == HistoryKind::Whole;
        assert_eq!(said, whole, "{what}: inspect says {:?}", device.history);
    }
}

#[test]
fn inspect_and_replay_agree_on_what_is_whole_wherever_a_history_is_cut() {
    let recordings = recordings();
    assert_eq!(recordings.len(), 68);
    for path in recordings {
        let mut file = tonnage_snapshot::open(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert_agree(&file, &name);
        let length = file.traces[0].len();
        let mut cut = 0;
        // The first entries one by one, the rest by an eighth of what is left.
        while cut < length {
            let step = if cut < 6 { 1 } else { (length - cut).div_ceil(8) };
            file.traces[0].drain(..step.min(length - cut));
            cut += step;
            if file.traces[0].is_empty() {
                break;
            }
            assert_agree(&file, &format!("{name} from entry {cut} on"));
        }
    }
}
