//! Predictions against what PyTorch measured.

use std::path::{Path, PathBuf};

use tonnage_engine::{Config, Release};
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::what_if::WhatIf;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")
}
fn facts(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(traces().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}
const W: [&str; 11] = ["bert_dynpad","cudagraph","deeplab_varres","deepnet_ckpt","deepnet_plain","gpt2_generate","gpt2_varlen","llama_ckpt_accum","mlp_seed","multistream","resnet50"];
#[test]
fn table() {
    for w in W {
        let file = tonnage_snapshot::open(&traces().join(format!("{w}.default.pickle.zst"))).unwrap();
        let (o, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
        assert!(o.exact());
        for c in ["default", "expandable", "gc60", "round8", "split128", "tight"] {
            let f = facts(&format!("{w}.{c}"));
            let config = Config::parse(f["conf"].as_str().unwrap(), Release::V2_11).unwrap();
            let what = WhatIf { total: f["total"].as_u64(), ..WhatIf::new(config.clone()).with_limit(f["limit"].as_u64().filter(|&l| l > 0)) };
            let t = std::time::Instant::now();
            let p = what.predict(&job);
            let took = t.elapsed();
            let m = f["stats"]["reserved_bytes.all.peak"].as_i64().unwrap();
            let got = p.stats.reserved_bytes.all.peak;
            let moment = what.peak(&job, &p);
            let waste = moment.waste(&config);
            let req: u64 = moment.segments.iter().flat_map(|s| &s.blocks).filter(|b| b.state == tonnage_events::BlockState::ActiveAllocated).map(|b| b.requested_size).sum();
            assert_eq!(req + waste.total(), got as u64);
            println!("{w:18} {c:10} {m:12} {got:12} {:7.3}% ooms {} {:?} retries {} {} {took:?} floor {} {} {:?}", (got - m) as f64 / m as f64 * 100.0, f["stats"]["num_ooms"], p.oom, f["stats"]["num_alloc_retries"], p.stats.num_alloc_retries, job.floor(), p.stats.requested_bytes.all.peak, waste);
        }
    }
}
