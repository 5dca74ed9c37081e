//! Random streams, by seed.
//!
//! A stream has a character, drawn first: its device, its streams, how often it does what. Some characters
//! are narrow on purpose (few sizes make ties; a small device makes failures; no pools, so that the
//! figures which pools mask are compared too). Commands may be wrong for the state they meet: a block that
//! was never had is passed over by both sides, and what PyTorch refuses ends the stream.

mod settings;

mod sizes;

use tonnage_engine::Release;

use crate::command::{Command, Pool, Start, Stream};
use crate::random::Random;
use settings::{any_settings, working_settings};
use sizes::Sizes;

/// Handles of streams: the default stream, and others as an application would have made.
const STREAMS: [u64; 4] = [0, 4096, 8192, 12288];

/// Pools as users make them, and one as a capture makes it.
const POOLS: [Pool; 4] = [(0, 1), (0, 2), (0, 3), (1, 0)];

/// The only pool that is ever marked as one to use rather than fail: of several, PyTorch takes the first
/// in the order of a hash table.
const SPARE_POOL: Pool = POOLS[0];

const MIB: u64 = 1 << 20;

/// What the release has that others lack, as far as streams must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Captures are told apart from pools (2.13 on).
    pub captures: bool,
    /// `per_process_memory_fraction` (2.10 on).
    pub fraction_setting: bool,
    /// `large_segment_size_mb` (2.11 on).
    pub large_segments: bool,
    /// `throw_on_cudamalloc_oom` (2.12 on).
    pub rejections: bool,
    /// Reserves of expandable segments, and classes of streams (2.15 on).
    pub reserves: bool,
}

impl Features {
    /// Those of a release.
    #[must_use]
    pub fn of(release: Release) -> Self {
        Self {
            captures: !release.pool_scope_is_capture(),
            fraction_setting: release.memory_fraction_configurable(),
            large_segments: release.large_segment_configurable(),
            rejections: release.rejection_configurable(),
            reserves: release.reserve_configurable(),
        }
    }
}

/// The stream of this number under a seed.
#[must_use]
pub fn stream(seed: u64, number: u64, features: Features) -> Stream {
    let mut random = Random::of(seed, number);
    // One in sixteen is about nothing but settings.
    if random.below(16) == 0 {
        return settings_stream(&mut random, features);
    }
    Writer::new(random, features).write()
}

/// Settings strings, right and wrong, one after the other, and a little memory to see them work.
fn settings_stream(random: &mut Random, features: Features) -> Stream {
    let mut start = Start::plain();
    if random.percent(50) {
        start.environment = vec![(variable(random).to_owned(), any_settings(random, features))];
        if random.percent(30) {
            start.environment.push((variable(random).to_owned(), any_settings(random, features)));
            start.environment.dedup_by(|one, other| one.0 == other.0);
        }
    }
    let mut sizes = Sizes::new(random, &start);
    let length = random.between(4, 40);
    let command = |id| match random.below(6) {
        0 => Command::Allocate { id, size: sizes.next(random), stream: 0 },
        _ => Command::Configure(any_settings(random, features)),
    };
    Stream { commands: (0..length).map(command).collect(), start }
}

fn variable(random: &mut Random) -> &'static str {
    match random.below(4) {
        0 => "PYTORCH_ALLOC_CONF",
        1 => "PYTORCH_HIP_ALLOC_CONF",
        _ => "PYTORCH_CUDA_ALLOC_CONF",
    }
}

/// How often a stream does what, beside allocating and freeing.
#[derive(Debug)]
struct Character {
    streams: Vec<u64>,
    /// In a thousand commands.
    records: u64,
    events: u64,
    empties: u64,
    pools: u64,
    captures: u64,
    settings: u64,
    fractions: u64,
    classes: u64,
    resets: u64,
    snapshots: u64,
    /// Commands of a pool that are likely to be refused, in a thousand of them.
    wrong: u64,
    /// Bytes to have at once, roughly.
    target: u64,
}

struct Writer {
    random: Random,
    features: Features,
    character: Character,
    sizes: Sizes,
    start: Start,
    commands: Vec<Command>,
    /// Blocks that may be there, with their bytes.
    live: Vec<(u64, u64)>,
    bytes: u64,
    last_id: u64,
    /// Pools that requests are diverted to.
    diverting: Vec<Pool>,
    /// Uses of each of [`POOLS`].
    uses: [u32; POOLS.len()],
    captures: u32,
}

