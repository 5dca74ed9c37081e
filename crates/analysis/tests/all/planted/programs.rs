//! Small programs with a known fault, recorded on the engine itself.
//!
//! In:  a seed: sizes, lengths of loops and noise depend on it.
//! Out: a [`Planted`]: the recording, and what the report must say of it.

use std::cell::Cell;
use std::panic::Location;

use tonnage_analysis::report::Cause;
use tonnage_device::Dry;
use tonnage_engine::{Allocation, Config, Engine, RecordOptions, Release, StreamFilter};
use tonnage_events::{DeviceId, PoolId, StreamId};
use tonnage_replay::snapshot_file;
use tonnage_snapshot::{Annotation, SnapshotFile, Stage};

pub(crate) const MIB: u64 = 1 << 20;
const TOTAL: u64 = 80 << 30;
const MAIN: StreamId = StreamId::DEFAULT;
pub(crate) const SIDE: StreamId = StreamId(7);

/// A recording with a fault.
pub(crate) struct Planted {
    pub(crate) file: SnapshotFile,
    pub(crate) cause: Cause,
    pub(crate) bytes: u64,
    /// The line to blame, as `file:line`; none where there is no such line.
    pub(crate) line: Option<String>,
    /// Whether the history has lost its beginning.
    pub(crate) ring: bool,
}

thread_local! {
    /// Microseconds: each entry and each mark has its own.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn tick() -> u64 {
    NOW.replace(NOW.get() + 1) + 1
}

/// A program on its way.
pub(crate) struct Program {
    pub(crate) engine: Engine<Dry>,
    state: u64,
    marks: Vec<Annotation>,
}

impl Program {
    pub(crate) fn new(seed: u64, conf: &str) -> Self {
        Self::on(Dry::new(TOTAL), seed, conf)
    }

    pub(crate) fn on(device: Dry, seed: u64, conf: &str) -> Self {
        let config = Config::parse(conf, Release::default()).unwrap();
        let mut engine = Engine::new(device, config);
        engine.record_history(Some(RecordOptions { clock: tick, ..RecordOptions::default() }));
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { engine, state, marks: Vec::new() }
    }

    /// A number from `from` up to `to`, by xorshift.
    pub(crate) fn pick(&mut self, from: u64, to: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        from + self.state % (to - from + 1)
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, bytes: u64) -> Allocation {
        self.engine.allocate(bytes, MAIN).unwrap()
    }

    #[track_caller]
    pub(crate) fn ask_on(&mut self, bytes: u64, stream: StreamId) -> Allocation {
        self.engine.allocate(bytes, stream).unwrap()
    }

    pub(crate) fn free(&mut self, blocks: impl IntoIterator<Item = Allocation>) {
        for block in blocks {
            self.engine.free(&block).unwrap();
        }
    }

    /// Parameters of a model: what every job has.
    pub(crate) fn parameters(&mut self, blocks: u64, bytes: u64) -> Vec<Allocation> {
        (0..blocks).map(|_| self.ask(bytes)).collect()
    }

    /// An iteration of a model: activations that go in the opposite order.
    pub(crate) fn iterate(&mut self, layers: u64, bytes: u64) {
        let mut kept: Vec<_> = (0..layers).map(|_| self.ask(bytes)).collect();
        while let Some(block) = kept.pop() {
            let gradient = self.ask(bytes / 2);
            self.free([block, gradient]);
        }
    }

    /// A scope of the optimizer, as PyTorch marks it.
    pub(crate) fn marked(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        let mark =
            |stage| Annotation { name: name.into(), stage, device: DeviceId(0), time_us: tick() };
        self.marks.push(mark(Stage::Start));
        inside(self);
        self.marks.push(mark(Stage::End));
    }

    /// The first step of an optimizer makes its states, and each has a temporary for each parameter.
    fn step(&mut self, first: bool, blocks: u64, bytes: u64) {
        self.marked("Optimizer.step#AdamW.step", |program| {
            if first {
                program.parameters(2 * blocks, bytes);
            }
            for _ in 0..blocks {
                let update = program.ask(bytes);
                program.free([update]);
            }
        });
    }

    /// Most bytes that were asked for and live at once.
    pub(crate) fn most_requested(&self) -> u64 {
        self.engine.stats().requested_bytes.all.peak.cast_unsigned()
    }

