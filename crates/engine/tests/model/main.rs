//! The engine against a model that is too simple to be wrong, over random commands.
//!
//! Every command goes to both. Addresses, current figures of both halves, counters and peaks are
//! compared after each, whole segments now and then, and at the end everything has to go back to
//! the device.
//!
//! `TONNAGE_MODEL_SEEDS=20000` runs more seeds than the default.

mod allocator;
mod commands;

use std::collections::BTreeMap;
use std::ops::Range;

use allocator::{Block, Model, Settings, State};
use commands::{Command, Last, Plan, Random, STREAMS, conf};
use tonnage_device::Dry;
use tonnage_engine::{
    Address, AllocError, CacheError, Capture, Config, Engine, PoolId, PoolKind, Release, StatArray,
    Stats, StreamFilter, StreamId,
};
use tonnage_events::{BlockState, SnapshotSegment};

/// Commands a seed runs.
const COMMANDS: usize = 300;

/// Seeds, unless the environment says otherwise.
const SEEDS: u64 = 3_000;

/// Every so many commands all segments are compared.
const LOOK_EVERY: usize = 25;

/// Segments that a failed comparison shows, at most.
const SHOWN: usize = 60;

fn seeds() -> u64 {
    std::env::var("TONNAGE_MODEL_SEEDS").map_or(SEEDS, |seeds| {
        seeds.parse().expect("TONNAGE_MODEL_SEEDS is the number of seeds to run")
    })
}

fn pool_id(pool: usize) -> PoolId {
    PoolId(0, pool as u64)
}

/// Both allocators, and what happened so far.
struct Run {
    seed: u64,
    step: usize,
    engine: Engine<Dry>,
    model: Model,
    /// Live blocks: where each begins and ends.
    live: BTreeMap<u64, u64>,
    last: Option<Last>,
    history: Vec<Command>,
    /// What the plan of this seed is.
    title: String,
}

impl Run {
    fn new(seed: u64, plan: &Plan) -> Self {
        let conf = conf(&plan.settings);
        let title = format!(
            "release {}, total {}, capacity {}, fraction {:?}, conf `{conf}`",
            plan.release, plan.total, plan.capacity, plan.fraction
        );
        let config = Config::parse(&conf, plan.release)
            .unwrap_or_else(|error| panic!("seed {seed}: {title}: {error}"));
        let device = Dry::new(plan.total).with_capacity(plan.capacity).with_granularity(1 << 20);
        let mut settings = Settings::new(plan.release);
        settings.apply(&plan.settings);
        let mut run = Self {
            seed,
            step: 0,
            engine: Engine::new(device, config),
            model: Model::new(settings, plan.total, plan.capacity),
            live: BTreeMap::new(),
            last: None,
            history: Vec::new(),
            title,
        };
        if let Some(fraction) = plan.fraction {
            run.play(Command::Fraction(fraction));
        }
        run
    }

    fn fail(&self, what: &str) -> ! {
        let tail = self.history.len().saturating_sub(12);
        let mut text = format!("seed {}, step {}: {what}\n{}\n", self.seed, self.step, self.title);
        for (step, command) in self.history.iter().enumerate().skip(tail) {
            text += &format!("  {step}: {command:?}\n");
        }
        text += &format!("settings {:?}\n", self.model.settings);
        text += &format!("diversions {:?}, pools {:?}\n", self.model.diversions, self.model.pools);
        text += "engine:\n";
        for segment in self.engine.segments().iter().take(SHOWN) {
            text += &format!("  {}\n", show_segment(segment));
        }
        text += "model:\n";
        for run in self.model.runs().iter().take(SHOWN) {
            text += &format!("  {}\n", self.show_run(run));
        }
        panic!("{text}");
    }

