//! A request fails only where what is live, and at most a twentieth and 8 MiB more, exceeds the limit: in random training
//! loops, under limits around what they need. The first that fails ends them, as it does programs.

use tonnage_device::Dry;
use tonnage_engine::{AllocError, Allocation, Config, Engine, Policy, Slack, StreamFilter};
use tonnage_events::{PoolId, StreamId};

use crate::random::Random;

const MIB: u64 = 1 << 20;
const GRAPH: PoolId = PoolId(0, 4);

/// A training loop on an allocator. The request that fails is looked at.
struct Loop {
    engine: Engine<Dry>,
    random: Random,
    /// Most bytes that were live.
    peak: u64,
    /// Nothing is asked for any more.
    failed: bool,
    who: String,
}

impl Loop {
    /// What is in use: blocks that are live or wait for a stream, and all of a graph's pool.
    fn live(&self) -> u64 {
        let segments = self.engine.segments();
        let of = segments
            .iter()
            .map(|it| if it.pool.is_default() { it.active_size } else { it.total_size });
        of.sum()
    }

    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Option<Allocation> {
        if self.failed {
            return None;
        }
        match self.engine.allocate(bytes, stream) {
            Ok(block) => {
                self.peak =
                    self.peak.max(self.engine.stats().active_bytes.all.current.cast_unsigned());
                Some(block)
            }
            Err(AllocError::OutOfMemory(_)) => {
                self.failed = true;
                let limit = self.engine.limit().expect("there is a limit") as f64;
                let needed = (self.live() + bytes.next_multiple_of(512)) as f64;
                assert!(
                    needed * 1.05 + 8.0 * MIB as f64 > limit,
                    "{}: {:.1} MiB of {:.1} fail with {:.1} live",
                    self.who,
                    bytes as f64 / MIB as f64,
                    limit / MIB as f64,
                    self.live() as f64 / MIB as f64
                );
                None
            }
            Err(error) => panic!("{}: {error}", self.who),
        }
    }

    fn free(&mut self, block: Option<Allocation>) {
        if let Some(block) = block {
            self.engine.free(&block).unwrap();
        }
    }

    /// A few bytes, or many: of weights, biases and activations.
    fn size(&mut self, most_mib: u64) -> u64 {
        match self.random.below(4) {
            0 => 512 + self.random.below(64 << 10),
            _ => 64 << 10 | self.random.below(most_mib * MIB),
        }
    }

    fn run(&mut self, seed: u64) {
        let layers = 8 + self.random.below(20) as usize;
        // Jobs of less than some hundred MiB have few pages, and each hole that ends within one counts.
        let most = 24 + self.random.below(72);
        let weights: Vec<_> = (0..layers).map(|_| self.size(most)).collect();
        let activations: Vec<_> = (0..layers).map(|_| self.size(2 * most)).collect();
        let mut held: Vec<_> =
            weights.iter().map(|&bytes| self.allocate(bytes, StreamId(0))).collect();
        if seed % 3 == 1 {
            self.engine.begin_allocate_to_pool(GRAPH, StreamFilter::Any).unwrap();
            for bytes in [3 * MIB, most * MIB] {
                let block = self.allocate(bytes, StreamId(0));
                held.push(block);
            }
            self.engine.end_allocate_to_pool(GRAPH).unwrap();
        }
        for iteration in 0..6 {
            // Every second program has sizes that never repeat.
            let share = if seed % 2 == 0 { 100 } else { 40 + self.random.below(60) };
            let kept: Vec<_> = activations
                .iter()
                .map(|bytes| {
                    let bytes = (bytes * share / 100).max(1);
                    let scratch = self.allocate(bytes / 2 + 1, StreamId(0));
                    let kept = self.allocate(bytes, StreamId(0));
                    self.free(scratch);
                    kept
                })
                .collect();
            let mut gradients = Vec::new();
            for (kept, &bytes) in kept.into_iter().zip(&weights).rev() {
                // Gradients are gathered on a stream of their own in some programs.
                let stream = StreamId(u64::from(seed % 5 == 2));
                let gradient = self.allocate(bytes, stream);
                if let (Some(kept), 2) = (&kept, seed % 5) {
                    self.engine.record_stream_of(kept, StreamId(1)).unwrap();
                }
                self.free(kept);
                gradients.push(gradient);
            }
            if iteration == 0 {
                held.extend(
                    weights
                        .iter()
                        .map(|&bytes| self.allocate(2 * bytes, StreamId(0)))
                        .collect::<Vec<_>>(),
                );
            }
            gradients.into_iter().for_each(|gradient| self.free(gradient));
        }
        held.into_iter().for_each(|block| self.free(block));
        self.engine.check_invariants().unwrap();
    }
}

fn play(seed: u64, limit: Option<u64>) -> Loop {
    let policy = Policy::Pages(Slack::DEFAULT);
    let mut engine = Engine::with_policy(Dry::new(64 << 30), Config::default(), policy);
    engine.set_limit(limit);
    engine.explain_failures(false);
    let who = format!("seed {seed}");
    let mut it = Loop { engine, random: Random(seed * 6007 + 11), peak: 0, failed: false, who };
    it.run(seed);
    it
}

#[test]
fn a_request_fails_only_where_little_more_than_what_is_live_exceeds_the_limit() {
    let seeds = std::env::var("TONNAGE_PAGES_SEEDS").ok().and_then(|text| text.parse().ok());
    let mut failed = [0; 4];
    for seed in 0..seeds.unwrap_or(60) {
        let peak = play(seed, None).peak;
        for (percent, failed) in [70, 90, 97, 105].into_iter().zip(&mut failed) {
            let limit = peak * percent / 100 + 8 * MIB * u64::from(percent > 100);
            *failed += u64::from(play(seed, Some(limit)).failed);
        }
    }
    assert!(failed[0] >= failed[1] && failed[1] >= failed[2] && failed[2] > 0, "{failed:?}");
    assert_eq!(failed[3], 0, "with a twentieth and 8 MiB more than the peak nothing fails");
}
