//! Makes the snapshots of a fleet: `make_fleet FOLDER RANKS [RECORDING]`.
//!
//! Two stages of a pipeline, with settings of their own, of which the first has an embedding; the middle of twelve equal parts of the fleet has a rank with
//! a planted difference each, and what that is goes to `FOLDER.planted.txt`.

mod maker;

use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use maker::{Making, Plant, make};

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../testdata/traces/gpt2_varlen.default.stacks.pickle.zst"
);

/// Settings of the stages: within one, another is a difference that is planted.
const CONFS: [&str; 2] = ["", "garbage_collection_threshold:0.8"];

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [folder, ranks, rest @ ..] = &words[..] else {
        return Err("make_fleet FOLDER RANKS [RECORDING]".into());
    };
    let (folder, ranks): (_, u64) = (Path::new(folder), ranks.parse()?);
    let recording = rest.first().map_or(RECORDING, String::as_str);
    let base = tonnage_snapshot::open(Path::new(recording))?;
    std::fs::create_dir_all(folder)?;
    let plants = [
        Plant::Buffer(1 << 30),
        Plant::Leak(100 << 20, 12),
        Plant::Settings("expandable_segments:True"),
        Plant::Fails(9 << 30, 8 << 30),
    ];
    let part = (ranks / 12).max(1);
    let plant_of = |rank: u64| match rank % part == part / 2 && rank / part < 12 {
        true => plants[(rank / part) as usize % plants.len()],
        false => Plant::Nothing,
    };
    let save = |rank: u64| {
        let pp = u64::from(rank >= ranks / 2);
        let making = Making {
            seed: rank,
            varied: 0.01,
            shorter: 0.1,
            embedding: (1 - pp) * (3 << 30),
            conf: CONFS[pp as usize],
            plant: plant_of(rank),
        };
        let name = format!("pp{pp}_rank_{rank:05}.pickle.zst");
        tonnage_snapshot::save(&folder.join(name), &make(&base, &making))
    };
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let rank = next.fetch_add(1, Ordering::Relaxed);
            if rank >= ranks {
                return Ok(());
            }
            save(rank).map_err(|error| error.to_string())?;
        }
    };
    let workers = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        all.into_iter().try_for_each(|it| it.join().unwrap_or(Err("a thread failed".to_owned())))
    })?;
    let mut planted = String::new();
    for rank in (0..ranks).filter(|&it| plant_of(it) != Plant::Nothing) {
        writeln!(planted, "{rank} {:?}", plant_of(rank))?;
    }
    std::fs::write(folder.with_extension("planted.txt"), planted)?;
    Ok(())
}
