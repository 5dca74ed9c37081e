//! Levels and peaks of real recordings, against PyTorch's own figures.

use std::path::PathBuf;

use serde_json::Value;
use tonnage_analysis::{
    DeviceInspection, HistoryKind, Inspection, Level, Levels, Lifetimes, devices,
};
use tonnage_snapshot::SnapshotFile;

use crate::support::testdata;

fn traces() -> PathBuf {
    testdata().join("traces")
}

/// Every recording with PyTorch's figures at its end.
fn recordings() -> impl Iterator<Item = (String, SnapshotFile, Value)> {
    let mut names: Vec<_> = std::fs::read_dir(traces())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".pickle.zst").map(str::to_owned)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 68, "{}", names.len());
    names.into_iter().map(|name| {
        let file = tonnage_snapshot::open(&traces().join(format!("{name}.pickle.zst"))).unwrap();
        let figures = std::fs::read_to_string(traces().join(format!("{name}.json"))).unwrap();
        (name, file, serde_json::from_str(&figures).unwrap())
    })
}

/// One of the levels.
type Of = fn(&Level) -> u64;

fn levels(file: &SnapshotFile) -> Levels {
    let device = &devices(file)[0];
    Levels::of(device, &Lifetimes::of(device))
}

#[test]
fn every_peak_and_every_final_level_is_pytorchs() {
    for (name, file, figures) in recordings() {
        let levels = levels(&file);
        let end = levels.after().last().unwrap();
        let inspection = &Inspection::of(&file).devices[0];
        assert_eq!(inspection.history, HistoryKind::Whole, "{name}");
        assert_eq!(inspection.events, figures["events"], "{name}");
        let cases: [(&str, Of, u64); 4] = [
            ("requested_bytes", |it| it.requested, inspection.requested),
            ("allocated_bytes", |it| it.allocated, inspection.allocated),
            ("active_bytes", |it| it.active, inspection.active),
            ("reserved_bytes", |it| it.reserved, inspection.reserved),
        ];
        for (key, of, at_end) in cases {
            let figure = |which: &str| figures["stats"][format!("{key}.all.{which}")].as_u64();
            assert_eq!(Some(levels.peak(of).unwrap().bytes), figure("peak"), "{name}: {key}");
            assert_eq!(Some(of(end)), figure("current"), "{name}: {key}");
            assert_eq!(Some(at_end), figure("current"), "{name}: {key}");
        }
    }
}

#[test]
fn a_history_that_lost_its_beginning_has_the_same_levels_from_there_on() {
    let (mut compared, mut apart) = (0, 0);
    for (name, mut file, _) in recordings() {
        let whole = levels(&file);
        let entries = file.traces[0].clone();
        for cut in [1, 2, entries.len() / 3, entries.len() / 2, entries.len() - 1] {
            file.traces[0] = entries[cut..].to_vec();
            let inspection = DeviceInspection::of(&devices(&file)[0]);
            let (before, rest) = (whole.after()[cut - 1], &whole.after()[cut..]);
            let nothing = before == Level::default();
            let expected = if nothing { HistoryKind::Whole } else { HistoryKind::Partial };
            assert_eq!(inspection.history, expected, "{name} from {cut}");
            let peak = rest.iter().map(|it| it.allocated).max().max(Some(before.allocated));
            assert_eq!(inspection.allocated_peak, peak, "{name} from {cut}");
            let partial = levels(&file);
            let device = &devices(&file)[0];
            let moment = partial.peak(|it| it.allocated).unwrap().moment;
            let live = Lifetimes::of(device);
            let live = live.iter().filter(|it| it.is_live_after(moment)).map(|it| it.size);
            assert_eq!(Some(live.sum()), peak, "{name} from {cut}");
            assert_eq!(partial.after().len(), rest.len());
            for (got, expected) in partial.after().iter().zip(rest) {
                let known = |it: &Level| (it.requested, it.reserved);
                assert_eq!(known(got), known(expected), "{name} from {cut}");
                compared += 1;
                apart += usize::from(got != expected);
            }
        }
    }
    // The remainder of a block whose neighbour was free before the history began.
    assert!(apart * 10_000 < compared, "{apart} of {compared}");
}

#[test]
fn without_a_history_the_segments_still_tell_their_figures() {
    let (_, mut file, figures) = recordings().next().unwrap();
    file.traces.clear();
    let inspection = &Inspection::of(&file).devices[0];
    assert_eq!(inspection.history, HistoryKind::None);
    assert_eq!((inspection.allocated_peak, inspection.allocated_peak_event), (None, None));
    assert_eq!(figures["stats"]["allocated_bytes.all.current"], inspection.allocated);
    assert_eq!(figures["stats"]["reserved_bytes.all.current"], inspection.reserved);
    assert_eq!(levels(&file).start.allocated, inspection.allocated);
}