    fn check(&self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.fail(&what());
        }
    }

    fn play(&mut self, command: Command) {
        self.step = self.history.len();
        self.history.push(command.clone());
        match command {
            Command::Allocate { bytes, stream } => self.allocate(bytes, stream),
            Command::Free(block) => {
                self.live.remove(&block);
                self.model.free(block);
                self.expect_ok(|engine| engine.free_address(Address(block)));
            }
            Command::RecordStream { block, stream } => {
                self.model.record_stream(block, stream);
                self.expect_ok(|engine| engine.record_stream(Address(block), StreamId(stream)));
            }
            Command::CompleteEvents => {
                self.model.complete_events();
                self.engine.device_mut().complete_events();
            }
            Command::HoldEvents => {
                self.model.hold_events();
                self.engine.device_mut().hold_events();
            }
            Command::CompleteEventsOf(stream) => {
                self.model.complete_events_of(stream);
                self.engine.device_mut().complete_events_of(StreamId(stream));
            }
            Command::EmptyCache => {
                self.model.empty_cache();
                self.expect_ok(Engine::empty_cache);
            }
            Command::EmptyCacheOf(pool) => {
                let possible = self.model.empty_cache_of(pool);
                match self.engine.empty_cache_of(pool_id(pool)) {
                    Ok(()) if possible => {}
                    Err(CacheError::Capturing(_)) if !possible => {}
                    other => self.fail(&format!("the model says {possible}, not {other:?}")),
                }
            }
            Command::Begin { pool, streams } => {
                let filter = streams.clone().map_or(StreamFilter::Any, |streams| {
                    StreamFilter::Only(streams.into_iter().map(StreamId).collect())
                });
                self.model.begin(pool, streams);
                self.expect_ok(|engine| engine.begin_allocate_to_pool(pool_id(pool), filter));
            }
            Command::End(pool) => {
                self.model.end(pool);
                self.expect_ok(|engine| engine.end_allocate_to_pool(pool_id(pool)));
            }
            Command::Release(pool) => {
                self.model.release(pool);
                self.expect_ok(|engine| engine.release_pool(pool_id(pool)));
            }
            Command::BeginCapture => {
                self.model.captures += 1;
                self.engine.begin_capture(Capture::Everywhere);
            }
            Command::EndCapture => {
                self.model.captures -= 1;
                self.expect_ok(Engine::end_capture);
            }
            Command::NoSplit(pool) => {
                self.model.pools[pool].no_split = true;
                self.expect_ok(|engine| engine.set_pool_no_split(pool_id(pool)));
            }
            Command::UseOnOom(pool, on) => {
                self.model.pools[pool].use_on_oom = on;
                self.engine.set_pool_use_on_oom(pool_id(pool), on);
            }
            Command::Configure(settings) => {
                self.model.settings.apply(&settings);
                self.expect_ok(|engine| engine.configure(&conf(&settings)));
            }
            Command::Fraction(fraction) => {
                self.model.set_fraction(fraction);
                self.expect_ok(|engine| engine.set_memory_fraction(fraction));
                self.check(self.engine.limit() == self.model.limit, || "the limit".to_owned());
            }
            Command::ResetPeaks => {
                let figures = self.model.figures(None);
                self.model.counts.peaks = [5, 4, 6].map(|index| figures[index].1);
                self.engine.reset_peak_stats();
            }
        }
        self.compare_figures();
        if self.step.is_multiple_of(LOOK_EVERY) {
            self.compare_segments();
        }
    }

    fn expect_ok<E: std::fmt::Display>(
        &mut self,
        call: impl FnOnce(&mut Engine<Dry>) -> Result<(), E>,
    ) {
        if let Err(error) = call(&mut self.engine) {
            self.fail(&format!("the engine refuses: {error}"));
        }
    }

    fn allocate(&mut self, bytes: u64, stream: u64) {
        let expected = self.model.allocate(bytes, stream);
        let got = match self.engine.allocate(bytes, StreamId(stream)) {
            Ok(block) => {
                let end = block.address.0 + block.size;
                self.check(block.size >= bytes, || "the block is too small".to_owned());
                let below = self.live.range(..end).next_back();
                let apart = below.is_none_or(|(_, &other_end)| other_end <= block.address.0);
                self.check(apart, || format!("{block:?} lies in a live block"));
                self.live.insert(block.address.0, end);
                self.last = Some(Last { bytes, stream, block: block.address.0 });
                Some(block.address.0)
            }
            Err(AllocError::OutOfMemory(_) | AllocError::Rejected(_)) => None,
            Err(error) => self.fail(&error.to_string()),
        };
        self.check(got == expected, || format!("the model has {expected:x?}, the engine {got:x?}"));
    }

    fn compare_figures(&self) {
        let stats = self.engine.stats();
        let halves = [("all", None), ("small", Some(true)), ("large", Some(false))];
        for (index, (half, small)) in halves.into_iter().enumerate() {
            let figures = self.model.figures(small);
            for ((name, expected), array) in figures.into_iter().zip(arrays(stats)) {
                let got = [array.all, array.small_pool, array.large_pool][index].current;
                self.check(got == expected, || {
                    format!("{name}.{half}: the model has {expected}, the engine {got}")
                });
            }
        }
        let got = allocator::Counts {
            retries: stats.num_alloc_retries,
            ooms: stats.num_ooms,
            rejections: stats.num_oom_rejections,
            syncs: stats.num_sync_all_streams,
            device_allocs: stats.num_device_alloc,
            device_frees: stats.num_device_free,
            oversize_allocations: stats.oversize_allocations.current,
            oversize_segments: stats.oversize_segments.current,
            peaks: [stats.reserved_bytes, stats.allocated_bytes, stats.active_bytes]
                .map(|array| array.all.peak),
        };
        let expected = &self.model.counts;
        self.check(&got == expected, || format!("the model has {expected:?},\nthe engine {got:?}"));
        for pool in 1..self.model.pools.len() {
            let halves = [true, false].map(|small| self.model.reserved_of(pool, small) as i64);
            let got = stats.reserved_bytes_by_private_pools.get(&pool_id(pool));
            let got = got.map_or([0; 2], |it| [it.small_pool.current, it.large_pool.current]);
            self.check(got == halves, || format!("pool {pool}: {halves:?} in the model, {got:?}"));
        }
        let [allocated, active, reserved] =
            [stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes];
        self.engine.check_invariants().unwrap_or_else(|broken| self.fail(&broken));
        let ordered = allocated.all.current <= active.all.current
            && active.all.current <= reserved.all.current;
        self.check(ordered, || "not allocated ≤ active ≤ reserved".to_owned());
        let used = self.engine.device().used();
        self.check(used == stats.memory_reserved(), || format!("the device has given {used}"));
    }

    fn compare_segments(&self) {
        let got: Vec<_> = self.engine.segments().iter().map(show_segment).collect();
        let expected: Vec<_> = self.model.runs().iter().map(|run| self.show_run(run)).collect();
        self.check(got == expected, || "the segments differ".to_owned());
    }

    /// Frees everything: then nothing may be left.
    fn give_everything_back(&mut self) {
        while let Some(&(pool, _)) = self.model.diversions.first() {
            self.play(Command::End(pool));
        }
        while self.model.captures > 0 {
            self.play(Command::EndCapture);
        }
        for block in self.model.with_state(State::Allocated) {
            self.play(Command::Free(block));
        }
        for pool in 1..self.model.pools.len() {
            for _ in 0..self.model.pools[pool].uses {
                self.play(Command::Release(pool));
            }
        }
        self.play(Command::EmptyCache);
        self.compare_segments();
        let left = (self.engine.stats().memory_reserved(), self.engine.device().used());
        self.check(left == (0, 0), || format!("reserved and used are {left:?} at the end"));
        self.check(self.engine.segments().is_empty(), || "segments are left".to_owned());
        self.engine.check_invariants().unwrap_or_else(|broken| self.fail(&broken));
        self.play(Command::Allocate { bytes: 100, stream: STREAMS[0] });
    }

    fn show_run(&self, run: &[&Block]) -> String {
        let first = run[0];
        let kind = if first.small { PoolKind::Small } else { PoolKind::Large };
        let pool = pool_id(first.pool);
        let expandable = first.is_expandable();
        let mut text = format!("{:#x} {kind} {pool} {} {expandable}:", first.address, first.stream);
        for block in run {
            text += &match block.state {
                State::Allocated => format!(" {}({})", block.size, block.requested),
                State::Pending => format!(" {}({}) pending", block.size, block.requested),
                State::Free => format!(" {} free", block.size),
                State::Unmapped => unreachable!("runs are mapped"),
            };
        }
        text
    }
}

