//! The policy `pages` on recordings of real jobs: what it holds beyond what is live, what its moving costs, and that
//! jobs fit where little more than what is live may be held.

use std::path::{Path, PathBuf};

use tonnage_engine::{Config, Policy, Slack};
use tonnage_events::BlockState;
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::what_if::WhatIf;

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.to_string_lossy().ends_with(".default.pickle.zst")).collect();
    files.sort();
    assert!(files.len() >= 5, "{files:?}");
    files
}

fn pages() -> WhatIf {
    WhatIf { policy: Policy::Pages(Slack::DEFAULT), ..WhatIf::new(Config::default()) }
}

#[test]
fn jobs_hold_little_more_than_what_is_live_and_fit_into_that() {
    let mut product = 1.0;
    let recordings = recordings();
    for path in &recordings {
        let file = tonnage_snapshot::open(path).unwrap();
        let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
        let prediction = pages().predict(&job);
        assert_eq!(prediction.oom, None, "{path:?}");
        let waste = prediction.stats.max_memory_reserved() as f64 / prediction.floor as f64;
        assert!(waste <= 1.045, "{path:?}: {waste}");
        product *= waste;
        let limit = prediction.floor + prediction.floor * 3 / 100 + (8 << 20);
        let limited = pages().with_limit(limit).predict(&job);
        assert!(limited.fits(), "{path:?}: {:?} under {limit}", limited.oom);
    }
    let mean = f64::powf(product, 1.0 / recordings.len() as f64);
    assert!(mean <= 1.025, "{mean}");
}

#[test]
fn what_is_done_again_is_hardly_paid_for_again() {
    let mut seen = 0;
    for path in recordings() {
        let file = tonnage_snapshot::open(&path).unwrap();
        let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
        let [first, second] = pages().predict_again(&job, 2)[..] else { panic!("two times") };
        // Who empties the cache in a loop asks to pay again.
        if second.destroyed > 0 {
            continue;
        }
        seen += 1;
        let moved = second.mapped - second.created;
        assert!(moved * 4 <= first.mapped, "{path:?}: {moved} of {} again", first.mapped);
    }
    assert!(seen >= 8, "{seen} recordings");
}

#[test]
fn large_blocks_lie_on_large_pages() {
    let mut seen = 0;
    for path in recordings() {
        let file = tonnage_snapshot::open(&path).unwrap();
        let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
        let large = pages().predict(&job).large_blocks;
        let share = large.in_small_pages as f64 / large.bytes.max(1) as f64;
        assert!(share <= 0.055, "{path:?}: {share}");
        seen += u64::from(large.bytes > 0);
    }
    assert!(seen > 0, "there are large blocks");
}

#[test]
fn a_snapshot_shows_every_page_once() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/traces/mlp_seed.default.pickle.zst");
    let file = tonnage_snapshot::open(&path).unwrap();
    let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
    let (prediction, recorded) = pages().record(&job, &file, 0);
    assert!(prediction.page_calls.mapped > prediction.page_calls.created, "pages were moved");
    let stats = &prediction.stats;
    let total: u64 = recorded.segments.iter().map(|segment| segment.total_size).sum();
    assert_eq!(total, stats.memory_reserved());
    let blocks = recorded.segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
    assert_eq!(live.map(|block| block.size).sum::<u64>(), stats.memory_allocated());
    for pair in recorded.segments.windows(2) {
        assert!(pair[0].address.0 + pair[0].total_size <= pair[1].address.0);
    }
}
