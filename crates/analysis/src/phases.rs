//! What a program was doing at each entry of its history: forward, backward, or the optimizer's step.
//!
//! In:  a device. Out: [`Phases`].
//!
//! Marks tell first: PyTorch notes every `Optimizer.step`, a recording of our own also its forwards and backwards. What they
//! leave open, the stacks tell: the way back runs on threads of PyTorch's own, where no Python of the program is. A history
//! without stacks tells of its marks alone.

use tonnage_events::{Action, Frame};
use tonnage_snapshot::Stage;

use crate::device_view::DeviceView;

/// What a program is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Phase {
    /// Python of the program: the forward, or anything else that is neither of the others.
    Forward,
    /// The way back, with what is computed again for it.
    Backward,
    /// The step of an optimizer.
    Optimizer,
}

impl Phase {
    /// Every one, in the order of a step.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Optimizer];

    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }

    /// By the frames of a request, innermost first.
    #[must_use]
    pub fn of_stack(frames: &[Frame]) -> Self {
        let steps = |frame: &Frame| &*frame.name == "step" && frame.filename.contains("/optim/");
        if frames.iter().any(steps) {
            Self::Optimizer
        } else if on_the_way_back(frames) {
            Self::Backward
        } else {
            Self::Forward
        }
    }

    fn of_mark(name: &str) -> Option<Self> {
        match name {
            "forward" => Some(Self::Forward),
            "backward" => Some(Self::Backward),
            _ if name.starts_with("Optimizer.step") => Some(Self::Optimizer),
            _ => None,
        }
    }
}

/// PyTorch's threads for the way back have no frame of the program at their root: none at all, or that of a function which
/// PyTorch itself calls, such as a gradient written in Python, or a hook that computes a checkpoint again.
fn on_the_way_back(frames: &[Frame]) -> bool {
    let Some(root) = frames.last() else { return true };
    let waits = |frame: &Frame| match &*frame.name {
        "backward" => {
            frame.filename.ends_with("/torch/_tensor.py")
                || frame.filename.contains("/torch/autograd/")
        }
        "grad" => frame.filename.ends_with("/torch/autograd/__init__.py"),
        // Where C++ is recorded too.
        name => name.contains("autograd::Engine::"),
    };
    root.filename.contains("/torch/") || frames.iter().any(waits)
}

/// The phases of a history.
#[derive(Clone, Debug, Default)]
pub struct Phases {
    /// First entries of stretches of one phase, in order.
    begins: Vec<(usize, Option<Phase>)>,
}

impl Phases {
    /// Looks at one device.
    #[must_use]
    pub fn of(device: &DeviceView<'_>) -> Self {
        let stacks = &device.file.stacks;
        let frames = |stack| -> &[Frame] { Option::map_or(stack, &[], |it| stacks.frames(it)) };
        let requests = || device.entries.iter().filter(|it| it.action == Action::Alloc);
        let has_stacks = requests().any(|it| !frames(it.stack).is_empty());
        let mut of_stack = vec![None; stacks.len()];
        let mut by_stack = |stack: Option<tonnage_events::StackId>| {
            let known = stack.and_then(|it| of_stack.get_mut(it.number() as usize));
            match known {
                Some(known) => *known.get_or_insert_with(|| Phase::of_stack(frames(stack))),
                None => Phase::of_stack(&[]),
            }
        };
        let mut marks = marks(device).into_iter().peekable();
        let mut inside = Vec::new();
        let mut phases = Self::default();
        let mut now = None;
        for (event, entry) in device.entries.iter().enumerate() {
            while let Some((_, begins, phase)) = marks.next_if(|it| it.0 <= event) {
                if begins {
                    inside.push(phase);
                } else if let Some(place) = inside.iter().rposition(|&it| it == phase) {
                    inside.remove(place);
                    // What comes next shows what it is by its first request.
                    now = None;
                }
            }
            now = match inside.last() {
                Some(&phase) => Some(phase),
                None if !has_stacks => None,
                // What is freed belongs to whatever was asked for before.
                None if entry.action == Action::Alloc => Some(by_stack(entry.stack)),
                None => now,
            };
            if phases.begins.last().map(|it| it.1) != Some(now) {
                phases.begins.push((event, now));
            }
        }
        phases
    }

