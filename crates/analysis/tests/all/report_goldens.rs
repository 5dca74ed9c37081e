//! The report of every recording, as text and JSON, against the files in `testdata/reports`.
//!
//! `TONNAGE_UPDATE=1` writes them anew; then read them. What settings save is left out of most, since trying all
//! of them on all recordings takes minutes in a debug build; the small ones of [`WHOLE`] have it.

use std::path::PathBuf;

use tonnage_analysis::report::{Report, ReportOptions};

use crate::support::testdata;

/// Reported as `tonnage report` does it, with the settings that were tried.
const WHOLE: [&str; 12] = [
    "cudagraph.default",
    "cudagraph.tight",
    "deeplab_varres.tight",
    "deepnet_plain.default",
    "gpt2_generate.tight",
    "gpt2_varlen.tight",
    "llama_ckpt_accum.tight",
    "mlp_seed.default",
    "mlp_seed.default.stacks",
    "mlp_seed.tight",
    "multistream.default",
    "multistream.expandable",
];

fn recordings() -> Vec<PathBuf> {
    let paths =
        std::fs::read_dir(testdata().join("traces")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|it| it.extension().is_some_and(|it| it == "zst")).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

#[test]
fn every_recording_is_reported_as_it_was_read() {
    let goldens = testdata().join("reports");
    let update = std::env::var_os("TONNAGE_UPDATE").is_some();
    for path in recordings() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let file = tonnage_snapshot::open(&path).unwrap();
        let without_replay = !WHOLE.iter().any(|whole| name == format!("{whole}.pickle.zst"));
        let options = ReportOptions { without_replay, ..ReportOptions::default() };
        let mut report = Report::of(&file, &options).unwrap();
        let peak = &report.peak.reserved;
        assert_eq!(peak.requested + report.waste.total(), peak.bytes, "{name}");
        // A flame graph's worth of frames says nothing to someone who reads the file.
        report.peak.stacks.clear();
        for (ending, text) in [("txt", report.to_text(name)), ("json", report.to_json() + "\n")] {
            let golden = goldens.join(name.replace("pickle.zst", ending));
            if update {
                std::fs::create_dir_all(&goldens).unwrap();
                std::fs::write(&golden, text).unwrap();
            } else {
                assert!(
                    text == std::fs::read_to_string(&golden).unwrap(),
                    "{}\n{text}",
                    golden.display()
                );
            }
        }
    }
}
