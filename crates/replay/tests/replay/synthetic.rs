//! Recordings of programs that never ran: the engine on a dry device, its history, and the calls
//! forgotten.

use tonnage_device::Dry;
use tonnage_engine::{
    Allocation, Capture, Config, DeviceId, Engine, PoolId, RecordOptions, Release, StreamFilter,
    StreamId,
};
use tonnage_replay::snapshot_file;
use tonnage_snapshot::SnapshotFile;

/// xorshift: the same numbers for the same seed, everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A program on its way.
pub(crate) struct Program {
    engine: Engine<Dry>,
    random: Random,
    live: Vec<Allocation>,
    /// Pools that can be used again.
    pools: Vec<PoolId>,
    last_pool: u64,
}

impl Program {
    /// On a device with memory enough.
    pub(crate) fn new(release: Release, seed: u64, conf: &str) -> Self {
        Self::on(Dry::new(64 << 30), release, seed, conf)
    }

    fn on(device: Dry, release: Release, seed: u64, conf: &str) -> Self {
        let config = Config::parse(conf, release).unwrap();
        let mut engine = Engine::new(device, config);
        engine.record_history(Some(RecordOptions::default()));
        Self {
            engine,
            random: Random::new(seed),
            live: Vec::new(),
            pools: Vec::new(),
            last_pool: 0,
        }
    }

    fn size(&mut self) -> u64 {
        let units = 1 + self.random.below(30);
        units * [500, 30_000, 400_000, 1_500_000][self.random.below(4) as usize]
    }

    fn allocate(&mut self, stream: StreamId) {
        let size = self.size();
        self.live.extend(self.engine.allocate(size, stream));
    }

    fn free_one(&mut self) {
        if !self.live.is_empty() {
            let index = self.random.below(self.live.len() as u64) as usize;
            let block = self.live.swap_remove(index);
            if self.random.one_in(12) {
                self.engine.record_stream_of(&block, StreamId(77)).unwrap();
            }
            self.engine.free(&block).unwrap();
        }
    }

    /// Some requests and frees.
    fn work(&mut self, steps: u64) {
        let stream = StreamId(self.random.below(2) * 64);
        for _ in 0..steps {
            if self.random.below(5) < 3 {
                self.allocate(stream);
            } else {
                self.free_one();
            }
        }
    }

    /// A new pool, as a graph or a user makes one.
    fn make_pool(&mut self) -> PoolId {
        self.last_pool += 1;
        let pool = PoolId(0, self.last_pool);
        self.engine.create_or_use_pool(pool).unwrap();
        self.pools.push(pool);
        pool
    }

    /// Work that goes to a pool, captured or not. What it does not keep it frees before it ends.
    fn work_in(&mut self, pool: PoolId, keeps: bool, captured: bool) {
        let outside = std::mem::take(&mut self.live);
        self.engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
        if captured {
            self.engine.begin_capture(Capture::Everywhere);
        }
        let steps = 3 + self.random.below(20);
        self.work(steps);
        while !keeps && !self.live.is_empty() {
            self.free_one();
        }
        if captured {
            self.engine.end_capture().unwrap();
        }
        self.engine.end_allocate_to_pool(pool).unwrap();
        self.engine.release_pool(pool).unwrap();
        self.live.extend(outside);
    }

    /// Gives up a pool: one of a graph, or one of a user, which empties its cache at once.
    fn drop_pool(&mut self, index: usize, of_user: bool) {
        let pool = self.pools.remove(index);
        self.engine.release_pool(pool).unwrap();
        if of_user {
            self.engine.empty_cache_of(pool).unwrap();
        }
    }

    /// A random program with pools.
    pub(crate) fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.random.below(12) {
                0 => self.engine.empty_cache().unwrap(),
                1 => {
                    // A capture, as torch.cuda.graph() makes it.
                    self.engine.empty_cache().unwrap();
                    let pool = self.make_pool();
                    self.work_in(pool, true, true);
                }
                2 | 3 => {
                    let pool = self.make_pool();
                    let keeps = self.random.one_in(2);
                    self.work_in(pool, keeps, false);
                }
                4 | 5 if !self.pools.is_empty() => {
                    let index = self.random.below(self.pools.len() as u64) as usize;
                    let pool = self.pools[index];
                    let captured = pool.1.is_multiple_of(2);
                    self.work_in(pool, true, captured);
                }
                6 | 7 if !self.pools.is_empty() => {
                    let index = self.random.below(self.pools.len() as u64) as usize;
                    let of_user = self.random.one_in(2);
                    self.drop_pool(index, of_user);
                }
                _ => {
                    let steps = self.random.below(25);
                    self.work(steps);
                }
            }
        }
    }

    /// A random program without pools, with many blocks of few sizes, so that several are often equal.
    pub(crate) fn run_with_ties(&mut self, steps: u64) {
        let sizes = [20_000, 524_288, 1_100_000, 3 << 20, 12 << 20];
        for _ in 0..steps {
            match self.random.below(40) {
                0 => self.engine.empty_cache().unwrap(),
                1..=4 => {
                    // Enough at once that whole segments are free afterwards.
                    for _ in 0..self.random.below(1 + self.live.len() as u64) {
                        self.free_one();
                    }
                }
                it => {
                    let size = sizes[self.random.below(sizes.len() as u64) as usize];
                    let stream = StreamId(it % 8 / 7 * 64);
                    if self.random.below(7) < 4 {
                        self.live.extend(self.engine.allocate(size, stream));
                    } else {
                        self.free_one();
                    }
                }
            }
        }
    }

    /// The file that PyTorch would have written.
    pub(crate) fn file(mut self) -> SnapshotFile {
        snapshot_file(self.engine.snapshot(), DeviceId(0))
    }
}

/// The recording without its first entries, as a ring that is full leaves it.
pub(crate) fn without_head(file: &SnapshotFile, entries: usize) -> SnapshotFile {
    let mut file = file.clone();
    file.traces[0].drain(..entries);
    file.notes.retain_mut(|note| {
        let left = (note.entry as usize).checked_sub(entries);
        note.entry = left.unwrap_or(0) as u32;
        left.is_some()
    });
    file
}