    /// What was done at an entry, if that is known.
    #[must_use]
    pub fn at(&self, event: usize) -> Option<Phase> {
        let place = self.begins.partition_point(|it| it.0 <= event);
        self.begins.get(place.checked_sub(1)?)?.1
    }
}

/// Marked scopes of a phase: the entry from which on, whether it begins, which.
fn marks(device: &DeviceView<'_>) -> Vec<(usize, bool, Phase)> {
    let marks = device.file.annotations.iter().filter_map(|mark| {
        let begins = match mark.stage {
            Stage::Start => true,
            Stage::End => false,
            Stage::Other(_) => return None,
        };
        let known = mark.time_us > 0 && mark.device == device.device;
        let phase = Phase::of_mark(&mark.name).filter(|_| known)?;
        let before = |time: u64| match begins {
            true => time < mark.time_us,
            false => time <= mark.time_us,
        };
        Some((device.entries.partition_point(|entry| before(entry.time_us)), begins, phase))
    });
    let mut marks: Vec<_> = marks.collect();
    marks.sort_by_key(|it| it.0);
    marks
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::devices;

    fn frame(filename: &str, name: &str) -> Frame {
        Frame { name: Arc::from(name), filename: Arc::from(filename), line: 1 }
    }

    #[test]
    fn phases_are_told_by_frames() {
        let program = frame("train.py", "<module>");
        let of = |inner: &[(&str, &str)], in_program: bool| {
            let mut frames: Vec<_> = inner.iter().map(|it| frame(it.0, it.1)).collect();
            frames.extend(in_program.then(|| program.clone()));
            Phase::of_stack(&frames)
        };
        assert_eq!(of(&[], false), Phase::Backward);
        assert_eq!(of(&[], true), Phase::Forward);
        assert_eq!(of(&[("/x/torch/nn/functional.py", "linear")], true), Phase::Forward);
        assert_eq!(of(&[("/x/torch/optim/adam.py", "step")], true), Phase::Optimizer);
        assert_eq!(of(&[("/x/torch/optim/adam.py", "zero_grad")], true), Phase::Forward);
        // The gradient of the loss is made where the program waits for the way back.
        assert_eq!(of(&[("/x/torch/_tensor.py", "backward")], true), Phase::Backward);
        // What a checkpoint computes again, and a function of one's own.
        assert_eq!(
            of(&[("model.py", "forward"), ("/x/torch/utils/checkpoint.py", "unpack_hook")], false),
            Phase::Backward
        );
        assert_eq!(
            of(&[("model.py", "backward"), ("/x/torch/autograd/function.py", "apply")], false),
            Phase::Backward
        );
        assert_eq!(
            of(&[("??", "torch::autograd::Engine::thread_main"), ("??", "clone")], false),
            Phase::Backward
        );
    }

    #[test]
    fn a_step_goes_forward_back_and_to_the_optimizer() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../testdata/traces/mlp_seed.default.stacks.pickle.zst"
        );
        let file = tonnage_snapshot::open(path.as_ref()).unwrap();
        let device = &devices(&file)[0];
        let phases = Phases::of(device);
        let mut order: Vec<_> = (0..device.entries.len()).filter_map(|it| phases.at(it)).collect();
        order.dedup();
        let step = [Phase::Forward, Phase::Backward, Phase::Optimizer];
        let steps = order.windows(3).filter(|it| *it == step).count();
        assert!(steps >= 3, "{order:?}");
        // Without stacks the marks are all that is known.
        let file = tonnage_snapshot::open(path.replace(".stacks", "").as_ref()).unwrap();
        let device = &devices(&file)[0];
        let phases = Phases::of(device);
        let known: Vec<_> = (0..device.entries.len()).filter_map(|it| phases.at(it)).collect();
        assert!(
            known.len() < device.entries.len() && known.contains(&Phase::Optimizer),
            "{known:?}"
        );
        assert!(known.iter().all(|&it| it == Phase::Optimizer));
        assert_eq!(Phases::default().at(0), None);
    }
}