    /// The recording, with the line of the caller's file that is to blame.
    #[track_caller]
    pub(crate) fn planted(mut self, cause: Cause, bytes: u64, line: Option<u32>) -> Planted {
        let mut file = snapshot_file(self.engine.snapshot(), DeviceId(0));
        file.annotations = self.marks;
        let source = Location::caller().file();
        let line = line.map(|line| format!("{source}:{line}"));
        Planted { file, cause, bytes, line, ring: false }
    }
}

/// Every loss is kept, with the outputs that its graph holds.
pub(crate) fn summed_losses(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (iterations, layer) = (program.pick(8, 30), program.pick(4, 8) * 2 * MIB);
    let outputs = program.pick(3, 9) * MIB + program.pick(0, 4000);
    program.parameters(6, 12 * MIB);
    let mut total = Vec::new();
    let mut line = 0;
    for _ in 0..iterations {
        program.iterate(5, layer);
        line = line!() + 1;
        total.push(program.ask(outputs));
    }
    // The program goes on to its end, where everything is freed.
    program.free(total);
    program.planted(Cause::Leak, iterations * outputs, Some(line))
}

/// A few elements of each batch are kept, and with them the batch.
pub(crate) fn kept_views(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (iterations, layer) = (program.pick(6, 20), program.pick(6, 12) * 2 * MIB);
    let base = program.pick(12, 20) * MIB;
    program.parameters(4, 16 * MIB);
    let mut previous: Option<Allocation> = None;
    let line = line!() + 2;
    for _ in 0..iterations {
        let _base_of_the_view = program.ask(base);
        program.iterate(4, layer);
        // What the next iteration replaces is no leak.
        let carried = program.ask(5 * MIB);
        program.free(previous.replace(carried));
    }
    program.planted(Cause::Leak, iterations * base, Some(line))
}

/// Two networks that train in turns, with optimizers of one kind; each round keeps what the first made.
pub(crate) fn two_optimizers(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (rounds, made) = (program.pick(6, 15), program.pick(3, 9) * 2 * MIB);
    program.parameters(8, 6 * MIB);
    let line = line!() + 2;
    for round in 0..rounds {
        let _sample = program.ask(made);
        program.iterate(3, 4 * MIB);
        program.step(round == 0, 3, 3 * MIB);
        program.iterate(7, 7 * MIB);
        program.step(round == 0, 4, 5 * MIB);
    }
    program.planted(Cause::Leak, rounds * made, Some(line))
}

/// Every few iterations something is kept, for a plot.
pub(crate) fn kept_now_and_then(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (often, kept) = (program.pick(3, 6), program.pick(8, 16) * 2 * MIB);
    program.parameters(4, 10 * MIB);
    let line = line!() + 5;
    for iteration in 0..12 * often {
        program.iterate(4, 10 * MIB);
        program.step(iteration == 0, 4, 10 * MIB);
        if iteration % often == 0 {
            program.ask(kept);
        }
    }
    program.planted(Cause::Leak, 12 * kept, Some(line))
}

/// Gradients are dropped before each pass: what precedes the first mark is no iteration.
pub(crate) fn steady_training(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (iterations, layers) = (program.pick(4, 12), program.pick(4, 9));
    let layer = program.pick(6, 12) * 2 * MIB;
    let line = line!() + 1;
    let _weights: Vec<_> = (0..30).map(|_| program.ask(20 * MIB)).collect();
    for iteration in 0..iterations {
        program.marked("Optimizer.zero_grad#AdamW.zero_grad", |_| {});
        program.iterate(layers, layer);
        program.step(iteration == 0, 4, 20 * MIB);
    }
    let bytes = 38 * 20 * MIB + (layers * layer + layer / 2).max(20 * MIB);
    program.planted(Cause::Need, bytes, Some(line))
}

