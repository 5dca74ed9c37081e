//! All stacks of a file, for whoever searches, colours or sums up by any frame.
//!
//! In:  a device of a file. Out: distinct frames once, and for each stack their numbers, innermost call first; the same for the paths
//! of modules, with the number of each allocation's path.

use rustc_hash::FxHashMap;
use serde::Serialize;
use tonnage_analysis::{Lifetimes, ModuleCall, ModulePaths};
use tonnage_events::{Frame, StackId, Stacks};
use tonnage_snapshot::SnapshotFile;

use super::numbered::{AnyFrame, Site};
use super::{by_beginning, device_of};

/// Most frames of one stack, and of all stacks together: more than any program has, but not a stranger's file.
const DEEPEST: usize = 256;
const MOST: usize = 8 << 20;

/// Stacks as columns: the frames of stack `s` are `frames[starts[s]..starts[s + 1]]`; so are the modules of a path.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    pub(crate) head: StackHead,
    pub(crate) starts: Vec<u32>,
    pub(crate) frames: Vec<u32>,
    pub(crate) module_starts: Vec<u32>,
    pub(crate) module_frames: Vec<u32>,
    /// For each allocation the number of its path, plus one; 0 for none.
    pub(crate) modules: Vec<u32>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct StackHead {
    names: Vec<AnyFrame>,
    modules: Vec<Module>,
    /// Whether something was left out.
    cut: bool,
}

/// A module: its name as the function, the line that calls the next module or 0, and which of the line's modules that is.
#[derive(Debug, Serialize)]
struct Module {
    #[serde(flatten)]
    frame: AnyFrame,
    index: Option<u32>,
}

impl StackTable {
    pub(crate) fn of(file: &SnapshotFile, ordinal: u32) -> Self {
        let mut table = Self { starts: vec![0], module_starts: vec![0], ..Self::default() };
        table.take_stacks(&file.stacks);
        table.take_modules(file, ordinal);
        table
    }

