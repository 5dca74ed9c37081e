//! One device call fails, whichever it is, while a recording's requests are served.
//!
//! The three smallest recordings here; `TONNAGE_SWEEP=all` sweeps all of them, for a long time.

use std::path::{Path, PathBuf};

use tonnage_device::{Dry, FailNth};
use tonnage_engine::{Config, Engine, Policy, Release};
use tonnage_events::{Action, TraceEntry};
use tonnage_replay::job::{Call, Job, Request};
use tonnage_replay::recording::Reading;

const SMALLEST: [&str; 3] = ["mlp_seed.tight", "cudagraph.tight", "cudagraph.expandable"];

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")
}

fn recordings() -> Vec<String> {
    if std::env::var("TONNAGE_SWEEP").is_ok_and(|what| what == "all") {
        let names = std::fs::read_dir(traces()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names
            .filter_map(|name| name.to_str()?.strip_suffix(".pickle.zst").map(str::to_owned))
            .collect();
        names.sort();
        return names;
    }
    SMALLEST.map(str::to_owned).into()
}

/// Most bytes that the recorded allocator held at once. Without its calls of `empty_cache` that is
/// sometimes too little, so requests that give everything back and try again are part of the work.
fn most_obtained(entries: &[TraceEntry]) -> u64 {
    let (mut held, mut most) = (0_u64, 0);
    for entry in entries {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => held += entry.size,
            Action::SegmentFree | Action::SegmentUnmap => held -= entry.size,
            _ => {}
        }
        most = most.max(held);
    }
    most
}

/// Serves the job as far as the device lets it, then gives everything back.
fn serve(engine: &mut Engine<FailNth<Dry>>, job: &Job) {
    let mut blocks = Vec::new();
    let mut live = std::collections::BTreeSet::new();
    for step in job.steps() {
        match step.call {
            Call::Allocate(Request { bytes, stream, .. }) => {
                let block = engine.allocate(bytes, stream).ok();
                live.extend(block.is_some().then_some(blocks.len()));
                blocks.push(block);
            }
            Call::RecordStream { block, stream } => {
                if let Some(block) = blocks[block] {
                    engine.record_stream(block.address, stream).unwrap();
                }
            }
            Call::Free { block, .. } => {
                live.remove(&block);
                if let Some(block) = blocks[block] {
                    // If the device fails here the block is freed nevertheless.
                    let _ = engine.free(&block);
                }
            }
            _ => {}
        }
    }
    engine.check_invariants().unwrap();
    for block in live.into_iter().filter_map(|block| blocks[block]) {
        let _ = engine.free(&block);
    }
    if engine.empty_cache().is_err() {
        engine.empty_cache().expect("only one call fails");
    }
}

#[test]
fn whichever_device_call_fails_a_recordings_requests_leave_nothing_behind() {
    for name in recordings() {
        let file = tonnage_snapshot::open(&traces().join(format!("{name}.pickle.zst"))).unwrap();
        let job = Job::new(&file.traces[0], &Reading::default());
        let conf = file.settings.as_ref().map_or("", |settings| &settings.conf);
        let config = Config::parse(conf, Release::default()).unwrap();
        let capacity = most_obtained(&file.traces[0]);
        for policy in Policy::ALL {
            sweep(&format!("{name}, {policy}"), &job, capacity, &config, policy);
        }
    }
}

/// Serves a job once for every call that may fail.
fn sweep(name: &str, job: &Job, capacity: u64, config: &Config, policy: Policy) {
    for n in 0.. {
        let device = Dry::new(140 << 30).with_capacity(capacity);
        let device = FailNth::new(device, n);
        let mut engine = Engine::with_policy(device, config.clone(), policy);
        serve(&mut engine, job);
        assert_eq!(engine.stats().memory_reserved(), 0, "{name}: call {n}");
        let held = engine.device().inner.used();
        assert_eq!(held, engine.stranded_bytes(), "{name}: call {n}");
        if !engine.device().failed() {
            assert!(n > 10, "{name}: the device is called {n} times");
            return;
        }
    }
}