/// Batches grow, and the first step makes the optimizer's states: the second iteration is the first that is steady.
pub(crate) fn longer_training(seed: u64) -> Planted {
    let mut program = Program::new(seed, "expandable_segments:True");
    let (iterations, unit) = (program.pick(6, 12), program.pick(4, 9) * 2 * MIB);
    program.parameters(6, 12 * MIB);
    let mut batches = Vec::new();
    let line = line!() + 4;
    for iteration in 0..iterations {
        let length = 3 + 2 * iteration.saturating_sub(1);
        for _ in 0..5 {
            batches.push(program.ask(length * unit));
        }
        program.free(batches.drain(..));
        program.step(iteration == 0, 6, 12 * MIB);
    }
    program.planted(Cause::LongerInputs, 5 * 2 * (iterations - 2) * unit, Some(line))
}

/// Later batches are several times as long; room that a long one leaves serves the next.
pub(crate) fn longer_inputs(seed: u64) -> Planted {
    let mut program = Program::new(seed, "expandable_segments:True");
    let (iterations, unit) = (program.pick(6, 12), program.pick(8, 20) * 2 * MIB);
    program.parameters(5, 12 * MIB);
    let mut bytes = 0;
    let line = line!() + 5;
    for iteration in 0..iterations {
        let length = 1 + iteration;
        let mut kept = Vec::new();
        for _ in 0..4 {
            kept.push(program.ask(length * unit));
        }
        bytes = 4 * (length - 1) * unit;
        program.free(kept);
    }
    program.planted(Cause::LongerInputs, bytes, Some(line))
}

/// Each sequence is a little longer than the last, and none fits the blocks that those left.
pub(crate) fn growing_sequences(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (iterations, first) = (program.pick(8, 16), program.pick(20, 40) * 2 * MIB);
    program.parameters(5, 12 * MIB);
    let mut wasted = 0;
    let line = line!() + 3;
    for iteration in 0..iterations {
        let length = first + iteration * 4 * MIB;
        let block = program.ask(length);
        program.free([block]);
        if iteration + 1 < iterations {
            wasted += length;
        }
    }
    program.planted(Cause::Fragmentation, wasted, Some(line))
}

/// Copies on a side stream leave their blocks there.
pub(crate) fn hoarding_stream(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (blocks, bytes) = (program.pick(3, 9), program.pick(20, 60) * 2 * MIB);
    program.parameters(5, 10 * MIB);
    let line = line!() + 1;
    let staged: Vec<_> = (0..blocks).map(|_| program.ask_on(bytes, SIDE)).collect();
    program.free(staged);
    let _work = program.ask(bytes);
    program.planted(Cause::Stream, blocks * bytes, Some(line))
}

/// A small result is cut from each large segment, and stays.
pub(crate) fn pinned_segments(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (segments, large) = (program.pick(4, 10), program.pick(20, 50) * 2 * MIB);
    let small = 2 * MIB;
    program.parameters(5, 20 * MIB);
    let line = line!() + 5;
    let mut fillers = Vec::new();
    for _ in 0..segments {
        let scratch = program.ask(large);
        program.free([scratch]);
        let _result = program.ask(small);
        fillers.push(program.ask(large - small));
    }
    program.free(fillers);
    let _work = program.ask(large);
    program.planted(Cause::PinnedSegment, segments * (large - small), Some(line))
}

/// A graph's pool keeps what its capture used in between.
pub(crate) fn private_pool(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (blocks, bytes) = (program.pick(3, 8), program.pick(20, 40) * 2 * MIB);
    program.parameters(5, 10 * MIB);
    let pool = PoolId(0, 1);
    program.engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
    let line = line!() + 1;
    let captured: Vec<_> = (0..blocks).map(|_| program.ask(bytes)).collect();
    program.free(captured);
    program.engine.end_allocate_to_pool(pool).unwrap();
    let _work = program.ask(bytes);
    program.planted(Cause::PrivatePool, blocks * bytes, Some(line))
}

/// Another stream is busy with blocks that are freed.
pub(crate) fn pending_frees(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    program.engine.device_mut().hold_events();
    let (blocks, bytes) = (program.pick(4, 12), program.pick(10, 40) * 2 * MIB);
    program.parameters(5, 10 * MIB);
    let line = line!() + 2;
    for _ in 0..blocks {
        let batch = program.ask(bytes);
        program.engine.record_stream_of(&batch, SIDE).unwrap();
        program.free([batch]);
    }
    let _work = program.ask(bytes);
    program.planted(Cause::Pending, blocks * bytes, Some(line))
}

