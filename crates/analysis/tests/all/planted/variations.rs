//! The same faults in less tidy programs, and programs that only look as if they had one.
//!
//! In:  a seed.
//! Out: a [`Planted`], as in `programs.rs`.

use tonnage_analysis::report::Cause;
use tonnage_engine::{Allocation, StreamFilter};
use tonnage_events::PoolId;

use super::programs::{MIB, Planted, Program, SIDE};

/// A network that trains: layers of one size, gradients that stay until the next step drops them.
struct Network {
    layers: u64,
    weight: u64,
    activation: u64,
    gradients: Vec<Allocation>,
    states: Vec<Allocation>,
}

impl Network {
    fn new(program: &mut Program, layers: u64, weight: u64, activation: u64) -> Self {
        program.parameters(layers, weight);
        Self { layers, weight, activation, gradients: Vec::new(), states: Vec::new() }
    }

    /// Forward; the activations are handed over.
    fn forward(&self, program: &mut Program, activation: u64) -> Vec<Allocation> {
        let mut kept = Vec::new();
        for _ in 0..self.layers {
            kept.push(program.ask(activation));
            let temporary = program.ask(activation / 2);
            program.free([temporary]);
        }
        kept
    }

    /// Back through the activations, adding to gradients that are there or making them.
    fn backward(&mut self, program: &mut Program, mut kept: Vec<Allocation>) {
        let makes = self.gradients.is_empty();
        while let Some(activation) = kept.pop() {
            if makes {
                self.gradients.push(program.ask(self.weight));
            } else {
                let update = program.ask(self.weight);
                program.free([update]);
            }
            program.free([activation]);
        }
    }

    fn zero_grad(&mut self, program: &mut Program) {
        let gradients = std::mem::take(&mut self.gradients);
        program.marked("Optimizer.zero_grad#AdamW.zero_grad", |program| program.free(gradients));
    }

    /// A step, which makes the states if there are none.
    fn step(&mut self, program: &mut Program) {
        let (states, layers, weight) = (&mut self.states, self.layers, self.weight);
        program.marked("Optimizer.step#AdamW.step", |program| {
            if states.is_empty() {
                states.extend(program.parameters(2 * layers, weight));
            }
            for _ in 0..layers {
                let update = program.ask(weight);
                program.free([update]);
            }
        });
    }

    /// A whole step on a batch.
    fn train(&mut self, program: &mut Program, activation: u64) {
        self.zero_grad(program);
        let batch = program.ask(3 * MIB);
        let kept = self.forward(program, activation);
        self.backward(program, kept);
        program.free([batch]);
        self.step(program);
    }

    /// A pass that needs no way back.
    fn evaluate(&self, program: &mut Program, activation: u64) {
        let mut last = program.ask(activation);
        for _ in 0..self.layers {
            let next = program.ask(activation);
            program.free([std::mem::replace(&mut last, next)]);
        }
        program.free([last]);
    }
}

/// Most that is live in a program without a fault, told by its history alone.
fn most_live(program: &Program) -> u64 {
    program.most_requested()
}

/// Warm-up steps with other sizes come first; then every step keeps a hundredth of all memory.
pub(crate) fn small_leak_after_warm_up(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (steps, kept) = (program.pick(20, 40), 6 * MIB + program.pick(0, 9000));
    let mut network = Network::new(&mut program, 6, 10 * MIB, 14 * MIB);
    for _ in 0..3 {
        network.train(&mut program, 6 * MIB);
    }
    let line = line!() + 3;
    for _ in 0..steps {
        network.train(&mut program, 14 * MIB);
        program.ask(kept);
    }
    program.planted(Cause::Leak, steps * kept, Some(line))
}

/// Every tenth step keeps its outputs for a picture.
pub(crate) fn leak_every_tenth_step(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (tens, kept) = (program.pick(6, 10), program.pick(12, 20) * 2 * MIB);
    let mut network = Network::new(&mut program, 4, 10 * MIB, 20 * MIB);
    let line = line!() + 4;
    for step in 0..10 * tens {
        network.train(&mut program, 20 * MIB);
        if step % 10 == 9 {
            program.ask(kept);
        }
    }
    program.planted(Cause::Leak, tens * kept, Some(line))
}

