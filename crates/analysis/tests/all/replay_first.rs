//! Of a failed request nothing is said that a replay refutes: every recording with a failure.

use std::path::PathBuf;

use tonnage_analysis::devices;
use tonnage_analysis::report::{Answer, Asked, Cause, Report, ReportOptions, Tuned};
use tonnage_engine::Config;
use tonnage_events::Action;
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::tune::{Effort, try_settings};
use tonnage_replay::what_if::WhatIf;
use tonnage_snapshot::SnapshotFile;

use crate::support::testdata;

/// Every recording in which a request failed, with the limit that it was made under, if that is known.
fn failed() -> Vec<(String, SnapshotFile, Option<u64>)> {
    let pairs = std::fs::read_to_string(testdata().join("remedies/truths.json")).unwrap();
    let pairs: serde_json::Value = serde_json::from_str(&pairs).unwrap();
    let pairs = pairs["pairs"].as_array().unwrap();
    let mut found = Vec::new();
    for folder in ["traces", "planted", "remedies"] {
        let Ok(entries) = std::fs::read_dir(testdata().join(folder)) else { continue };
        let is_recording = |path: &PathBuf| path.to_string_lossy().contains(".pickle");
        let mut paths: Vec<_> =
            entries.map(|entry| entry.unwrap().path()).filter(is_recording).collect();
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let (stem, _) = name.split_once(".pickle").unwrap();
            // The fixed ones of a pair fail nowhere.
            if name.contains(".fixed.") {
                continue;
            }
            let truth = std::fs::read_to_string(path.with_file_name(format!("{stem}.json")));
            let truth: serde_json::Value =
                truth.map_or(serde_json::Value::Null, |text| serde_json::from_str(&text).unwrap());
            // Those that say that nothing failed need not be opened.
            if truth["oom"] == false || (folder == "traces" && truth["error"].is_null()) {
                continue;
            }
            let file = tonnage_snapshot::open(&path).unwrap();
            if file.traces.iter().flatten().any(|entry| entry.action == Action::Oom) {
                let pair =
                    pairs.iter().find(|it| stem.strip_suffix(".fault") == it["kind"].as_str());
                let limit = pair.unwrap_or(&truth)["limit"].as_u64();
                found.push((name, file, limit));
            }
        }
    }
    found
}

#[test]
fn the_first_advice_serves_what_failed_or_no_setting_does() {
    let (mut served, mut not) = (0, 0);
    for (name, file, limit) in failed() {
        let options = ReportOptions { limit, ..ReportOptions::default() };
        let report = Report::of(&file, &options).unwrap();
        let failure = report.failure.as_ref().unwrap();
        let recording = RecordingOptions { limit, ..RecordingOptions::default() };
        let (outcome, job) = Job::read(&file, &recording).unwrap();
        let serves = |conf: &str, limit: u64| {
            let config = Config::parse(conf, outcome.release).unwrap();
            let prediction = WhatIf::new(config).with_limit(limit).predict(&job);
            prediction.fits() && (job.died_at().is_some() || prediction.stats.num_ooms == 0)
        };
        let (first, within) = (report.advice.first(), failure.limit.bytes);
        match first.filter(|it| it.serves.is_some()) {
            Some(advice) => {
                let conf = failure.conf.as_deref().unwrap();
                assert!(serves(conf, within), "{name}: {conf}");
                assert!(advice.change.contains(conf), "{name}: {}", advice.change);
                assert!(report.verdict.text.contains(&failure.sentence()), "{name}");
                let refuted = [Cause::Need, Cause::LongerInputs, Cause::Unknown];
                assert!(!refuted.contains(&report.verdict.cause), "{name}: {:?}", report.verdict);
                served += 1;
            }
            None if failure.answer == Answer::DependsOnLimit => {
                let conf = failure.conf.as_deref().unwrap();
                assert!(serves(conf, failure.limit.at_most) && !serves(conf, within), "{name}");
            }
            None => {
                // The same settings as `tune`, tried again.
                let device = devices(&file).into_iter().find(|it| it.device.0 == outcome.device);
                let asked = Asked { limit, total: None };
                let tuned =
                    Tuned::of(&device.unwrap(), &outcome, &job, asked, |job, conditions| {
                        try_settings(job, conditions, Effort::default(), &|_, _| {})
                    });
                assert_eq!(tuned.failure.unwrap().answer, failure.answer, "{name}");
                let any = tuned.tuning.candidates.iter().find(|it| serves(&it.conf, within));
                assert!(any.is_none(), "{name}: {}", any.unwrap().conf);
                not += 1;
            }
        }
    }
    assert!(served >= 6, "{served} served, {not} not");
}
