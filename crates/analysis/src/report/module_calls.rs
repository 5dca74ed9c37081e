//! Whether what repeats are iterations or parts of one pass, as the calls of modules tell.
//!
//! In:  a device with the stacks of its requests, the iterations that repetition or tides found.
//! Out: these; or those that are made of whole passes; or none.
//!
//! Stacks do not say which call of a line they are of: the layers of a model and the batches of a loop both come from the same line
//! again. But all that one layer asks for comes from inside a module that was called at one line of the program, or, on the
//! way back, from threads without Python. An iteration does more: it makes its inputs, takes a loss, goes back.
//!
//! 1. Where most ranges stay inside a module, or on the way back, they are layers; what lies in between tells passes apart.
//!    Three passes of as many layers each are iterations, fewer are none.
//! 2. Where all do, it may be a loop with nothing but calls of the model. It is one pass if the outermost module asks for
//!    something at other lines before all ranges or behind them: a loop over batches goes through those lines each time.
//!    Tides alone tell nothing there.
//!
//! Without frames of modules nothing is concluded.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::{Action, Frame, StackId};

use super::iterations::{FEWEST, IterationSource, Iterations, before, from_starts, start_of_call};
use crate::call_site::is_python;
use crate::device_view::DeviceView;
use crate::module_path::calls_a_module;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asker {
    /// A module, by the number of the program's call: equal ones are the same line, reached by the same calls.
    Module(u32),
    /// A thread without Python, which is what the way back runs on.
    WayBack,
    /// The program itself.
    Program,
}

/// Who asks with each stack.
struct Askers<'a> {
    device: &'a DeviceView<'a>,
    known: FxHashMap<StackId, Asker>,
    calls: FxHashMap<&'a [Frame], u32>,
}

impl<'a> Askers<'a> {
    fn of(device: &'a DeviceView<'a>) -> Self {
        Self { device, known: FxHashMap::default(), calls: FxHashMap::default() }
    }

    fn asker(&mut self, stack: Option<StackId>) -> Asker {
        let Some(stack) = stack else { return Asker::WayBack };
        if let Some(&known) = self.known.get(&stack) {
            return known;
        }
        // The innermost frame is the first.
        let frames = self.device.file.stacks.frames(stack);
        let asker = match frames.iter().rposition(calls_a_module) {
            Some(outermost) => {
                let next = self.calls.len() as u32;
                Asker::Module(*self.calls.entry(&frames[outermost..]).or_insert(next))
            }
            None if frames.iter().any(is_python) => Asker::Program,
            None => Asker::WayBack,
        };
        self.known.insert(stack, asker);
        asker
    }

    fn has_modules(&mut self) -> bool {
        let device = self.device;
        let mut requests = device.entries.iter().filter(|it| it.action == Action::Alloc);
        requests.any(|it| matches!(self.asker(it.stack), Asker::Module(_)))
    }

    /// Who asks for all of these entries, if it is one.
    fn only(&mut self, range: Range<usize>) -> Option<Asker> {
        let device = self.device;
        let mut requests = device.entries[range].iter().filter(|it| it.action == Action::Alloc);
        let first = self.asker(requests.next()?.stack);
        requests.all(|it| self.asker(it.stack) == first).then_some(first)
    }

    /// Where the program asks for something before the call of a module that asks here, if right before; else here.
    fn before_the_call(&mut self, here: usize) -> usize {
        let device = self.device;
        let is_request = |&event: &usize| device.entries[event].action == Action::Alloc;
        let Some(request) = (here..device.entries.len()).find(is_request) else { return here };
        let call = self.asker(device.entries[request].stack);
        let mut before = (0..here).rev().filter(is_request);
        let other = before.find_map(|event| {
            let asker = self.asker(device.entries[event].stack);
            (asker != call).then_some((event, asker))
        });
        other.filter(|&(_, it)| it == Asker::Program).map_or(here, |(event, _)| event)
    }

