//! Which of the modules that one line calls in a loop a request is from.
//!
//! In:  a device's history with its stacks.
//! Out: [`ModulePaths`]: for each request the modules on its way, with the index of the layer where it can be told.
//!
//! Stacks name no instances, but calls come in order: within one pass of the module around it, the n-th call of a line is
//! that of the n-th layer. What tells one call from the next is the order of lines inside: a call goes through its lines once,
//! so that lines which come again are of the next call.
//!
//! ```text
//! requests of one pass, by the lines of `Block.forward`:   ln attn ln mlp   ln attn ln mlp   …
//! calls of `modeling_gpt2:608`:                            [0]              [1]
//! ```
//!
//! 1. Requests in a row from inside the call of one line are a run ([`Layers::inside`]).
//! 2. A run is one call if none of its places comes again, or if its first or last comes once: what repeats then is a loop in it. It is many if
//!    all begin with the same place and go through the same others, the last as far as the recording goes (`repeated.rs`).
//! 3. All calls of one pass are numbered; a single one has no number ([`Layers::number`]).
//!
//! No index is given where a line calls modules of several files (those that ask for nothing are not seen), where a loop may be
//! around a module or in it, and for what is computed a second time on the way back, where layers come in no known order.

mod ways;

mod repeated;

#[cfg(test)]
mod tests;

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::{Action, StackId};

use crate::device_view::DeviceView;
use crate::lifetimes::Lifetime;
use crate::module_path::{ModuleCall, module_path};
use repeated::{Calls, Place, Visit, repeated};
use ways::{Call, Step, Ways};

/// Modules inside each other that are looked through: more than any program has, but not a stranger's file.
const DEEPEST: usize = 48;

/// How many modules of a single line each are looked through for a loop.
const LOOK_AHEAD: usize = 6;

/// Passes that have to agree before what the program calls is taken for one pass each.
const FEWEST_PASSES: usize = 3;

/// The modules on the way of each request of a device.
#[derive(Debug)]
pub struct ModulePaths<'a> {
    device: DeviceView<'a>,
    paths: Vec<Vec<ModuleCall<'a>>>,
    /// For each entry the place of its path in `paths`, plus one; 0 for none.
    of_entry: Vec<u32>,
    of_stack: FxHashMap<StackId, u32>,
}

impl<'a> ModulePaths<'a> {
    /// Those of a device.
    #[must_use]
    pub fn of(device: &DeviceView<'a>) -> Self {
        let layers = Layers::of(device);
        let mut known = FxHashMap::<(StackId, u32), u32>::default();
        let mut found = Self {
            device: device.clone(),
            paths: Vec::new(),
            of_entry: vec![0; device.entries.len()],
            of_stack: FxHashMap::default(),
        };
        for (request, &label) in layers.requests.iter().zip(&layers.labels) {
            let number = *known.entry((request.stack, label)).or_insert_with(|| {
                let mut path = module_path(device.file.stacks.frames(request.stack));
                layers.write(label, &mut path);
                found.add(path)
            });
            found.of_entry[request.entry] = number;
        }
        found
    }

    fn add(&mut self, path: Vec<ModuleCall<'a>>) -> u32 {
        if path.is_empty() {
            return 0;
        }
        self.paths.push(path);
        // One for each entry and stack at most, which have four-byte numbers.
        self.paths.len() as u32
    }

    /// The number of an allocation's path, from 1; 0 if no module asked for it.
    pub fn number(&mut self, it: &Lifetime) -> u32 {
        let Some(stack) = it.stack else { return 0 };
        let of_entry = it.allocated.event().and_then(|event| self.of_entry.get(event));
        if let Some(&number) = of_entry.filter(|&&number| number > 0) {
            return number;
        }
        if let Some(&number) = self.of_stack.get(&stack) {
            return number;
        }
        let number = self.add(module_path(self.device.file.stacks.frames(stack)));
        self.of_stack.insert(stack, number);
        number
    }

    /// The modules of a path by its number, outermost first; none for 0.
    #[must_use]
    pub fn path(&self, number: u32) -> &[ModuleCall<'a>] {
        let place = (number as usize).checked_sub(1);
        place.and_then(|place| self.paths.get(place)).map_or(&[], Vec::as_slice)
    }
}

