//! Which settings a job needs least memory under.

use std::path::Path;
use std::sync::Mutex;

use tonnage_engine::{Config, Policy, Release};
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::tune::{Candidate, Conditions, Tuning, tune};
use tonnage_replay::what_if::WhatIf;

fn job(name: &str) -> Job {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let file = tonnage_snapshot::open(&folder.join(format!("{name}.pickle.zst"))).unwrap();
    Job::read(&file, &RecordingOptions::default()).unwrap().1
}

fn conditions(limit: Option<u64>) -> Conditions {
    Conditions { release: Release::V2_11, recorded: String::new(), limit, total: None }
}

fn tuned(name: &str, limit: Option<u64>) -> Tuning {
    tune(&job(name), &conditions(limit), &|_, _| {})
}

/// What the order must be by.
fn rank(candidate: &Candidate) -> (bool, u64, i64, i64) {
    let stats = &candidate.prediction.stats;
    let calls = candidate.driver_calls();
    (stats.num_ooms > 0, stats.max_memory_reserved(), calls, stats.num_alloc_retries)
}

#[test]
fn the_best_come_first_and_nothing_beats_the_floor() {
    for name in ["mlp_seed.default", "multistream.default", "cudagraph.default"] {
        let tuning = tuned(name, None);
        assert!(tuning.candidates.is_sorted_by_key(rank), "{name}");
        assert!(tuning.candidates.len() > 15, "{name}");
        assert!(tuning.candidates.iter().all(|it| it.reserved_peak() >= tuning.floor), "{name}");
        let recorded = tuning.recorded().unwrap();
        let best = tuning.best().unwrap();
        assert_eq!(tuning.saving(), recorded.reserved_peak() - best.reserved_peak(), "{name}");
        for conf in ["", "expandable_segments:True", "max_split_size_mb:128"] {
            assert_eq!(tuning.settings().filter(|it| it.conf == conf).count(), 1, "{conf}");
        }
        let pages = tuning.candidates.iter().filter(|it| it.policy != Policy::Pytorch);
        let [pages] = pages.collect::<Vec<_>>()[..] else { panic!("{name}: once") };
        assert!(pages.reserved_peak() as f64 <= tuning.floor as f64 * 1.05, "{name}");
        assert!(pages.driver_calls() > 0 && pages.page_ns() > 0, "{name}");
        assert_eq!(best.policy, Policy::Pytorch, "{name}: no setting of PyTorch's");
    }
}

#[test]
fn every_candidate_is_what_a_what_if_says() {
    let job = job("multistream.default");
    let tuning = tune(&job, &conditions(Some(300 << 20)), &|_, _| {});
    for candidate in &tuning.candidates {
        let config = Config::parse(&candidate.conf, Release::V2_11).unwrap();
        let what_if = WhatIf { policy: candidate.policy, ..WhatIf::new(config) };
        let prediction = what_if.with_limit(300 << 20).predict(&job);
        assert_eq!(prediction.stats, candidate.prediction.stats, "{}", candidate.conf);
    }
    let collects = |it: &Candidate| it.conf.contains("garbage_collection_threshold");
    assert!(tuning.candidates.iter().any(collects), "there is a limit");
}

#[test]
fn among_equals_the_simplest_comes_first() {
    // Nothing here is large enough for max_split_size_mb to matter.
    let tuning = tuned("deepnet_plain.default", None);
    let place = |conf: &str| tuning.candidates.iter().position(|it| it.conf == conf).unwrap();
    assert!(place("") < place("max_split_size_mb:1024"));
}

#[test]
fn a_job_that_fits_nowhere_still_says_what_it_needs() {
    let tuning = tuned("mlp_seed.default", Some(150 << 20));
    assert!(tuning.best().is_none());
    assert!(!tuning.candidates.iter().any(|it| it.prediction.fits()));
    let need = tuning.need.unwrap();
    assert!(need.bytes >= tuning.floor && need.bytes > 150 << 20, "{need:?}");
    let again = tuned("mlp_seed.default", Some(need.bytes));
    assert!(again.best().is_some(), "it was found to get through with {need:?}");
    assert_eq!(tuned("mlp_seed.default", None).need, Some(need), "whatever the limit");
}