    /// Where one pass begins between two layers that are not of one: of what the program asks for by itself, where least
    /// is live; else with the second layer.
    fn between_calls(&mut self, live: &[u64], range: Range<usize>) -> usize {
        let asks = |event: &usize| {
            let entry = self.device.entries[*event];
            entry.action == Action::Alloc && self.asker(entry.stack) == Asker::Program
        };
        let second = range.end;
        range.filter(asks).min_by_key(|&event| before(live, event)).unwrap_or(second)
    }
}

/// The iterations among what repeats; none if these are parts of one pass, or of two. `live` are the live bytes after every entry.
pub(super) fn whole_passes(
    device: &DeviceView<'_>,
    live: &[u64],
    found: Iterations,
) -> Option<Iterations> {
    let mut askers = Askers::of(device);
    let starts: Vec<usize> = found.ranges.iter().map(|it| it.start).collect();
    let between = starts.windows(2);
    let inside: Vec<Option<Asker>> = between
        .map(|pair| askers.only(pair[0]..pair[1]).filter(|&it| it != Asker::Program))
        .collect();
    let layers = inside.iter().flatten().count();
    if layers * 2 < inside.len() || layers == 0 || !askers.has_modules() {
        return Some(found);
    }
    if layers < inside.len() {
        let mut passes = vec![askers.before_the_call(starts[0])];
        let apart = starts.windows(2).zip(&inside).filter(|(_, it)| it.is_none());
        passes.extend(apart.map(|(pair, _)| askers.between_calls(live, pair[0]..pair[1])));
        for start in &mut passes {
            *start = start_of_call(device, *start);
        }
        return is_regular(&passes, &starts)
            .then(|| Iterations { ranges: from_starts(&passes, device), ..found });
    }
    let of_one = match inside[0] {
        Some(Asker::Module(call)) if inside.iter().all(|it| *it == inside[0]) => {
            found.source == IterationSource::Tides || goes_on(device, &mut askers, call, &starts)
        }
        // One module after the other, or the way back alone.
        _ => true,
    };
    (!of_one).then_some(found)
}

/// Whether there are enough passes, each of about as many of the ranges; the first and the last may be cut.
fn is_regular(passes: &[usize], starts: &[usize]) -> bool {
    let place = |start: &usize| starts.partition_point(|it| it < start);
    let mut layers: Vec<usize> =
        passes.windows(2).skip(1).map(|pair| place(&pair[1]) - place(&pair[0])).collect();
    layers.sort_unstable();
    let (Some(least), Some(most)) = (layers.first(), layers.last()) else { return false };
    let median = layers[layers.len() / 2];
    passes.len() >= FEWEST && least * 3 >= median * 2 && most * 2 <= median * 3
}

/// Whether a call of a module asks, before all ranges or behind the last, at lines that the ranges do not come to.
fn goes_on(device: &DeviceView<'_>, askers: &mut Askers<'_>, call: u32, starts: &[usize]) -> bool {
    let (Some(&first), Some(&last)) = (starts.first(), starts.last()) else { return false };
    let frames = |stack: StackId| device.file.stacks.frames(stack);
    let (mut of_ranges, mut others) = (FxHashSet::default(), FxHashSet::default());
    for (event, entry) in device.entries.iter().enumerate() {
        let Some(stack) = entry.stack.filter(|_| entry.action == Action::Alloc) else { continue };
        if (first..last).contains(&event) {
            of_ranges.insert(stack);
        } else if askers.asker(Some(stack)) == Asker::Module(call) {
            others.insert(stack);
        }
    }
    let Some(one) = of_ranges.iter().next().map(|&it| frames(it)) else { return false };
    // How many of the outermost frames all ranges have in common, and the lines that they come to in the next.
    let depth = of_ranges.iter().map(|&it| shared(frames(it), one)).min().unwrap_or(0);
    let mut lines = FxHashMap::<(&str, &str), (u32, u32)>::default();
    for frame in of_ranges.iter().filter_map(|&it| from_outside(frames(it), depth)) {
        let known = lines.entry(function(frame)).or_insert((frame.line, frame.line));
        *known = (known.0.min(frame.line), known.1.max(frame.line));
    }
    others.difference(&of_ranges).any(|&other| {
        let other = frames(other);
        let place = shared(other, one).min(depth);
        let Some(frame) = from_outside(other, place) else { return false };
        if place < depth {
            let of_all = from_outside(one, place);
            return of_all.is_some_and(|it| function(it) == function(frame));
        }
        let known = lines.get(&function(frame));
        known.is_some_and(|&(least, most)| !(least..=most).contains(&frame.line))
    })
}