impl Writer {
    fn new(mut random: Random, features: Features) -> Self {
        let start = start(&mut random, features);
        let sizes = Sizes::new(&mut random, &start);
        let often = |random: &mut Random, share: u64, most: u64| {
            if random.percent(share) { random.between(1, most) } else { 0 }
        };
        let streams = random.between(1, STREAMS.len() as u64) as usize;
        let records = if streams > 1 { often(&mut random, 60, 90) } else { 0 };
        let pools = often(&mut random, 45, 60);
        let character = Character {
            streams: STREAMS[..streams].to_vec(),
            records,
            events: if records > 0 { often(&mut random, 80, 60) } else { 0 },
            empties: often(&mut random, 80, 25),
            pools,
            captures: if features.captures && pools > 0 { often(&mut random, 60, 30) } else { 0 },
            settings: often(&mut random, 35, 25),
            fractions: often(&mut random, 25, 10),
            classes: if features.reserves { often(&mut random, 15, 10) } else { 0 },
            resets: often(&mut random, 20, 10),
            snapshots: 3,
            wrong: 15,
            target: start.capacity / 100 * random.between(5, 130),
        };
        Self {
            random,
            features,
            character,
            sizes,
            start,
            commands: Vec::new(),
            live: Vec::new(),
            bytes: 0,
            last_id: 0,
            diverting: Vec::new(),
            uses: [0; POOLS.len()],
            captures: 0,
        }
    }

    fn write(mut self) -> Stream {
        if self.random.percent(25) {
            self.commands.push(Command::RecordHistory);
        }
        if self.random.percent(25) {
            self.fraction();
        }
        let length = self.random.between(40, 700);
        while (self.commands.len() as u64) < length {
            self.step();
        }
        Stream { start: self.start, commands: self.commands }
    }

    fn step(&mut self) {
        let Character { records, events, empties, pools, captures, settings, .. } = self.character;
        let Character { fractions, classes, resets, snapshots, .. } = self.character;
        let shares = [
            records, events, empties, pools, captures, settings, fractions, classes, resets,
            snapshots,
        ];
        let mut place = self.random.below(1000);
        for (kind, share) in shares.into_iter().enumerate() {
            if place < share {
                return self.rare(kind);
            }
            place -= share;
        }
        // Around the target as many blocks come as go.
        let full = self.bytes > self.character.target;
        if self.live.is_empty() || self.random.percent(if full { 30 } else { 58 }) {
            self.allocate();
        } else {
            self.free();
        }
    }

    fn rare(&mut self, kind: usize) {
        match kind {
            0 => self.record(),
            1 => self.events(),
            2 => self.empty(),
            3 => self.pool(),
            4 => self.capture(),
            5 => {
                // Once in a while one that is refused.
                let settings = if self.random.percent(10) {
                    any_settings(&mut self.random, self.features)
                } else {
                    working_settings(&mut self.random, self.features)
                };
                self.commands.push(Command::Configure(settings));
            }
            6 => self.fraction(),
            7 => {
                let stream = *self.random.pick(&self.character.streams);
                let class = (*self.random.pick(&["a", "b", "c", ""])).to_owned();
                self.commands.push(Command::ReserveClass { stream, class });
            }
            8 if self.random.percent(50) => self.commands.push(Command::ResetPeaks),
            8 => self.commands.push(Command::ResetSums),
            _ => self.commands.push(Command::Snapshot),
        }
    }

    fn allocate(&mut self) {
        self.last_id += 1;
        let size = self.sizes.next(&mut self.random);
        let stream = *self.random.pick(&self.character.streams);
        self.live.push((self.last_id, size));
        // What is beyond the device will hardly be there.
        self.bytes += if size > self.start.capacity { 0 } else { size };
        self.commands.push(Command::Allocate { id: self.last_id, size, stream });
    }

    fn free(&mut self) {
        let count = self.live.len() as u64;
        // The youngest as often as any.
        let place = if self.random.percent(40) {
            count - 1 - self.random.below(count.min(4))
        } else {
            self.random.below(count)
        };
        let (id, size) = self.live.swap_remove(place as usize);
        self.bytes -= if size > self.start.capacity { 0 } else { size };
        self.commands.push(Command::Free { id });
    }

    fn record(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let (id, _) = *self.random.pick(&self.live);
        let stream = *self.random.pick(&self.character.streams);
        self.commands.push(Command::RecordStream { id, stream });
    }

    fn events(&mut self) {
        let command = match self.random.below(3) {
            0 => Command::Events { complete: true },
            1 => Command::Events { complete: false },
            _ => Command::EventsOf { stream: *self.random.pick(&self.character.streams) },
        };
        self.commands.push(command);
    }

    fn empty(&mut self) {
        let pool = if self.character.pools > 0 && self.random.percent(30) {
            *self.random.pick(&POOLS)
        } else {
            (0, 0)
        };
        // Refused while requests are diverted: seldom, since that ends the stream.
        if pool != (0, 0) && !self.diverting.is_empty() && !self.random.percent(5) {
            return;
        }
        self.commands.push(Command::EmptyCache { pool });
    }

