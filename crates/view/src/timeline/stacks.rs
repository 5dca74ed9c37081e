//! All stacks of a file, for whoever searches, colours or sums up by any frame.
//!
//! In:  the stacks. Out: distinct frames once, and for each stack their numbers, innermost call first; and the same for the
//! modules on its way.

use rustc_hash::FxHashMap;
use serde::Serialize;
use tonnage_analysis::{ModuleCall, module_path};
use tonnage_events::{Frame, StackId, Stacks};

use super::numbered::Site;

/// Most frames of one stack, and of all stacks together: more than any program has, but not a stranger's file.
const DEEPEST: usize = 256;
const MOST: usize = 8 << 20;

/// Stacks as columns: those of stack `s` are `frames[starts[s]..starts[s + 1]]`; so are its modules.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    pub(crate) head: StackHead,
    pub(crate) starts: Vec<u32>,
    pub(crate) frames: Vec<u32>,
    pub(crate) module_starts: Vec<u32>,
    pub(crate) module_frames: Vec<u32>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct StackHead {
    names: Vec<Site>,
    /// Modules: the name as the function, the line that calls the next module or 0.
    modules: Vec<Site>,
    /// Whether something was left out.
    cut: bool,
}

impl StackTable {
    pub(crate) fn of(stacks: &Stacks) -> Self {
        let mut table = Self { starts: vec![0], module_starts: vec![0], ..Self::default() };
        let mut known = FxHashMap::<(&str, u32, &str), u32>::default();
        let mut modules = FxHashMap::<(&str, u32), u32>::default();
        let numbers = (0..u32::try_from(stacks.len()).unwrap_or(u32::MAX)).filter_map(StackId::new);
        for stack in numbers {
            let frames = stacks.frames(stack);
            let room = (MOST - table.frames.len()).min(DEEPEST);
            table.head.cut |= frames.len() > room;
            // Of what is too deep, the calls that lead into it are of more use than those in its middle.
            let inner = frames.len().min(room) / 2;
            let outer = frames.len() - (frames.len().min(room) - inner);
            for frame in frames[..inner].iter().chain(&frames[outer..]) {
                let number = table.number(frame, &mut known);
                table.frames.push(number);
            }
            // Below MOST, which four bytes hold.
            table.starts.push(table.frames.len() as u32);
            for call in module_path(frames).iter().rev().take(room) {
                let number = table.module(call, &mut modules);
                table.module_frames.push(number);
            }
            table.module_starts.push(table.module_frames.len() as u32);
        }
        table
    }

    fn module<'a>(
        &mut self,
        call: &ModuleCall<'a>,
        known: &mut FxHashMap<(&'a str, u32), u32>,
    ) -> u32 {
        let modules = &mut self.head.modules;
        let line = call.line.unwrap_or(0);
        *known.entry((&*call.forward.filename, line)).or_insert_with(|| {
            modules.push(Site { line, function: call.name(), ..Site::of(call.forward) });
            (modules.len() - 1) as u32
        })
    }

    fn number<'a>(
        &mut self,
        frame: &'a Frame,
        known: &mut FxHashMap<(&'a str, u32, &'a str), u32>,
    ) -> u32 {
        let names = &mut self.head.names;
        *known.entry((&*frame.filename, frame.line, &*frame.name)).or_insert_with(|| {
            names.push(Site::of(frame));
            (names.len() - 1) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_named_once_and_stacks_have_their_numbers() {
        let frame = |name: &str, line| Frame { name: name.into(), filename: "a.py".into(), line };
        let mut stacks = Stacks::default();
        stacks.intern(vec![frame("f", 1), frame("main", 9)]);
        stacks.intern(vec![frame("g", 2), frame("f", 1), frame("main", 9)]);
        let table = StackTable::of(&stacks);
        assert_eq!(table.head.names.len(), 3);
        assert_eq!((&*table.starts, &*table.frames), (&[0, 2, 5][..], &[0, 1, 2, 0, 1][..]));
        assert!(!table.head.cut);
    }

    #[test]
    fn modules_are_named_once_and_stacks_have_their_paths() {
        let frame = |filename: &str, name: &str, line| Frame {
            name: name.into(),
            filename: filename.into(),
            line,
        };
        let module = |filename: &str, line| {
            [frame(filename, "forward", line), frame("torch/nn/modules/module.py", "_call_impl", 1)]
        };
        let mut stacks = Stacks::default();
        stacks.intern([module("torch/nn/modules/linear.py", 5), module("net.py", 7)].concat());
        stacks.intern(vec![frame("train.py", "main", 1)]);
        stacks.intern(module("net.py", 9).to_vec());
        let table = StackTable::of(&stacks);
        let names: Vec<_> = table.head.modules.iter().map(|it| (&*it.function, it.line)).collect();
        assert_eq!(names, [("nn.linear", 0), ("net", 7), ("net", 0)]);
        assert_eq!(table.module_starts, [0, 2, 2, 3]);
        assert_eq!(table.module_frames, [0, 1, 2]);
    }

    #[test]
    fn a_stack_without_end_keeps_both_ends() {
        let frame = |line| Frame { name: "f".into(), filename: "a.py".into(), line };
        let mut stacks = Stacks::default();
        stacks.intern((0..10_000).map(frame).collect());
        let table = StackTable::of(&stacks);
        assert_eq!(table.frames.len(), DEEPEST);
        assert!(table.head.cut);
        assert_eq!(table.head.names[0].line, 0);
        assert_eq!(table.head.names[DEEPEST - 1].line, 9_999);
    }
}
