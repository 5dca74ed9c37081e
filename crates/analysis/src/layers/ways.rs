//! The modules that stacks go through, by the calls that lead to them.
//!
//! In:  stacks. Out: for each its [`Step`]s, outermost first; none for what is computed a second time on the way back.

use rustc_hash::FxHashMap;
use tonnage_events::{Frame, StackId};

use super::DEEPEST;
use crate::module_path::module_places;

/// Where a container calls the modules that it is made of, one after the other.
const CONTAINER: &str = "torch/nn/modules/container.py";

/// Where activations are computed again.
const CHECKPOINT: &str = "torch/utils/checkpoint.py";

/// A module that a stack goes through.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Step {
    /// The call, by number: reached by the same frames, into the same file.
    pub(super) call: u32,
    /// The line of its `forward`.
    pub(super) line: u32,
}

/// A line that calls modules.
#[derive(Clone, Copy, Default)]
pub(super) struct Call {
    /// Whether the line calls modules of other files too.
    pub(super) is_mixed: bool,
    /// Whether what is called is a container.
    pub(super) is_container: bool,
}

/// The ways of stacks, made one after the other.
#[derive(Default)]
pub(super) struct Ways<'a> {
    pub(super) ways: Vec<Vec<Step>>,
    pub(super) calls: Vec<Call>,
    of_stack: FxHashMap<StackId, u32>,
    numbers: FxHashMap<(u32, &'a [Frame], &'a str), u32>,
    /// The first call of each line.
    lines: FxHashMap<(u32, &'a [Frame]), u32>,
}

impl<'a> Ways<'a> {
    pub(super) fn of(&mut self, stack: StackId, frames: &'a [Frame]) -> u32 {
        if let Some(&known) = self.of_stack.get(&stack) {
            return known;
        }
        let way = self.steps(frames);
        // One for each stack at most, which have four-byte numbers.
        let number = self.ways.len() as u32;
        self.ways.push(way);
        self.of_stack.insert(stack, number);
        number
    }

    fn steps(&mut self, frames: &'a [Frame]) -> Vec<Step> {
        let places = module_places(frames);
        let outside = places.first().map_or(&[][..], |&(place, _)| &frames[place + 1..]);
        if outside.iter().any(|it| ends_with(it, CHECKPOINT)) {
            return Vec::new();
        }
        let (mut steps, mut outer, mut before) = (Vec::new(), u32::MAX, frames.len());
        for &(place, _) in places.iter().take(DEEPEST) {
            let (forward, way) = (&frames[place], &frames[place + 1..before]);
            let next = self.calls.len() as u32;
            let call = *self.numbers.entry((outer, way, &*forward.filename)).or_insert(next);
            if call == next {
                let is_container = ends_with(forward, CONTAINER);
                let one = *self.lines.entry((outer, way)).or_insert(call);
                let is_mixed = one != call;
                self.calls.push(Call { is_mixed, is_container });
                self.calls[one as usize].is_mixed |= is_mixed;
            }
            steps.push(Step { call, line: forward.line });
            (outer, before) = (call, place + 1);
        }
        steps
    }
}

fn ends_with(frame: &Frame, file: &str) -> bool {
    frame.filename.replace('\\', "/").ends_with(file)
}