fn function(frame: &Frame) -> (&str, &str) {
    (&frame.filename, &frame.name)
}

/// The frame that so many others are outside of.
fn from_outside(frames: &[Frame], place: usize) -> Option<&Frame> {
    frames.iter().rev().nth(place)
}

/// How many of the outermost frames are the same.
fn shared(one: &[Frame], other: &[Frame]) -> usize {
    one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Address, StreamId, TraceEntry};
    use tonnage_snapshot::SnapshotFile;

    use super::*;
    use crate::devices;
    use crate::lifetimes::Lifetimes;
    use crate::report::moments::live_after;

    /// A program that calls a model at one line. The model's lines are those of its outermost forward.
    struct Program {
        file: SnapshotFile,
        entries: Vec<TraceEntry>,
    }

    impl Program {
        fn new() -> Self {
            Self { file: SnapshotFile::default(), entries: Vec::new() }
        }

        /// What a line of the model asks for: something that stays, and something that is freed.
        fn ask(&mut self, line: u32) {
            let frame = |name: &str, filename: &str, line: u32| Frame {
                name: name.into(),
                filename: filename.into(),
                line,
            };
            let stack = self.file.stacks.intern(vec![
                frame("forward", "model.py", line),
                frame("_call_impl", "lib/python3/site-packages/torch/nn/modules/module.py", 1),
                frame("main", "program.py", 7),
            ]);
            let kept = 0x10_0000_0000 + self.entries.len() as u64 * (1 << 20);
            for (action, address, size) in [
                (Action::Alloc, kept, 4096 * u64::from(line)),
                (Action::Alloc, 0x1000, 512),
                (Action::FreeRequested, 0x1000, 512),
                (Action::FreeCompleted, 0x1000, 512),
            ] {
                let (address, stream, stack) = (Address(address), StreamId::DEFAULT, Some(stack));
                self.entries.push(TraceEntry { action, address, size, stream, time_us: 0, stack });
            }
        }

        fn iterations(self) -> Option<usize> {
            let file = SnapshotFile { traces: vec![self.entries], ..self.file };
            let device = &devices(&file)[0];
            let lifetimes = Lifetimes::of(device);
            let live = live_after(lifetimes.iter(), device.entries.len());
            Iterations::find(device, &lifetimes, &live).map(|it| it.ranges.len())
        }
    }

    #[test]
    fn layers_between_other_lines_of_a_model_are_one_pass() {
        for (before, behind) in [(true, true), (true, false), (false, true)] {
            let mut program = Program::new();
            if before {
                program.ask(1);
            }
            for _ in 0..12 {
                program.ask(2);
                program.ask(3);
            }
            if behind {
                program.ask(4);
            }
            assert_eq!(program.iterations(), None, "{before}, {behind}");
        }
    }

    #[test]
    fn a_loop_of_nothing_but_calls_of_a_model_is_a_loop() {
        let mut program = Program::new();
        for _ in 0..12 {
            (1..=4).for_each(|line| program.ask(line));
        }
        assert_eq!(program.iterations(), Some(12));
        // A table that the first call makes at a line between those of every call.
        let mut lazy = Program::new();
        for call in 0..12 {
            lazy.ask(1);
            if call == 0 {
                lazy.ask(2);
            }
            lazy.ask(3);
            lazy.ask(4);
        }
        assert_eq!(lazy.iterations(), Some(12));
    }
}
