//! Random commands, by seed: always ones that the allocator's rules allow.

use tonnage_engine::Release;

use crate::allocator::{Model, Setting, Settings, State};

const MIB: u64 = 1 << 20;

/// The stream handles in use.
pub(crate) const STREAMS: [u64; 3] = [0, 4096, 8192];

/// Something to do. Blocks are named by their addresses, private pools by their numbers.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Allocate { bytes: u64, stream: u64 },
    Free(u64),
    RecordStream { block: u64, stream: u64 },
    CompleteEvents,
    HoldEvents,
    CompleteEventsOf(u64),
    EmptyCache,
    EmptyCacheOf(usize),
    Begin { pool: usize, streams: Option<Vec<u64>> },
    End(usize),
    Release(usize),
    BeginCapture,
    EndCapture,
    NoSplit(usize),
    UseOnOom(usize, bool),
    Configure(Vec<Setting>),
    Fraction(f64),
    ResetPeaks,
}

/// A small generator (xorshift*): good enough to mix commands, and the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Spreads neighbouring seeds apart, and avoids the fixed point at 0.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }
}

/// What a run is like.
pub(crate) struct Plan {
    pub(crate) release: Release,
    pub(crate) total: u64,
    pub(crate) capacity: u64,
    pub(crate) settings: Vec<Setting>,
    pub(crate) fraction: Option<f64>,
    uses_pools: bool,
    changes_settings: bool,
    /// In how many of a hundred commands the last allocation is freed, or made again.
    repeats: u64,
    /// Bytes that allocations grow up to, at most.
    largest: u64,
}

impl Plan {
    pub(crate) fn of(random: &mut Random) -> Self {
        let release = random.one_of(&Release::ALL);
        let total = random.one_of(&[256, 512, 1024, 2048]) * MIB + random.below(3) * 12_345;
        let capacity =
            if random.chance(40) { total } else { total * (30 + random.below(70)) / 100 };
        let settings = random_settings(random, &Settings::new(release));
        let wants_limit = settings.iter().any(|it| matches!(it, Setting::GcThreshold(_)));
        let limited = random.chance(if wants_limit { 80 } else { 25 });
        Self {
            release,
            total,
            capacity,
            settings,
            fraction: limited.then(|| random_fraction(random)),
            uses_pools: random.chance(50),
            changes_settings: random.chance(30),
            repeats: random.one_of(&[0, 10, 70]),
            largest: random.one_of(&[3 * MIB, 24 * MIB, 90 * MIB]),
        }
    }
}

fn random_fraction(random: &mut Random) -> f64 {
    let fraction = (20 + random.below(80)) as f64 / 100.0;
    // A little less changes what is behind the point.
    if random.chance(25) { fraction.next_down() } else { fraction }
}

/// Settings that the release accepts, given what is in force (a large segment size stays).
fn random_settings(random: &mut Random, now: &Settings) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut large_segment_mb = now.large_segment / MIB;
    if now.release >= Release::V2_11 && random.chance(20) {
        large_segment_mb = random.one_of(&[12, 20, 21, 32]);
        settings.push(Setting::LargeSegmentMb(large_segment_mb));
    }
    let least = large_segment_mb + u64::from(now.release < Release::V2_10);
    if random.chance(35) {
        settings.push(Setting::MaxSplitMb(least + random.one_of(&[0, 1, 10, 20, 60])));
    }
    if random.chance(15) {
        settings.push(Setting::NonSplitRoundingMb(least + random.one_of(&[0, 4, 44])));
    }
    if random.chance(30) {
        settings.push(Setting::GcThreshold(random.one_of(&[0.125, 0.3, 0.6, 0.9])));
    }
    if random.chance(35) {
        settings.push(Setting::Expandable(random.chance(75)));
    }
    if now.release >= Release::V2_12 && random.chance(10) {
        settings.push(Setting::Fraction(random_fraction(random)));
        settings.push(Setting::Rejects(random.chance(70)));
    }
    if now.release >= Release::V2_15 && random.chance(15) {
        settings.push(Setting::ReserveThousandths(random.one_of(&[5, 100, 400, 1000, 3000])));
    }
    if random.chance(15) {
        settings.push(Setting::Divisions(random.one_of(&[1, 2, 4, 8, 64])));
    } else if random.chance(10) {
        let list = random.one_of(&[vec![(1, 2), (4, 8), (16, 4), (64, 1)], vec![(8, 4)], vec![]]);
        // A list has at least one entry.
        let rest = (list.is_empty() || random.chance(60)).then(|| random.one_of(&[0, 1, 2, 16]));
        settings.push(Setting::DivisionList(list, rest));
    }
    settings
}

/// A settings string that says the same.
pub(crate) fn conf(settings: &[Setting]) -> String {
    let settings = settings.iter().map(|setting| match setting {
        Setting::MaxSplitMb(mb) => format!("max_split_size_mb:{mb}"),
        Setting::NonSplitRoundingMb(mb) => format!("max_non_split_rounding_mb:{mb}"),
        Setting::GcThreshold(threshold) => format!("garbage_collection_threshold:{threshold}"),
        Setting::Divisions(divisions) => format!("roundup_power2_divisions:{divisions}"),
        Setting::DivisionList(list, rest) => {
            let mut parts: Vec<_> = list.iter().map(|(mb, of)| format!("{mb}:{of}")).collect();
            parts.extend(rest.map(|of| format!(">:{of}")));
            format!("roundup_power2_divisions:[{}]", parts.join(","))
        }
        Setting::Expandable(true) => "expandable_segments:True".to_owned(),
        Setting::Expandable(false) => "expandable_segments:False".to_owned(),
        Setting::LargeSegmentMb(mb) => format!("large_segment_size_mb:{mb}"),
        Setting::Fraction(fraction) => format!("per_process_memory_fraction:{fraction}"),
        Setting::Rejects(true) => "throw_on_cudamalloc_oom:True".to_owned(),
        Setting::Rejects(false) => "throw_on_cudamalloc_oom:False".to_owned(),
        Setting::ReserveThousandths(parts) => {
            format!("expandable_segments_reserve:{}", *parts as f64 / 1000.0)
        }
    });
    settings.collect::<Vec<_>>().join(",")
}