    fn pool(&mut self) {
        let which = self.random.below(POOLS.len() as u64) as usize;
        let pool = POOLS[which];
        let wrong = self.random.below(1000) < self.character.wrong;
        let diverted = self.diverting.iter().position(|&diverted| diverted == pool);
        match self.random.below(11) {
            // As `MemPool` does; refused once it was released, until its memory is gone.
            10 if self.random.percent(40) => {
                self.uses[which] += 1;
                self.commands.push(Command::PoolUse { pool });
            }
            0..=2 if diverted.is_none() && self.diverting.len() < 3 || wrong => {
                let only =
                    self.random.percent(35).then(|| *self.random.pick(&self.character.streams));
                self.diverting.push(pool);
                self.uses[which] += 1;
                self.commands.push(Command::PoolBegin { pool, only });
            }
            3..=6 => {
                let pool = match self.diverting.len() as u64 {
                    0 if wrong => pool,
                    0 => return,
                    count => self.diverting.remove(self.random.below(count) as usize),
                };
                self.commands.push(Command::PoolEnd { pool });
                // As `use_mem_pool` does.
                let which = POOLS.iter().position(|&known| known == pool);
                if let Some(which) = which
                    && self.uses[which] > 1
                    && self.random.percent(60)
                {
                    self.uses[which] -= 1;
                    self.commands.push(Command::PoolRelease { pool });
                }
            }
            7 | 8 if (self.uses[which] > 0 && diverted.is_none()) || wrong => {
                self.uses[which] = self.uses[which].saturating_sub(1);
                self.commands.push(Command::PoolRelease { pool });
            }
            _ if self.random.percent(30) => {
                self.commands.push(Command::PoolNoSplit { pool });
            }
            _ if self.random.percent(if self.uses[0] > 0 { 50 } else { 5 }) => {
                let on = self.random.percent(75);
                self.commands.push(Command::PoolUseOnOom { pool: SPARE_POOL, on });
            }
            _ => {}
        }
    }

    fn capture(&mut self) {
        // Seldom two at once, and seldom those of another thread.
        if self.captures > 0 && !(self.captures == 1 && self.random.percent(15)) {
            self.captures -= 1;
            self.commands.push(Command::CaptureEnd);
        } else {
            self.captures += 1;
            let here = self.random.percent(80);
            self.commands.push(Command::CaptureBegin { here });
        }
    }

    fn fraction(&mut self) {
        let share = match self.random.below(5) {
            0 => 1.0,
            1 => self.random.below(1 << 20) as f64 / (1 << 20) as f64,
            _ => {
                // Near what the stream wants to have.
                let bytes = self.character.target.max(MIB) as f64;
                (bytes / self.start.total as f64 * self.random.between(3, 12) as f64 / 10.0)
                    .min(1.0)
            }
        };
        self.commands.push(Command::Fraction(share));
    }
}

fn start(random: &mut Random, features: Features) -> Start {
    let total = match random.below(6) {
        0 => 8 << 30,
        1 => 300_000_000,
        2 => random.between(40, 400) * MIB,
        3 => random.between(40 * MIB, 4000 * MIB),
        4 => 80 << 30,
        _ => random.between(1, 24) << 30,
    };
    let capacity = match random.below(3) {
        0 => total,
        1 => total / 16 * random.between(4, 16),
        _ => random.between(total / 8, total),
    };
    let environment = if random.percent(45) {
        vec![("PYTORCH_CUDA_ALLOC_CONF".to_owned(), working_settings(random, features))]
    } else {
        Vec::new()
    };
    Start { total, capacity, environment }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of the newest release.
    fn all() -> Features {
        Features::of(Release::NEWEST)
    }

    #[test]
    fn a_seed_and_a_number_name_one_stream() {
        assert_eq!(stream(1, 5, all()), stream(1, 5, all()));
        assert_ne!(stream(1, 5, all()), stream(1, 6, all()));
        assert_ne!(stream(1, 5, all()), stream(2, 5, all()));
    }

    #[test]
    fn every_kind_of_command_appears() {
        let shown: String =
            (0..400).map(|number| stream(3, number, all()).to_string() + "\n").collect();
        for letter in "afresdbxRunoCEtpckzH?".chars() {
            let start = format!("\n{letter}");
            assert!(shown.contains(&start), "no command begins with {letter}");
        }
    }

    #[test]
    fn captures_appear_only_where_the_release_has_them() {
        let of_2_12 = Features::of(Release::V2_12);
        let none = (0..400).map(|number| stream(3, number, of_2_12));
        assert!(none.flat_map(|stream| stream.commands).all(|command| {
            !matches!(command, Command::CaptureBegin { .. } | Command::CaptureEnd)
        }));
        assert!(!of_2_12.captures && Features::of(Release::V2_13).captures);
    }
}