#[test]
fn what_is_needed_gets_through_and_a_step_less_does_not() {
    for name in ["multistream.default", "cudagraph.default"] {
        let job = job(name);
        let need = tune(&job, &conditions(None), &|_, _| {}).need.unwrap();
        let config = Config::parse(&need.conf, Release::V2_11).unwrap();
        let gets_through =
            |limit| WhatIf::new(config.clone()).with_limit(limit).predict(&job).fits();
        assert!(gets_through(need.bytes), "{name}: {need:?}");
        assert!(!gets_through(need.bytes - (2 << 20)), "{name}: {need:?}");
    }
}

#[test]
fn only_settings_that_the_release_accepts_are_tried() {
    let conditions = Conditions { release: Release::V2_9, ..conditions(None) };
    let tuning = tune(&job("mlp_seed.default"), &conditions, &|_, _| {});
    let newer = |it: &Candidate| it.conf.contains("large_segment_size_mb");
    assert!(!tuning.candidates.iter().any(newer));
    assert!(tuning.candidates.iter().any(|it| it.conf == "expandable_segments:True"));
}

#[test]
fn strange_recorded_settings_are_tried_too_and_do_no_harm() {
    for recorded in [
        "max_split_size_mb:17592186044415",
        "garbage_collection_threshold:0.01",
        "roundup_power2_divisions:[256:1,512:2,>:4]",
        "roundup_power2_divisions:4611686018427387904",
    ] {
        let conditions = Conditions { recorded: recorded.to_owned(), ..conditions(Some(1 << 30)) };
        let tuning = tune(&job("mlp_seed.default"), &conditions, &|_, _| {});
        assert!(tuning.recorded().is_some(), "{recorded}");
    }
}

#[test]
fn progress_never_goes_back() {
    let seen = Mutex::new(Vec::new());
    let progress = |done, of| seen.lock().unwrap().push((done, of));
    let tuning = tune(&job("mlp_seed.default"), &conditions(None), &progress);
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), tuning.candidates.len());
    assert!(seen.iter().all(|(done, of)| done <= of));
    assert_eq!(seen.iter().max(), Some(&(seen.len(), seen.len())));
}

#[test]
fn the_settings_to_name_first_are_accepted_by_every_release_that_it_may_be() {
    let both = [Release::V2_10, Release::V2_11];
    let tuning = tuned("multistream.default", None);
    let best = tuning.best().unwrap();
    assert!(best.conf.contains("large_segment_size_mb"), "{}", best.conf);
    let lead = tuning.lead(&both).unwrap();
    assert!(!lead.candidate.conf.contains("large_segment_size_mb"), "{}", lead.candidate.conf);
    assert_eq!(lead.needs, None);
    assert!(tuning.lead(&both[1..]).unwrap().candidate.conf.contains("large_segment_size_mb"));
    // Nothing that both accept serves what failed here.
    let tight = tuned("mlp_seed.tight", Some(192 << 20));
    let lead = tight.lead(&both).unwrap();
    assert_eq!(lead.needs, Some(Release::V2_11), "{}", lead.candidate.conf);
}

#[test]
fn among_the_best_the_simplest_is_named_first() {
    let tuning = tuned("gpt2_varlen.default", Some(7300 << 20));
    let lead = tuning.lead(&[Release::V2_11]).unwrap();
    assert_eq!(lead.candidate.conf, "expandable_segments:True");
    let best = tuning.best().unwrap().reserved_peak();
    assert!(lead.candidate.reserved_peak() <= best + best / 100);
}

#[test]
fn what_is_needed_is_never_more_than_a_limit_that_the_job_gets_through_with() {
    for name in ["mlp_seed.default", "multistream.default", "cudagraph.default"] {
        let floor = job(name).floor();
        for eighths in 8..14 {
            let limit = floor / 8 * eighths;
            let tuning = tuned(name, Some(limit));
            let need = tuning.need.as_ref().unwrap();
            let within = tuning.best().is_none_or(|_| need.bytes <= limit);
            assert!(within, "{name}: {need:?} within {limit}");
            assert!(tuning.best().is_some() || need.bytes > limit, "{name}: {need:?}, {limit}");
        }
    }
}

#[test]
fn how_far_a_tuning_is_known_is_what_the_recording_has() {
    assert!(tuned("mlp_seed.default", None).reach.is_whole());
    assert_eq!(tuned("mlp_seed.tight", None).reach.name(), "up_to_the_failure");
}
