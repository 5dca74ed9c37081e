//! What the program was doing when it asked for memory, by the frames of PyTorch in the stack.
//!
//! In:  the stacks of a file.
//! Out: for each an [`Origin`]: the [`Work`], the functions of PyTorch that tell more, and who called the model.
//!
//! The way back runs in threads of the autograd engine, which have no frames of Python: where stacks were recorded, a request
//! without one is its.

use rustc_hash::FxHashMap;
use tonnage_events::{Frame, StackId, Stacks};

use crate::module_path::calls_a_module;

/// What asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A model moves to the device, or is made there.
    Model,
    /// A file of tensors is loaded.
    Load,
    /// Tensors are copied deeply, one by one.
    Copy,
    /// A module is called.
    Forward,
    /// The way back.
    Back,
    /// The optimizer's step.
    Step,
    /// A line outside all of these.
    Program,
    /// Nothing tells.
    Unknown,
}

/// Functions of PyTorch that tell what a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    /// A loss over classes.
    Loss,
    Softmax,
    Dropout,
    Embedding,
    /// The innermost call is a linear layer.
    Linear,
    /// The innermost call is code of the program or of a library above PyTorch, not of PyTorch.
    OfTheCaller,
    /// The optimizer makes its states.
    States,
    /// The same, two for each parameter.
    AdamStates,
    /// The optimizer steps over many tensors at once.
    Foreach,
    /// An optimizer that makes states there too.
    Sgd,
    /// Buckets of gradients, to be reduced over processes.
    Buckets,
}

/// What a stack tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) work: Work,
    functions: u16,
    /// Modules that are being called, one inside the other.
    pub(super) modules: u8,
    /// The line that calls the outermost of them, by a number.
    pub(super) caller: Option<u32>,
}

impl Origin {
    const UNKNOWN: Self = Self { work: Work::Unknown, functions: 0, modules: 0, caller: None };

    pub(super) fn is_in(self, function: Function) -> bool {
        self.functions & (1 << function as u16) != 0
    }
}

/// What all stacks of a file tell.
pub(super) struct Origins {
    known: Vec<Origin>,
    /// Whether stacks have frames of Python.
    pub(super) are_recorded: bool,
}

impl Origins {
    pub(super) fn of(stacks: &Stacks) -> Self {
        let mut callers = FxHashMap::default();
        let all = (0..stacks.len()).filter_map(|number| StackId::new(u32::try_from(number).ok()?));
        let mut are_recorded = false;
        let known = all.map(|stack| {
            let frames = stacks.frames(stack);
            are_recorded |= frames.iter().any(|it| it.filename.ends_with(".py"));
            origin_of(frames, &mut callers)
        });
        Self { known: known.collect(), are_recorded }
    }

    pub(super) fn get(&self, stack: Option<StackId>) -> Origin {
        let found = stack.and_then(|stack| self.known.get(stack.number() as usize).copied());
        match found.unwrap_or(Origin::UNKNOWN) {
            it if it.work == Work::Unknown && self.are_recorded => {
                Origin { work: Work::Back, ..it }
            }
            it => it,
        }
    }
}

/// Callers by file and line, numbered as they come.
type Callers<'a> = FxHashMap<(&'a str, u32), u32>;

fn origin_of<'a>(frames: &'a [Frame], callers: &mut Callers<'a>) -> Origin {
    if frames.is_empty() {
        return Origin::UNKNOWN;
    }
    let is_at = |frame: &Frame, file: &str| frame.filename.contains(file);
    let is_of_modules = |frame: &Frame| is_at(frame, "/torch/nn/modules/module.py");
    let any = |test: &dyn Fn(&Frame) -> bool| frames.iter().any(test);
    let work = if any(&|it| it.name.contains("autograd::Engine::"))
        || any(&|it| is_at(it, "/torch/utils/checkpoint.py") && &*it.name == "recompute_fn")
    {
        Work::Back
    } else if any(&|it| is_at(it, "/torch/optim/") && !is_at(it, "swa_utils")) {
        Work::Step
    } else if any(&|it| is_at(it, "/torch/serialization.py")) {
        Work::Load
    } else if any(&|it| &*it.name == "deepcopy" && it.filename.ends_with("/copy.py")) {
        Work::Copy
    } else if any(&|it| is_of_modules(it) && &*it.name == "_apply")
        || any(&|it| is_at(it, "/torch/nn/modules/") && &*it.name == "__init__")
    {
        Work::Model
    } else if any(&calls_a_module) {
        Work::Forward
    } else {
        Work::Program
    };
    // A call may go through two frames; this one is always there.
    let is_call = |it: &&Frame| calls_a_module(it) && &*it.name == "_call_impl";
    let modules = frames.iter().filter(is_call).count();
    let outermost = frames.iter().rposition(calls_a_module);
    let above = outermost.and_then(|place| frames[place..].iter().find(|it| !is_of_modules(it)));
    let caller = above.map(|frame| {
        let next = callers.len() as u32;
        *callers.entry((&*frame.filename, frame.line)).or_insert(next)
    });
    let functions = frames.iter().enumerate().fold(0, |sum, (place, frame)| {
        functions_of(frame, place == 0).iter().fold(sum, |sum, &it| sum | 1 << it as u16)
    });
    Origin { work, functions, modules: u8::try_from(modules).unwrap_or(u8::MAX), caller }
}

fn functions_of(frame: &Frame, innermost: bool) -> &'static [Function] {
    let (name, file) = (&*frame.name, &*frame.filename);
    if innermost && !file.contains("/torch/") {
        return &[Function::OfTheCaller];
    }
    if file.ends_with("/torch/nn/functional.py") {
        return match name {
            "cross_entropy" | "log_softmax" | "nll_loss" => &[Function::Loss],
            "softmax" => &[Function::Softmax],
            "dropout" => &[Function::Dropout],
            "embedding" => &[Function::Embedding],
            _ => &[],
        };
    }
    if file.contains("/torch/optim/") {
        return match name {
            "_init_group" if file.contains("adam") => &[Function::States, Function::AdamStates],
            "_init_group" => &[Function::States],
            _ if !name.starts_with("_multi_tensor_") => &[],
            _ if file.ends_with("/sgd.py") => &[Function::Foreach, Function::Sgd],
            _ => &[Function::Foreach],
        };
    }
    match name {
        "cross_entropy" | "log_softmax" => &[Function::Loss],
        "forward" if innermost && file.ends_with("/torch/nn/modules/linear.py") => {
            &[Function::Linear]
        }
        "_ddp_init_helper" => &[Function::Buckets],
        _ => &[],
    }
}
