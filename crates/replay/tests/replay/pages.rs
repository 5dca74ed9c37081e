//! The policy `pages` on recordings of real jobs: what it holds beyond what is live, what its moving costs, and that
//! jobs fit where little more than what is live may be held.

use std::path::{Path, PathBuf};

use tonnage_device::{Dry, PageCalls};
use tonnage_engine::{Config, Engine, Policy, RecordOptions, Slack, StreamFilter};
use tonnage_events::{BlockState, DeviceId, PoolId, StreamId};
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::snapshot_file;
use tonnage_replay::what_if::{RecordedTimes, WhatIf};
use tonnage_snapshot::SnapshotFile;

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
        let limit = prediction.floor + prediction.floor * 5 / 100 + (8 << 20);
        let limited = pages().with_limit(limit).predict(&job);
        assert!(limited.fits(), "{path:?}: {:?} under {limit}", limited.oom);
    }
    let mean = f64::powf(product, 1.0 / recordings.len() as f64);
    assert!(mean <= 1.025, "{mean}");
}

/// What the driver takes, as a share of the time that the recorded job took.
fn driver_share(file: &SnapshotFile, calls: &PageCalls) -> f64 {
    let entries = &file.traces[0];
    let us = entries[entries.len() - 1].time_us - entries[0].time_us;
    calls.nanoseconds() as f64 / (us as f64 * 1e3)
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
            let share = driver_share(&file, &second);
            assert!(share <= 0.01, "{path:?}: {share}");
            continue;
        }
        seen += 1;
        let moved = second.mapped - second.created;
        assert!(moved * 4 <= first.mapped, "{path:?}: {moved} of {} again", first.mapped);
        let share = driver_share(&file, &second);
        assert!(share <= 0.001, "{path:?}: {share}");
    }
    assert!(seen >= 8, "{seen} recordings");
}

#[test]
fn large_blocks_lie_on_large_pages() {
    let mut seen = 0;
    for path in recordings() {
        let file = tonnage_snapshot::open(&path).unwrap();
        let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
        // Where memory is tight too.
        let limit = job.floor() + job.floor() / 20 + (8 << 20);
        for limit in [None, Some(limit)] {
            let large = pages().with_limit(limit).predict(&job).large_blocks;
            let share = large.in_small_pages as f64 / large.bytes.max(1) as f64;
            assert!(share <= 0.01, "{path:?} under {limit:?}: {share}");
            seen += u64::from(large.bytes > 0);
        }
    }
    assert!(seen > 0, "there are large blocks");
}

#[test]
fn what_the_driver_takes_is_known_for_each_iteration() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/traces/mlp_seed.default.pickle.zst");
    let file = tonnage_snapshot::open(&path).unwrap();
    let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
    let entries = &file.traces[0];
    let starts = [entries.len() / 4, entries.len() / 2, entries.len() + 5];
    let times = RecordedTimes::of(entries, &starts);
    let time = |entry: usize| entries[entry].time_us;
    assert_eq!(times.us, time(entries.len() - 1) - time(0));
    let [first, second, none] = times.iterations[..] else { panic!("{times:?}") };
    assert_eq!(first, (starts[0], time(starts[1]) - time(starts[0])));
    assert_eq!(second, (starts[1], time(entries.len() - 1) - time(starts[1])));
    assert_eq!(none, (starts[2], 0));
    for (pass, number) in pages().predict_passes(&job, 2, &starts).into_iter().zip(0..) {
        let mapped: Vec<_> = pass.iterations.iter().map(|calls| calls.mapped).collect();
        assert_eq!((mapped.len(), mapped[2]), (3, 0));
        let in_all = pass.calls.mapped;
        // What comes before the first iteration is in none.
        assert!(mapped[0] + mapped[1] < in_all || number > 0, "{mapped:?} of {in_all}");
        assert!(mapped[0] + mapped[1] <= in_all && (mapped[0] > 0 || number > 0), "{mapped:?}");
    }
    let whole = &pages().predict_passes(&job, 1, &[0])[0];
    assert_eq!(whole.iterations, [whole.calls]);
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