/// A request by its stack.
#[derive(Clone, Copy)]
struct Request {
    entry: usize,
    stack: StackId,
    /// Its place in `Layers::ways`.
    way: u32,
}

/// Indices of layers, found from the outermost module inwards.
struct Layers {
    requests: Vec<Request>,
    ways: Vec<Vec<Step>>,
    calls: Vec<Call>,
    /// For each request its place in `known`, plus one; 0 as long as no index was found.
    labels: Vec<u32>,
    /// Indices: the one outside of it, how deep the called module lies, the index.
    known: Vec<(u32, usize, u32)>,
    numbers: FxHashMap<(u32, usize, u32), u32>,
}

impl Layers {
    fn of(device: &DeviceView<'_>) -> Self {
        let mut made = Ways::default();
        let requests = device.entries.iter().enumerate();
        let requests = requests.filter(|(_, it)| it.action == Action::Alloc);
        let requests: Vec<Request> = requests
            .filter_map(|(entry, it)| {
                let stack = it.stack?;
                let way = made.of(stack, device.file.stacks.frames(stack));
                Some(Request { entry, stack, way })
            })
            .collect();
        // What no module asks for tells runs apart: also what has no stack.
        let mut breaks = FxHashSet::default();
        let mut last = 0;
        for (place, request) in requests.iter().enumerate() {
            let between = &device.entries[last..request.entry];
            if between.iter().any(|it| it.action == Action::Alloc && it.stack.is_none()) {
                breaks.insert(place);
            }
            last = request.entry;
        }
        let labels = vec![0; requests.len()];
        let (ways, calls) = (made.ways, made.calls);
        let mut layers = Self {
            requests,
            ways,
            calls,
            labels,
            known: Vec::new(),
            numbers: FxHashMap::default(),
        };
        layers.passes(&breaks);
        layers
    }