/// What was allocated last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) block: u64,
}

/// The next command, one that the state allows.
pub(crate) fn next(random: &mut Random, plan: &Plan, model: &Model, last: Option<Last>) -> Command {
    let live = model.with_state(State::Allocated);
    loop {
        // Programs free a block and ask for the same again, over and over; sometimes something else
        // comes in between.
        if let Some(Last { bytes, stream, block }) = last
            && random.chance(plan.repeats)
        {
            return if live.contains(&block) {
                Command::Free(block)
            } else {
                Command::Allocate { bytes, stream }
            };
        }
        let pool_chance = if plan.uses_pools { 8 } else { 0 };
        let settings_chance = if plan.changes_settings { 2 } else { 0 };
        return match random.below(100) {
            0..=6 if !live.is_empty() => {
                let block = random.one_of(&live);
                Command::RecordStream { block, stream: random.one_of(&STREAMS) }
            }
            7..=10 => match random.below(4) {
                0 => Command::CompleteEvents,
                1 => Command::HoldEvents,
                _ => Command::CompleteEventsOf(random.one_of(&STREAMS)),
            },
            11..=12 => Command::EmptyCache,
            13 if random.chance(40) => {
                Command::Fraction(if random.chance(25) { 1.0 } else { random_fraction(random) })
            }
            14 => Command::ResetPeaks,
            at @ 15..30 if at < 15 + pool_chance => match pool_command(random, model) {
                Some(command) => command,
                None => continue,
            },
            at @ 30..40 if at < 30 + settings_chance => {
                Command::Configure(random_settings(random, &model.settings))
            }
            // More frees than allocations would keep the device empty, fewer would fill it.
            40..=65 if live.len() > 2 => Command::Free(random.one_of(&live)),
            66..=99 => {
                let bytes = random_bytes(random, plan);
                Command::Allocate { bytes, stream: random_stream(random) }
            }
            _ => continue,
        };
    }
}

fn random_stream(random: &mut Random) -> u64 {
    if random.chance(70) { 0 } else { random.one_of(&STREAMS) }
}

fn random_bytes(random: &mut Random, plan: &Plan) -> u64 {
    let fixed = [1, 512, 513, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB];
    match random.below(10) {
        // More than a range of an expandable segment holds.
        0 if random.chance(15) => plan.total * 2 + random.below(1 << 48),
        0 => random.one_of(&fixed),
        1..=3 => 1 + random.below(4_000),
        4..=5 => 1 + random.below(MIB + 4_096),
        6..=7 => MIB / 2 + random.below(12 * MIB),
        8 => 1 + random.below(plan.largest),
        // Round sizes come again and again, so that blocks are equal and ties happen.
        _ => (1 + random.below(plan.largest / MIB)) * MIB,
    }
}

fn pool_command(random: &mut Random, model: &Model) -> Option<Command> {
    let diverted_to = |pool: usize| model.diversions.iter().any(|&(to, _)| to == pool);
    let used: Vec<_> = (1..model.pools.len()).filter(|&it| model.pools[it].uses > 0).collect();
    let any = (model.pools.len() > 1).then(|| 1 + random.below(model.pools.len() as u64 - 1));
    let any = any.map(|pool| pool as usize);
    match random.below(20) {
        // Diversions end sooner than they begin: while one is active little else happens.
        0..=3 if model.diversions.len() < 2 => {
            let idle: Vec<_> = used.into_iter().filter(|&it| !diverted_to(it)).collect();
            let pool = if idle.is_empty() || (model.pools.len() < 6 && random.chance(30)) {
                model.pools.len()
            } else {
                random.one_of(&idle)
            };
            let all = random.chance(60);
            let streams = (!all).then(|| vec![0, random.one_of(&STREAMS)]);
            Some(Command::Begin { pool, streams })
        }
        4..=11 => model.diversions.first().map(|_| {
            let (pool, _) = random.one_of(&model.diversions);
            Command::End(pool)
        }),
        // A pool that is to serve others on failure has to keep a use.
        12..=14 => used
            .iter()
            .copied()
            .find(|&it| !model.pools[it].use_on_oom || model.pools[it].uses > 1)
            .map(Command::Release),
        15 if model.settings.release >= Release::V2_10 => any.map(Command::NoSplit),
        // At most one such pool: PyTorch asks several in the order of a hash.
        16 => {
            let marked = (1..model.pools.len()).find(|&it| model.pools[it].use_on_oom);
            marked.map(|pool| Command::UseOnOom(pool, false)).or_else(|| {
                (!used.is_empty()).then(|| Command::UseOnOom(random.one_of(&used), true))
            })
        }
        // Captures come and go without pools too; before 2.13 they change nothing.
        17 if model.captures < 2 => Some(Command::BeginCapture),
        17..=18 if model.captures > 0 => Some(Command::EndCapture),
        _ => any.map(Command::EmptyCacheOf),
    }
}
