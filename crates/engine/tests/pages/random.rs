//! Random programs: no byte has two owners, no live block moves, and every stream comes after who used its memory.

use tonnage_engine::{Capture, StreamFilter};
use tonnage_events::{PoolId, StreamId};

use crate::ordered::Watched;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// Sizes of all orders, some of them again and again.
    pub(crate) fn size(&mut self) -> u64 {
        if self.below(3) == 0 {
            return [700, 600 << 10, 3 << 20, 9 << 20, 25 << 20, 70 << 20][self.below(6) as usize];
        }
        let power = 1 << (9 + self.below(17));
        power + self.below(power)
    }
}

const POOL: PoolId = PoolId(0, 7);

/// What a program is like.
#[derive(Clone, Copy, Debug)]
struct Program {
    streams: u64,
    pools: bool,
    /// Bytes that may be reserved.
    limit: Option<u64>,
    slack: f64,
    /// Blocks that may be held.
    held: u64,
}

fn run(program: Program, seed: u64) -> [i64; 4] {
    let mut random = Random(seed * 7919 + 1);
    let mut watched = Watched::new(2 << 30, program.slack);
    watched.engine.set_limit(program.limit);
    let (mut diverted, mut uses, mut failed, mut shared) = (false, 0, 0, 0);
    for step in 0..600 {
        let who = format!("{program:?}, seed {seed}, step {step}");
        let stream = StreamId(random.below(program.streams));
        match random.below(40) {
            0 => watched.engine.device_mut().dry.hold_events(),
            1 => watched.engine.device_mut().dry.complete_events(),
            2 if !diverted => watched.engine.empty_cache().unwrap(),
            30 if !diverted => {
                watched.engine.pause().unwrap();
                assert_eq!(watched.engine.device().dry.used(), 0, "{who}");
                watched.engine.resume().unwrap();
                watched.after_resume();
            }
            3 | 4 if program.pools && diverted => {
                watched.engine.device_mut().capturing = false;
                watched.engine.end_capture().unwrap();
                watched.engine.end_allocate_to_pool(POOL).unwrap();
                diverted = false;
            }
            // A pool that was released and still has live blocks cannot be used again yet.
            3 if program.pools
                && watched.engine.begin_allocate_to_pool(POOL, StreamFilter::Any).is_ok() =>
            {
                watched.engine.begin_capture(Capture::Everywhere);
                watched.engine.device_mut().capturing = true;
                (diverted, uses) = (true, uses + 1);
            }
            5 if program.pools && !diverted && uses > 0 => {
                for _ in 0..std::mem::take(&mut uses) {
                    watched.engine.release_pool(POOL).unwrap();
                }
                watched.forget_pool(POOL);
            }
            // What a capture records is forgotten by blocks that are freed in it: its work runs later.
            6..10 if watched.live() > 0 && !diverted => {
                let at = random.below(watched.live() as u64) as usize;
                watched.use_elsewhere(at, stream);
            }
            10..22 if watched.live() > 0 => {
                let at = random.below(watched.live() as u64) as usize;
                watched.free(at);
            }
            _ if (watched.live() as u64) < program.held => {
                let pool = if diverted { POOL } else { PoolId::DEFAULT };
                failed += i64::from(!watched.allocate(random.size(), stream, pool, &who));
            }
            _ => {}
        }
        while watched.live() as u64 > random.below(2 * program.held) {
            let at = random.below(watched.live() as u64) as usize;
            watched.free(at);
        }
        watched.check(&who);
        shared += watched.shared_pages() as i64;
    }
    if diverted {
        watched.engine.device_mut().capturing = false;
        watched.engine.end_capture().unwrap();
        watched.engine.end_allocate_to_pool(POOL).unwrap();
    }
    for _ in 0..uses {
        watched.engine.release_pool(POOL).unwrap();
    }
    while watched.live() > 0 {
        watched.free(0);
    }
    watched.engine.empty_cache().unwrap();
    watched.engine.empty_cache().unwrap();
    let dry = &watched.engine.device().dry;
    assert_eq!((dry.used(), dry.handles()), (0, 0), "{program:?}, seed {seed}: not all went back");
    let calls = dry.page_calls();
    let moved = calls.mapped as i64 - calls.created as i64;
    [failed, moved, watched.engine.stats().num_ooms, shared]
}

#[test]
fn every_promise_holds_in_random_programs() {
    let plain = Program { streams: 1, pools: false, limit: None, slack: 0.02, held: 24 };
    let programs = [
        plain,
        Program { streams: 3, ..plain },
        Program { streams: 3, slack: 0.0, held: 40, ..plain },
        Program { streams: 2, pools: true, ..plain },
        Program { streams: 3, pools: true, limit: Some(256 << 20), slack: 0.0, ..plain },
        Program { limit: Some(128 << 20), ..plain },
    ];
    let seeds = std::env::var("TONNAGE_PAGES_SEEDS").ok().and_then(|text| text.parse().ok());
    for program in programs {
        let mut sums = [0; 4];
        for seed in 0..seeds.unwrap_or(12) {
            for (sum, more) in sums.iter_mut().zip(run(program, seed)) {
                *sum += more;
            }
        }
        let [failed, stitched, ooms, shared] = sums;
        assert!(stitched > 0, "{program:?}: pages were never moved");
        assert_eq!(failed, ooms, "{program:?}");
        assert!(shared > 0 || program.limit.is_none(), "{program:?}: no page in two places");
        assert_eq!(failed > 0, program.limit.is_some(), "{program:?}: {failed} failures");
    }
}