/// Predictions of an epoch are gathered, and dropped when it ends; the snapshot is taken within one.
pub(crate) fn list_cleared_each_epoch(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (epochs, steps) = (program.pick(4, 6), program.pick(8, 12));
    let mut network = Network::new(&mut program, 12, 30 * MIB, 30 * MIB);
    let mut gathered = Vec::new();
    for epoch in 0..epochs {
        let steps = if epoch + 1 == epochs { steps / 2 } else { steps };
        for _ in 0..steps {
            network.train(&mut program, 30 * MIB);
            gathered.push(program.ask(8 * MIB));
        }
        if epoch + 1 < epochs {
            program.free(gathered.drain(..));
        }
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// An evaluation follows each epoch, with other batches and without a way back.
pub(crate) fn evaluation_between_epochs(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (epochs, steps) = (program.pick(3, 5), program.pick(4, 8));
    let mut network = Network::new(&mut program, 8, 20 * MIB, 20 * MIB);
    for _ in 0..epochs {
        for _ in 0..steps {
            network.train(&mut program, 20 * MIB);
        }
        for _ in 0..3 {
            network.evaluate(&mut program, 30 * MIB);
        }
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// Evaluations keep their predictions; the training between them keeps nothing.
pub(crate) fn leak_in_evaluation(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (epochs, kept) = (program.pick(8, 12), program.pick(4, 8) * 2 * MIB + MIB);
    let mut network = Network::new(&mut program, 5, 10 * MIB, 16 * MIB);
    let line = line!() + 7;
    for _ in 0..epochs {
        for _ in 0..4 {
            network.train(&mut program, 16 * MIB);
        }
        for _ in 0..3 {
            network.evaluate(&mut program, 12 * MIB);
            program.ask(kept);
        }
    }
    program.planted(Cause::Leak, epochs * 3 * kept, Some(line))
}

/// A private pool whose memory is in use: there is nothing to gain from it.
pub(crate) fn private_pool_in_use(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (blocks, bytes) = (program.pick(6, 12), program.pick(20, 40) * 2 * MIB);
    program.parameters(5, 10 * MIB);
    let pool = PoolId(0, 1);
    program.engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
    let _captured: Vec<_> = (0..blocks).map(|_| program.ask(bytes)).collect();
    program.engine.end_allocate_to_pool(pool).unwrap();
    for _ in 0..6 {
        program.iterate(3, 6 * MIB);
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// Gradients of several micro-batches add up, of which the last is smaller.
pub(crate) fn uneven_accumulation(seed: u64) -> Planted {
    let mut program = Program::new(seed, "expandable_segments:True");
    let (steps, micro) = (program.pick(3, 6), program.pick(3, 5));
    let mut network = Network::new(&mut program, 8, 24 * MIB, 24 * MIB);
    for _ in 0..steps {
        network.zero_grad(&mut program);
        for part in 0..micro {
            let activation = if part + 1 == micro { 10 * MIB } else { network.activation };
            let kept = network.forward(&mut program, activation);
            network.backward(&mut program, kept);
        }
        network.step(&mut program);
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// The first step tries out algorithms with workspaces of all sizes.
pub(crate) fn autotuning_first_step(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let steps = program.pick(5, 12);
    let mut network = Network::new(&mut program, 10, 30 * MIB, 30 * MIB);
    for step in 0..steps {
        if step == 0 {
            for tried in [24, 40, 70] {
                let workspace = program.ask(tried * 2 * MIB);
                program.free([workspace]);
            }
        }
        network.train(&mut program, 30 * MIB);
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// An average of the parameters begins after a few steps; it is made once.
pub(crate) fn average_begins_later(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (before, after) = (program.pick(3, 6), program.pick(4, 10));
    let mut network = Network::new(&mut program, 10, 30 * MIB, 20 * MIB);
    let mut average = Vec::new();
    for step in 0..before + after {
        network.train(&mut program, 20 * MIB);
        if step + 1 == before {
            average.extend(program.parameters(10, 30 * MIB));
        }
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// A copy of the parameters is made anew in each step, before the old one goes.
pub(crate) fn copy_replaced_each_step(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let steps = program.pick(5, 12);
    let mut network = Network::new(&mut program, 10, 30 * MIB, 20 * MIB);
    let mut copy = Vec::new();
    for _ in 0..steps {
        network.train(&mut program, 20 * MIB);
        let new = program.parameters(10, 30 * MIB);
        program.free(std::mem::replace(&mut copy, new));
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// A scaler skips the first steps, so that the optimizer's states come late.
pub(crate) fn states_come_late(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (skipped, steps) = (program.pick(1, 3), program.pick(6, 10));
    let mut network = Network::new(&mut program, 10, 30 * MIB, 20 * MIB);
    for step in 0..steps {
        network.zero_grad(&mut program);
        let kept = network.forward(&mut program, 20 * MIB);
        network.backward(&mut program, kept);
        if step < skipped {
            program.marked("Optimizer.step#AdamW.step", |_| {});
        } else {
            network.step(&mut program);
        }
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// A buffer of experiences fills up and then replaces its oldest.
pub(crate) fn bounded_buffer(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (steps, held) = (program.pick(30, 50), program.pick(6, 10) as usize);
    let mut network = Network::new(&mut program, 10, 30 * MIB, 30 * MIB);
    let mut buffer = std::collections::VecDeque::new();
    for _ in 0..steps {
        network.train(&mut program, 30 * MIB);
        buffer.push_back(program.ask(12 * MIB));
        if buffer.len() > held {
            program.free(buffer.pop_front());
        }
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// Batches are fetched ahead, two at a time, while others are trained on.
pub(crate) fn batches_ahead(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let steps = program.pick(5, 12);
    let mut network = Network::new(&mut program, 10, 30 * MIB, 30 * MIB);
    let mut ahead = std::collections::VecDeque::new();
    for _ in 0..steps {
        while ahead.len() < 3 {
            ahead.push_back(program.ask(16 * MIB));
        }
        network.train(&mut program, 30 * MIB);
        program.free(ahead.pop_front());
    }
    let bytes = most_live(&program);
    program.planted(Cause::Need, bytes, None)
}

/// Few steps, each with a graph that stays: many blocks of several sizes.
pub(crate) fn short_history_of_graphs(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let steps = program.pick(4, 6);
    let mut network = Network::new(&mut program, 5, 8 * MIB, 12 * MIB);
    let line = line!() + 4;
    for _ in 0..steps {
        network.train(&mut program, 12 * MIB);
        for part in [12, 9, 6, 3] {
            program.ask(part * MIB);
        }
    }
    program.planted(Cause::Leak, steps * 30 * MIB, Some(line))
}

/// Few steps, on longer batches each.
pub(crate) fn short_history_of_longer_inputs(seed: u64) -> Planted {
    let mut program = Program::new(seed, "expandable_segments:True");
    let (steps, unit) = (program.pick(4, 6), program.pick(4, 8) * 2 * MIB);
    program.parameters(4, 8 * MIB);
    let line = line!() + 4;
    for step in 0..steps {
        let mut kept = Vec::new();
        for _ in 0..6 {
            kept.push(program.ask((step + 2) * unit));
            let temporary = program.ask(unit);
            program.free([temporary]);
        }
        program.free(kept);
    }
    program.planted(Cause::LongerInputs, 6 * (steps - 1) * unit, Some(line))
}

/// Lengths go up and down; the longest comes in the middle.
pub(crate) fn longest_in_the_middle(seed: u64) -> Planted {
    let mut program = Program::new(seed, "expandable_segments:True");
    let unit = program.pick(3, 6) * 2 * MIB;
    program.parameters(4, 8 * MIB);
    let lengths = [3, 4, 3, 6, 5, 12, 4, 3, 7, 5];
    let line = line!() + 4;
    for length in lengths {
        let mut kept = Vec::new();
        for _ in 0..6 {
            kept.push(program.ask(length * unit));
            let temporary = program.ask(unit);
            program.free([temporary]);
        }
        program.free(kept);
    }
    program.planted(Cause::LongerInputs, 6 * 9 * unit, Some(line))
}

/// A history that has lost its beginning to a bound on its entries: hidden states are kept all the while.
pub(crate) fn leak_in_a_ring(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (steps, kept) = (program.pick(20, 30), program.pick(5, 9) * 2 * MIB);
    let mut network = Network::new(&mut program, 5, 8 * MIB, 12 * MIB);
    let line = line!() + 3;
    for _ in 0..steps {
        network.train(&mut program, 12 * MIB);
        program.ask(kept);
    }
    let mut planted = program.planted(Cause::Leak, steps * kept, Some(line));
    let trace = &mut planted.file.traces[0];
    trace.drain(..trace.len() / 2);
    planted.ring = true;
    planted
}

/// Copies run ahead on a side stream, and leave their blocks there when the loop is done.
pub(crate) fn stream_after_prefetch(seed: u64) -> Planted {
    let mut program = Program::new(seed, "");
    let (ahead, bytes) = (program.pick(4, 8), program.pick(20, 40) * 2 * MIB);
    program.parameters(5, 10 * MIB);
    let line = line!() + 2;
    for _ in 0..4 {
        let staged: Vec<_> = (0..ahead).map(|_| program.ask_on(bytes, SIDE)).collect();
        program.iterate(4, 4 * MIB);
        program.free(staged);
    }
    let _work = program.ask(bytes);
    program.planted(Cause::Stream, ahead * bytes, Some(line))
}