fn show_segment(segment: &SnapshotSegment) -> String {
    let SnapshotSegment { address, kind, pool, stream, expandable, blocks, .. } = segment;
    let mut text = format!("{address} {kind} {pool} {stream} {expandable}:");
    for block in blocks {
        text += &match block.state {
            BlockState::ActiveAllocated => format!(" {}({})", block.size, block.requested_size),
            BlockState::ActivePendingFree => {
                format!(" {}({}) pending", block.size, block.requested_size)
            }
            // What was once asked for depends on the order of merging, which is not specified (Q5).
            BlockState::Inactive => format!(" {} free", block.size),
        };
    }
    text
}

/// The figures in the model's order.
fn arrays(stats: &Stats) -> [&StatArray; 9] {
    [
        &stats.allocation,
        &stats.segment,
        &stats.active,
        &stats.inactive_split,
        &stats.allocated_bytes,
        &stats.reserved_bytes,
        &stats.active_bytes,
        &stats.inactive_split_bytes,
        &stats.requested_bytes,
    ]
}

fn run_seeds(seeds: Range<u64>) {
    for seed in seeds {
        let mut random = Random::new(seed);
        let plan = Plan::of(&mut random);
        let mut run = Run::new(seed, &plan);
        for _ in 0..COMMANDS {
            let command = commands::next(&mut random, &plan, &run.model, run.last);
            run.play(command);
        }
        run.give_everything_back();
    }
}