/// Sizes just over a power of two, rounded up to the next division.
pub(crate) fn rounded_sizes(seed: u64) -> Planted {
    let mut program = Program::new(seed, "roundup_power2_divisions:2");
    let blocks = program.pick(3, 8);
    let bytes = 64 * MIB + program.pick(1, 8 * MIB);
    let line = line!() + 1;
    let _odd: Vec<_> = (0..blocks).map(|_| program.ask(bytes)).collect();
    program.planted(Cause::Rounding, blocks * (96 * MIB - bytes), Some(line))
}

/// A model that is as large as it is.
pub(crate) fn true_need(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (iterations, layers) = (program.pick(5, 12), program.pick(4, 9));
    let layer = program.pick(6, 12) * 2 * MIB;
    let line = line!() + 1;
    let _weights: Vec<_> = (0..40).map(|_| program.ask(20 * MIB)).collect();
    for _ in 0..iterations {
        program.iterate(layers, layer);
    }
    let bytes = 40 * 20 * MIB + layers * layer + layer / 2;
    program.planted(Cause::Need, bytes, Some(line))
}

/// One step only: the way back through equal layers keeps a gradient of each, and frees what its layer had kept.
pub(crate) fn one_way_back(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (layers, layer) = (program.pick(12, 30), program.pick(6, 12) * 2 * MIB);
    let _weights = program.parameters(layers, 2 * MIB);
    let line = line!() + 1;
    let mut kept: Vec<_> = (0..layers).map(|_| program.ask(layer)).collect();
    let mut flow = program.ask(layer);
    let mut gradients = Vec::new();
    while let Some(block) = kept.pop() {
        let next = program.ask(layer);
        gradients.push(program.ask(2 * MIB));
        program.free([block, std::mem::replace(&mut flow, next)]);
    }
    program.free([flow]);
    let bytes = layers * 2 * MIB + (layers + 2) * layer + 2 * MIB;
    program.planted(Cause::Need, bytes, Some(line))
}

/// A forward pass through equal layers: each frees what is temporary and keeps three blocks for the way back.
fn forward(program: &mut Program, layers: u64, layer: u64) -> (Vec<[Allocation; 3]>, u32) {
    let mut kept = Vec::new();
    let line = line!() + 3;
    for _ in 0..layers {
        let normed = program.ask(MIB * 2);
        let hidden = program.ask(4 * layer);
        let temporary = program.ask(layer);
        let output = program.ask(layer);
        program.free([temporary]);
        kept.push([normed, hidden, output]);
    }
    (kept, line)
}

/// A pass forward and back, once, through layers that a loop goes over.
pub(crate) fn one_step(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (layers, layer) = (program.pick(12, 48), program.pick(3, 6) * 2 * MIB);
    let _weights = program.parameters(2 * layers, 3 * MIB);
    let (mut kept, line) = forward(&mut program, layers, layer);
    let mut gradients = Vec::new();
    while let Some(blocks) = kept.pop() {
        gradients.push(program.ask(3 * MIB));
        gradients.push(program.ask(3 * MIB));
        program.free(blocks);
    }
    let bytes = 2 * layers * 3 * MIB + layers * (2 * MIB + 5 * layer) + 6 * MIB;
    program.planted(Cause::Need, bytes, Some(line))
}

/// The same forward alone: the snapshot is taken before anything goes back.
pub(crate) fn one_forward(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (layers, layer) = (program.pick(12, 48), program.pick(3, 6) * 2 * MIB);
    let _weights = program.parameters(2 * layers, 3 * MIB);
    let (_kept, line) = forward(&mut program, layers, layer);
    let bytes = 2 * layers * 3 * MIB + layers * (2 * MIB + 5 * layer) + layer;
    program.planted(Cause::Need, bytes, Some(line))
}

/// Someone else has most of the device.
pub(crate) fn outside(seed: u64) -> Planted {
    let others = 60 << 30;
    let mut program = Program::on(Dry::new(TOTAL).with_capacity(TOTAL - others), seed, "");
    let bytes = program.pick(300, 500) * 2 * MIB;
    while program.engine.allocate(bytes, MAIN).is_ok() {}
    program.planted(Cause::Outside, others, None)
}

/// The device's bytes, which no file tells.
pub(crate) fn total() -> u64 {
    TOTAL
}