    /// Writes the indices of a label into a path.
    fn write(&self, mut label: u32, path: &mut [ModuleCall<'_>]) {
        while let Some(&(outside, depth, index)) = self.known.get((label as usize).wrapping_sub(1))
        {
            if let Some(caller) = depth.checked_sub(1).and_then(|caller| path.get_mut(caller)) {
                caller.index = Some(index);
            }
            label = outside;
        }
    }

    fn step(&self, request: usize, depth: usize) -> Option<Step> {
        self.ways[self.requests[request].way as usize].get(depth).copied()
    }

    /// Runs of requests from inside the same call at a depth; others are passed over.
    fn runs(
        &self,
        range: Range<usize>,
        depth: usize,
        breaks: &FxHashSet<usize>,
    ) -> Vec<(u32, Range<usize>)> {
        let mut runs = Vec::<(u32, Range<usize>)>::new();
        for place in range {
            let Some(step) = self.step(place, depth) else { continue };
            match runs.last_mut() {
                Some((call, run))
                    if *call == step.call && run.end == place && !breaks.contains(&place) =>
                {
                    run.end = place + 1;
                }
                _ => runs.push((step.call, place..place + 1)),
            }
        }
        runs
    }

    /// What the program calls: its modules have no index, but their passes are told apart.
    fn passes(&mut self, breaks: &FxHashSet<usize>) {
        let runs = self.runs(0..self.requests.len(), 0, breaks);
        // A loop over batches has something between two calls, if only now and then; where each of several runs is as many
        // calls, it is one, and what looks like calls is a loop in it.
        let mut sizes = FxHashMap::<u32, Vec<usize>>::default();
        let told: Vec<Calls> = runs
            .iter()
            .map(|(call, run)| {
                let calls = self.calls(run.clone(), 0, 0);
                let size = match &calls {
                    Calls::One => 1,
                    Calls::Many(calls) => calls.len(),
                    Calls::Unknown => 0,
                };
                sizes.entry(*call).or_default().push(size);
                calls
            })
            .collect();
        for ((call, run), calls) in runs.into_iter().zip(told) {
            let sizes = &sizes[&call];
            let agree = sizes.len() >= FEWEST_PASSES && sizes.iter().all(|it| *it == sizes[0]);
            match calls {
                Calls::Many(_) if agree => self.inside(run, 1),
                Calls::One => self.inside(run, 1),
                Calls::Many(calls) => {
                    for call in calls {
                        self.inside(run.start + call.start..run.start + call.end, 1);
                    }
                }
                Calls::Unknown => {}
            }
        }
    }

    /// Numbers the calls that one call of a module makes; `depth` is that of the called.
    fn inside(&mut self, range: Range<usize>, depth: usize) {
        if depth > DEEPEST || range.is_empty() {
            return;
        }
        let mut by_call = FxHashMap::<u32, Vec<Range<usize>>>::default();
        for (call, run) in self.runs(range, depth, &FxHashSet::default()) {
            by_call.entry(call).or_default().push(run);
        }
        // In the order of the program, so that labels are the same each time.
        let mut by_call: Vec<_> = by_call.into_iter().collect();
        by_call.sort_by_key(|(_, runs)| runs[0].start);
        for (call, runs) in by_call {
            let mut found = Vec::new();
            let mut is_known = true;
            for run in runs {
                match self.calls(run.clone(), depth, 0) {
                    Calls::One => found.push(run),
                    Calls::Many(calls) => {
                        found.extend(
                            calls.iter().map(|it| run.start + it.start..run.start + it.end),
                        );
                    }
                    Calls::Unknown => is_known = false,
                }
            }
            if is_known
                && !self.calls[call as usize].is_mixed
                && found.len() > 1
                && self.are_alike(&found)
            {
                self.number(&found, depth);
            }
            for call in found {
                self.inside(call, depth + 1);
            }
        }
    }

    /// Whether calls may be of one loop. Where each asks with one stack only, several in a row look like one.
    fn are_alike(&self, calls: &[Range<usize>]) -> bool {
        let is_of_one = |call: &Range<usize>| {
            let first = self.requests[call.start].stack;
            self.requests[call.clone()].iter().all(|it| it.stack == first)
        };
        calls.iter().any(|it| !is_of_one(it)) || calls.iter().all(|it| it.len() == calls[0].len())
    }

    /// Gives calls their indices.
    fn number(&mut self, calls: &[Range<usize>], depth: usize) {
        for (index, call) in (0_u32..).zip(calls) {
            for place in call.clone() {
                let key = (self.labels[place], depth, index);
                let known = &mut self.known;
                self.labels[place] = *self.numbers.entry(key).or_insert_with(|| {
                    known.push(key);
                    known.len() as u32
                });
            }
        }
    }

    /// The calls that a run from inside one line's calls is made of.
    fn calls(&self, run: Range<usize>, depth: usize, looked: usize) -> Calls {
        let mut visits = Vec::<Visit>::new();
        let mut counts = FxHashMap::<Place, usize>::default();
        for (at, request) in run.clone().enumerate() {
            let line = self.step(request, depth).map_or(0, |it| it.line);
            let place = (line, self.step(request, depth + 1).map(|it| it.call));
            match visits.last_mut() {
                Some(last) if last.place == place => last.requests.end = at + 1,
                _ => {
                    *counts.entry(place).or_default() += 1;
                    visits.push(Visit { place, requests: at..at + 1 });
                }
            }
        }
        let (Some(first), Some(last)) = (visits.first(), visits.last()) else {
            return Calls::One;
        };
        if visits.len() == 1 {
            return self.calls_of_one_line(run, depth, looked);
        }
        if counts[&first.place] == 1 || counts[&last.place] == 1 {
            return Calls::One;
        }
        repeated(&visits)
    }

    /// Those of a module whose `forward` has one line that asks, or calls one that does: a loop inside may as well be around it.
    fn calls_of_one_line(&self, run: Range<usize>, depth: usize, looked: usize) -> Calls {
        let call = self.step(run.start, depth).map(|it| it.call);
        if call.is_some_and(|it| self.calls[it as usize].is_container) {
            return Calls::One;
        }
        if self.step(run.start, depth + 1).is_none() {
            return Calls::One;
        }
        if looked == LOOK_AHEAD {
            return Calls::Unknown;
        }
        match self.calls(run, depth + 1, looked + 1) {
            Calls::One => Calls::One,
            Calls::Many(_) | Calls::Unknown => Calls::Unknown,
        }
    }
}