    fn take_stacks(&mut self, stacks: &Stacks) {
        let table = self;
        let mut known = FxHashMap::<(&str, u32, &str), u32>::default();
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
        }
    }

    fn take_modules(&mut self, file: &SnapshotFile, ordinal: u32) {
        let device = device_of(file, ordinal);
        let lifetimes = Lifetimes::of(&device);
        let mut paths = ModulePaths::of(&device);
        let mut known = FxHashMap::<(&str, u32, Option<u32>), u32>::default();
        // Paths by their number in the analysis; those that no allocation has are not sent.
        let mut numbers = FxHashMap::<u32, u32>::default();
        for (_, row) in by_beginning(&device, &lifetimes) {
            let path = paths.number(&lifetimes.get(row as usize));
            if path == 0 {
                self.modules.push(0);
                continue;
            }
            if let Some(&number) = numbers.get(&path) {
                self.modules.push(number);
                continue;
            }
            let room = (MOST - self.module_frames.len()).min(DEEPEST);
            self.head.cut |= paths.path(path).len() > room;
            for call in paths.path(path).iter().rev().take(room) {
                let number = self.module(call, &mut known);
                self.module_frames.push(number);
            }
            self.module_starts.push(self.module_frames.len() as u32);
            // One for each allocation at most, which have four-byte numbers.
            let number = (self.module_starts.len() - 1) as u32;
            numbers.insert(path, number);
            self.modules.push(number);
        }
    }

    fn module<'a>(
        &mut self,
        call: &ModuleCall<'a>,
        known: &mut FxHashMap<(&'a str, u32, Option<u32>), u32>,
    ) -> u32 {
        let modules = &mut self.head.modules;
        let (line, index) = (call.line.unwrap_or(0), call.index);
        *known.entry((&*call.forward.filename, line, index)).or_insert_with(|| {
            let AnyFrame { site, library } = AnyFrame::of(call.forward);
            let site = Site { line, function: call.name(), ..site };
            modules.push(Module { frame: AnyFrame { site, library }, index });
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
            names.push(AnyFrame::of(frame));
            (names.len() - 1) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use tonnage_events::{Action, Address, StreamId, TraceEntry};

    use super::*;

    fn table(stacks: Stacks) -> StackTable {
        StackTable::of(&SnapshotFile { stacks, ..SnapshotFile::default() }, 0)
    }

    #[test]
    fn frames_are_named_once_and_stacks_have_their_numbers() {
        let frame = |name: &str, line| Frame { name: name.into(), filename: "a.py".into(), line };
        let mut stacks = Stacks::default();
        stacks.intern(vec![frame("f", 1), frame("main", 9)]);
        stacks.intern(vec![frame("g", 2), frame("f", 1), frame("main", 9)]);
        let table = table(stacks);
        assert_eq!(table.head.names.len(), 3);
        assert_eq!((&*table.starts, &*table.frames), (&[0, 2, 5][..], &[0, 1, 2, 0, 1][..]));
        assert!(!table.head.cut);
    }

    #[test]
    fn frames_of_libraries_are_told_by_the_rule_of_call_sites() {
        let frame = |file: &str| Frame { name: "f".into(), filename: file.into(), line: 1 };
        let mut stacks = Stacks::default();
        stacks.intern(vec![frame("/v/site-packages/torch/a.py"), frame("/me/torch/a.py")]);
        let names = table(stacks).head.names;
        assert_eq!(names.iter().map(|it| it.library).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn modules_are_named_once_and_allocations_have_their_paths() {
        let frame = |filename: &str, name: &str, line| Frame {
            name: name.into(),
            filename: filename.into(),
            line,
        };
        let module = |filename: &str, line| {
            [frame(filename, "forward", line), frame("torch/nn/modules/module.py", "_call_impl", 1)]
        };
        let mut file = SnapshotFile::default();
        let mut stack = |frames: Vec<Frame>| file.stacks.intern(frames);
        let block = |line: u32| {
            [module("torch/nn/modules/linear.py", 5), module("block.py", line), module("net.py", 7)]
        };
        let (first, second) = (stack(block(2).concat()), stack(block(3).concat()));
        let program = stack(vec![frame("train.py", "main", 1)]);
        let head = stack(module("net.py", 9).to_vec());
        let stacks = [program, first, second, first, second, head];
        let entry = |(number, stack): (u64, StackId)| TraceEntry {
            action: Action::Alloc,
            address: Address(0x1000 * number),
            size: 512,
            stream: StreamId::DEFAULT,
            time_us: 0,
            stack: Some(stack),
        };
        file.traces = vec![(1..).zip(stacks).map(entry).collect()];
        let table = StackTable::of(&file, 0);
        let names = table.head.modules.iter();
        let names: Vec<_> =
            names.map(|it| (&*it.frame.site.function, it.frame.site.line, it.index)).collect();
        assert_eq!(
            names,
            [
                ("nn.linear", 0, None),
                ("block", 2, None),
                ("net", 7, Some(0)),
                ("block", 3, None),
                ("net", 7, Some(1)),
                ("net", 0, None),
            ]
        );
        assert_eq!(table.modules, [0, 1, 2, 3, 4, 5]);
        assert_eq!(table.module_starts, [0, 3, 6, 9, 12, 13]);
        assert_eq!(table.module_frames[..6], [0, 1, 2, 0, 3, 2]);
        assert_eq!(table.module_frames[12..], [5]);
    }

    #[test]
    fn a_stack_without_end_keeps_both_ends() {
        let frame = |line| Frame { name: "f".into(), filename: "a.py".into(), line };
        let mut stacks = Stacks::default();
        stacks.intern((0..10_000).map(frame).collect());
        let table = table(stacks);
        assert_eq!(table.frames.len(), DEEPEST);
        assert!(table.head.cut);
        assert_eq!(table.head.names[0].site.line, 0);
        assert_eq!(table.head.names[DEEPEST - 1].site.line, 9_999);
    }
}