// Two tests, so that they run side by side.

#[test]
fn the_engine_does_what_the_model_does_in_the_first_half_of_the_seeds() {
    run_seeds(0..seeds() / 2);
}

#[test]
fn the_engine_does_what_the_model_does_in_the_second_half_of_the_seeds() {
    run_seeds(seeds() / 2..seeds());
}

#[test]
fn the_random_commands_reach_every_part_of_the_allocator() {
    let mut reached = BTreeMap::new();
    for seed in 0..240 {
        let mut random = Random::new(seed);
        let plan = Plan::of(&mut random);
        let mut run = Run::new(seed, &plan);
        for _ in 0..COMMANDS {
            let command = commands::next(&mut random, &plan, &run.model, run.last);
            run.play(command);
            let counts = &run.model.counts;
            let release = plan.release;
            let pending = !run.model.with_state(State::Pending).is_empty();
            for (name, yes) in [
                ("a retry", counts.retries > 0),
                ("a failure", counts.ooms > 0),
                ("an oversize block", counts.oversize_allocations > 0),
                ("memory given back", counts.device_frees > 0),
                ("a pending block", pending),
                ("a deferred block", pending && !run.model.diversions.is_empty()),
                ("a capture from 2.13 on", run.model.captures > 0 && release >= Release::V2_13),
                (
                    "a pool scope that is no capture",
                    run.model.captures == 0
                        && !run.model.diversions.is_empty()
                        && release >= Release::V2_13,
                ),
                ("a rejected request", counts.rejections > 0),
                (
                    "a range of a size that was set",
                    run.model.settings.reserve.is_some() && run.model.settings.expandable,
                ),
                ("two diversions", run.model.diversions.len() == 2),
                ("a block of a private pool", run.model.blocks.iter().any(|it| it.pool > 0)),
                (
                    "a range left behind, since the request was larger",
                    run.model
                        .blocks
                        .iter()
                        .any(|it| it.state == State::Unmapped && it.size > run.model.total)
                        && matches!(
                            run.history.last(),
                            Some(&Command::Allocate { bytes, .. }) if bytes > run.model.total
                        ),
                ),
                (
                    "a range that its pool left behind",
                    run.model.blocks.iter().any(|it| it.pool == allocator::NO_POOL),
                ),
                (
                    "a pool that is not gone though it holds nothing",
                    (1..run.model.pools.len()).any(|pool| {
                        let it = &run.model.pools[pool];
                        it.uses == 0 && it.growths > 0 && !run.model.holds_memory(pool)
                    }),
                ),
                ("a limit of the whole device", run.model.limit == Some(run.model.total)),
                ("an expandable block", run.model.blocks.iter().any(Block::is_expandable)),
                (
                    "an expandable block of a private pool",
                    run.model.blocks.iter().any(|it| it.pool > 0 && it.is_expandable()),
                ),
                (
                    "both kinds of segments",
                    run.model.blocks.iter().any(Block::is_expandable)
                        && !run.model.blocks.iter().all(Block::is_expandable),
                ),
            ] {
                *reached.entry(name).or_insert(0) += u32::from(yes);
            }
        }
    }
    for (name, times) in &reached {
        assert!(*times >= 20, "{name} was reached {times} times: {reached:?}");
    }
}
