//! How fast recordings replay, in entries a second.
//!
//! Three widths of the same work on the same recordings:
//!
//! - `engine`: the recorded requests straight into the allocator, on a dry device; beside the newest release's order
//!   of equal blocks, those of 2.11 and 2.12, and the policy `pages`;
//! - `replay`: with every entry and the final blocks compared;
//! - `end_to_end`: from the bytes of the compressed file to the outcome.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tonnage_device::Dry;
use tonnage_engine::{Allocation, Config, Engine, Policy, Release, Slack};
use tonnage_replay::job::{Call, Job, Request};
use tonnage_replay::recording::{Reading, RecordingOptions, replay_recording};

const RECORDINGS: [(&str, &str); 3] = [
    ("gpt2_varlen.default", ""),
    ("gpt2_generate.expandable", "expandable_segments:True"),
    ("bert_dynpad.split128", "max_split_size_mb:128"),
];

fn run(job: &Job, config: &Config, policy: Policy) -> u64 {
    let mut engine = Engine::with_policy(Dry::new(140 << 30), config.clone(), policy);
    let mut blocks: Vec<Allocation> = Vec::with_capacity(job.blocks());
    for step in job.steps() {
        match step.call {
            Call::Allocate(Request { bytes, stream, .. }) => {
                blocks.push(engine.allocate(bytes, stream).expect("the device is large enough"));
            }
            Call::RecordStream { block, stream } => {
                engine.record_stream_of(&blocks[block], stream).expect("the block is live");
            }
            Call::Free { block, .. } => engine.free(&blocks[block]).expect("the block is live"),
            _ => {}
        }
    }
    engine.stats().max_memory_reserved()
}

fn benchmark(criterion: &mut Criterion) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    for (name, conf) in RECORDINGS {
        let bytes = std::fs::read(folder.join(format!("{name}.pickle.zst"))).expect("test data");
        let file = tonnage_snapshot::parse(&bytes).expect("a snapshot");
        let config = Config::parse(conf, Release::default()).expect("a valid setting");
        let job = Job::new(&file.traces[0], &Reading::default());
        let options = RecordingOptions::default();
        assert!(replay_recording(&file, &options).is_ok_and(|outcome| outcome.exact()), "{name}");
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(file.traces[0].len() as u64));
        group.measurement_time(Duration::from_secs(3));
        group.sample_size(20);
        group.bench_function("engine", |bencher| {
            bencher.iter(|| run(black_box(&job), &config, Policy::Pytorch))
        });
        // Ties between equal blocks: by address in 2.11, by block in 2.12.
        for release in [Release::V2_11, Release::V2_12] {
            let config = Config::parse(conf, release).expect("a valid setting");
            let name = format!("engine_{release}");
            group.bench_function(name, |bencher| {
                bencher.iter(|| run(black_box(&job), &config, Policy::Pytorch))
            });
        }
        let pages = Policy::Pages(Slack::DEFAULT);
        group.bench_function("engine_pages", |bencher| {
            bencher.iter(|| run(black_box(&job), &config, pages));
        });
        group.bench_function("replay", |bencher| {
            bencher.iter(|| replay_recording(black_box(&file), &options));
        });
        group.bench_function("end_to_end", |bencher| {
            bencher.iter(|| {
                let file = tonnage_snapshot::parse(black_box(&bytes)).expect("a snapshot");
                replay_recording(&file, &options)
            });
        });
        group.finish();
    }
}

criterion_group!(benches, benchmark);
criterion_main!(benches);