#[test]
fn a_job_with_a_private_pool_is_played_again_to_its_end() {
    let mut engine = Engine::new(Dry::new(1 << 30), Config::default());
    engine.record_history(Some(RecordOptions::default()));
    engine.begin_allocate_to_pool(PoolId(0, 5), StreamFilter::Any).unwrap();
    engine.allocate(20 << 20, StreamId(0)).unwrap();
    engine.end_allocate_to_pool(PoolId(0, 5)).unwrap();
    let small = engine.allocate(1000, StreamId(0)).unwrap();
    let freed = engine.allocate(64 << 20, StreamId(0)).unwrap();
    engine.free(&freed).unwrap();
    engine.empty_cache().unwrap();
    engine.free(&small).unwrap();
    let file = snapshot_file(engine.snapshot(), DeviceId(0));
    let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
    for (pass, calls) in pages().predict_again(&job, 3).into_iter().enumerate() {
        assert!(calls.destroyed > 0, "pass {pass} came to no end: {calls:?}");
    }
}

#[test]
fn a_job_that_is_played_again_begins_with_all_memory_free() {
    let mut device = Dry::new(1 << 30);
    device.hold_events();
    let mut engine = Engine::new(device, Config::default());
    engine.record_history(Some(RecordOptions::default()));
    let block = engine.allocate(64 << 20, StreamId(0)).unwrap();
    engine.record_stream(block.address, StreamId(1)).unwrap();
    // The recording ends before the other stream does.
    engine.free(&block).unwrap();
    let file = snapshot_file(engine.snapshot(), DeviceId(0));
    let (_, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
    let [first, second] = pages().predict_again(&job, 2)[..] else { panic!("two times") };
    assert_eq!((first.created > 0, second.created), (true, 0));
}

/// The table of `docs/notes/pages.md`, over the recordings in `TONNAGE_RECORDINGS`, folders with colons between them.
#[test]
#[ignore = "prints a table"]
fn table() {
    let folders = std::env::var("TONNAGE_RECORDINGS").unwrap_or_default();
    let folders = folders.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let listed = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut files: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().contains(".pickle"));
    files.sort();
    let files = if files.is_empty() { recordings() } else { files };
    println!(
        "{:40} live MiB  waste PyTorch  made mapped      ms recorded ms  again % growth % small 1.05 1.03 again % small at 1.05",
        "recording"
    );
    let (mut product, mut worst, mut count) = (1.0_f64, 0.0_f64, 0);
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(file) = tonnage_snapshot::open(&path) else { continue };
        let Ok((outcome, job)) = Job::read(&file, &RecordingOptions::default()) else { continue };
        if job.floor() == 0 {
            continue;
        }
        let prediction = pages().predict(&job);
        let floor = prediction.floor as f64;
        let waste = prediction.stats.max_memory_reserved() as f64 / floor;
        let pytorch = WhatIf::new(Config::default()).predict(&job);
        let pytorch = pytorch.stats.max_memory_reserved() as f64 / floor;
        let entries = &file.traces[outcome.device as usize];
        let us = entries.last().map_or(0, |last| last.time_us.saturating_sub(entries[0].time_us));
        let percent = |ns: u64| ns as f64 / (us as f64 * 1e3) * 100.0;
        let again = pages().predict_again(&job, 2)[1];
        let calls = prediction.page_calls;
        let large = prediction.large_blocks;
        let limited = |share: f64| pages().with_limit((floor * share) as u64 + (8 << 20));
        let fits = [1.05, 1.03]
            .map(|share| if limited(share).predict(&job).fits() { "fits" } else { "OOM " });
        let again_limited = limited(1.05).predict_again(&job, 2)[1];
        let large_limited = limited(1.05).predict(&job).large_blocks;
        println!(
            "{name:40} {:8.1} {waste:.4} {pytorch:7.3} {:5} {:6} {:7.1} {:11} {:8.3} {:8.3} {:5.3} {} {} {:7.3} {:5.3}",
            floor / f64::from(1 << 20),
            calls.created,
            calls.mapped,
            calls.nanoseconds() as f64 / 1e6,
            us / 1000,
            percent(again.nanoseconds()),
            percent(again.growth_nanoseconds()),
            large.in_small_pages as f64 / large.bytes.max(1) as f64,
            fits[0],
            fits[1],
            percent(again_limited.nanoseconds()),
            large_limited.in_small_pages as f64 / large_limited.bytes.max(1) as f64,
        );
        product *= waste;
        worst = worst.max(waste);
        count += 1;
    }
    println!("geometric mean {:.4} worst {worst:.4}", product.powf(1.0 / f64::from(count.max(1))));
}
