use std::path::Path;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_snapshot::SnapshotFile;
fn open(name: &str) -> SnapshotFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    tonnage_snapshot::open(&folder.join(format!("{name}.pickle.zst"))).unwrap()
}
#[test]
fn measure() {
    for (name, stride) in [
        ("mlp_seed.default", 1),
        ("mlp_seed.expandable", 1),
        ("mlp_seed.tight", 1),
        ("cudagraph.default", 2),
        ("cudagraph.expandable", 3),
        ("cudagraph.tight", 3),
        ("multistream.default", 17),
        ("multistream.expandable", 17),
    ] {
        let original = open(name);
        println!("== {name} {}", original.traces[0].len());
        for index in (0..original.traces[0].len()).step_by(stride) {
            let entry = original.traces[0][index];
            for twice in [false, true] {
                let mut file = original.clone();
                if twice {
                    file.traces[0].insert(index, entry);
                } else {
                    file.traces[0].remove(index);
                }
                let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
                let at = index + usize::from(twice);
                let what = if twice { "twice" } else { "without" };
                match outcome.difference {
                    None => println!("ROW {name} {what} {} none {index} {entry}", entry.action),
                    Some(d) => println!(
                        "ROW {name} {what} {} {} {index} {entry} || {} || {}",
                        entry.action,
                        d.event as i64 - at as i64,
                        d.expected,
                        d.got
                    ),
                }
            }
        }
    }
}
