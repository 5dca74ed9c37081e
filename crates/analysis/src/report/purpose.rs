//! What the bytes are for.
//!
//! In:  an allocation, what becomes of it, the iterations, the marked scopes, its stack.
//! Out: a [`Purpose`] and how sure that is.
//!
//! Files that Tonnage recorded say it (`recorded_purposes.rs`). No other does; so it is concluded from when the block comes and
//! goes, in this order:
//!
//! | purpose | told by | sure |
//! | --- | --- | --- |
//! | `optimizer` | stays, handed out inside `Optimizer.step` or under `torch/optim` | high |
//! | `gradients` | freed inside `Optimizer.zero_grad`, or there from one iteration into the next | high, medium |
//! | `workspace` | stays, of a size that cuBLAS takes, from no line of the program | medium |
//! | `parameters` | stays, from before the first iteration | medium; high under `Module.to` and the like |
//! | `cache` | stays or leaks, from a later iteration | low |
//! | `temporary` | gone within a fiftieth of an iteration | medium |
//! | `activations` | everything else that an iteration frees | medium |
//!
//! Where there are no iterations, what comes before the first call of a module, or the first free, is the model; the rest is
//! what it works with.

use std::ops::Range;

use serde::Serialize;
use tonnage_events::{StackId, Stacks};
use tonnage_snapshot::Stage;

use super::circumstances::work_begins;
use super::growth::Grown;
use super::recorded_purposes::Recorded;
use super::retention::Retention;
use crate::device_view::DeviceView;
use crate::lifetimes::{Lifetime, Moment};

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Weights.
    Parameters,
    /// Their gradients.
    Gradients,
    /// What the optimizer keeps of them.
    Optimizer,
    /// Kept for the way back.
    Activations,
    /// Gone again at once.
    Temporary,
    /// Scratch memory of a library.
    Workspace,
    /// Kept for later iterations.
    Cache,
    /// Nothing tells.
    Unknown,
}

impl Purpose {
    /// Every one.
    pub const ALL: [Self; 8] = [
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Temporary,
        Self::Workspace,
        Self::Cache,
        Self::Unknown,
    ];

    /// The one of this name; none for a word that is no purpose.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Temporary => "temporary",
            Self::Workspace => "workspace",
            Self::Cache => "cache",
            Self::Unknown => "unknown",
        }
    }
}

/// How sure a conclusion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// One of several readings.
    Low,
    /// Likely.
    Medium,
    /// Something in the file says so.
    High,
    /// No conclusion: the recorded program said so.
    Recorded,
}

impl Confidence {
    /// Every one, from the least sure on.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Recorded];

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Recorded => "recorded",
        }
    }

    /// The same in a text that does not say what it is about.
    #[must_use]
    pub fn in_words(self) -> String {
        match self {
            Self::Recorded => "recorded by the program".to_owned(),
            concluded => format!("confidence: {}", concluded.name()),
        }
    }
}

/// What cuBLAS takes by default: two buffers of 4 MiB and eight of 16 KiB, as PyTorch asks for them, and
/// 32 MiB on Hopper.
pub(super) const WORKSPACES: [u64; 3] = [8_519_680, 33_554_432, 4_194_304 + 131_072];

/// Tells purposes.
pub(super) struct Purposes<'a> {
    stacks: &'a Stacks,
    grown: &'a Grown,
    recorded: Recorded,
    /// Entries inside scopes of these kinds, as ranges.
    steps: Vec<(usize, usize)>,
    zero_grads: Vec<(usize, usize)>,
    /// Entries of a usual iteration.
    usual: usize,
    /// Where a model begins to work, if there are no iterations.
    work_begins: usize,
}

impl<'a> Purposes<'a> {
    pub(super) fn new(device: &DeviceView<'a>, grown: &'a Grown) -> Self {
        let usual = grown.iterations.as_ref().map_or(0, |loops| {
            let mut lengths: Vec<_> = loops.ranges.iter().map(std::ops::Range::len).collect();
            lengths.sort_unstable();
            lengths[lengths.len() / 2]
        });
        Self {
            stacks: &device.file.stacks,
            grown,
            recorded: Recorded::of(device),
            steps: scopes(device, "Optimizer.step"),
            zero_grads: scopes(device, "Optimizer.zero_grad"),
            usual,
            work_begins: work_begins(device),
        }
    }

    /// What an allocation is for; where that changes, at its end.
    pub(super) fn of(&self, row: usize, it: &Lifetime) -> (Purpose, Confidence) {
        self.at(row, it, Moment::After)
    }

    /// What it is for once what happens at this moment has happened.
    pub(super) fn at(&self, row: usize, it: &Lifetime, moment: Moment) -> (Purpose, Confidence) {
        match self.recorded.at(it, moment) {
            Some(purpose) => (purpose, Confidence::Recorded),
            None => self.concluded(row, it),
        }
    }

    fn concluded(&self, row: usize, it: &Lifetime) -> (Purpose, Confidence) {
        use Confidence::{High, Low, Medium};
        let Some(loops) = &self.grown.iterations else { return self.of_one_pass(it) };
        let retention = self.grown.retentions[row];
        let inside = |scopes: &[(usize, usize)], moment: Moment| {
            let Moment::Event(event) = moment else { return false };
            let place = scopes.partition_point(|&(start, _)| start <= event);
            place.checked_sub(1).is_some_and(|place| event < scopes[place].1)
        };
        let in_step = inside(&self.steps, it.allocated);
        if retention != Retention::Passes && (in_step || self.has_file(it.stack, "/torch/optim/")) {
            return (Purpose::Optimizer, High);
        }
        if inside(&self.zero_grads, it.free_requested) {
            return (Purpose::Gradients, High);
        }
        let first = loops.ranges[0].clone();
        let early = match it.allocated {
            Moment::Before => true,
            Moment::Event(event) => event < first.start,
            Moment::After => false,
        };
        match retention {
            Retention::Stays if WORKSPACES.contains(&it.requested) && !early => {
                (Purpose::Workspace, Medium)
            }
            Retention::Stays if self.has_file(it.stack, "/torch/nn/modules/module.py") => {
                (Purpose::Parameters, High)
            }
            Retention::Stays if early => (Purpose::Parameters, Medium),
            Retention::Stays if it.allocated.event().is_some_and(|event| event < first.end) => {
                let sure = if loops.includes_setup { Medium } else { Low };
                (Purpose::Parameters, sure)
            }
            Retention::Stays | Retention::Leaks => (Purpose::Cache, Low),
            Retention::Passes => {
                let (Moment::Event(from), Moment::Event(to)) = (it.allocated, it.free_requested)
                else {
                    return (Purpose::Unknown, Low);
                };
                let crosses =
                    loops.of(from).zip(loops.of(to)).is_some_and(|(made, freed)| made < freed);
                if in_step || (to - from) * 50 < self.usual {
                    (Purpose::Temporary, Medium)
                } else if crosses && !self.zero_grads.is_empty() {
                    (Purpose::Gradients, Medium)
                } else {
                    (Purpose::Activations, Medium)
                }
            }
        }
    }

    /// The same where there are no iterations: what comes before the model works is the model.
    fn of_one_pass(&self, it: &Lifetime) -> (Purpose, Confidence) {
        use Confidence::{High, Low, Medium};
        let Some(event) = it.allocated.event() else { return (Purpose::Unknown, Low) };
        let freed = it.free_requested.event();
        let scope = self.step_around(event);
        if let Some(scope) = &scope {
            let passes = freed.is_some_and(|freed| scope.contains(&freed));
            return if passes { (Purpose::Temporary, Medium) } else { (Purpose::Optimizer, High) };
        }
        if self.has_file(it.stack, "/torch/optim/") && freed.is_none() {
            return (Purpose::Optimizer, High);
        }
        if event < self.work_begins {
            let built = self.has_file(it.stack, "/torch/nn/modules/module.py");
            return (Purpose::Parameters, if built { High } else { Low });
        }
        match freed {
            // Gone before the next is asked for.
            Some(freed) if freed - event <= 2 => (Purpose::Temporary, Low),
            _ => (Purpose::Activations, Low),
        }
    }

    /// The scope of the optimizer's step that an entry is in.
    pub(super) fn step_around(&self, event: usize) -> Option<Range<usize>> {
        let place = self.steps.partition_point(|&(start, _)| start <= event);
        let (start, end) = *self.steps.get(place.checked_sub(1)?)?;
        (event < end).then_some(start..end)
    }

    /// The last scope before an entry in which gradients were to be set to zero or let go.
    pub(super) fn zero_grad_before(&self, event: usize) -> Option<Range<usize>> {
        let place = self.zero_grads.partition_point(|&(_, end)| end <= event);
        let (start, end) = *self.zero_grads.get(place.checked_sub(1)?)?;
        Some(start..end)
    }

    pub(super) fn has_file(&self, stack: Option<StackId>, part: &str) -> bool {
        let frames = stack.map_or(&[][..], |stack| self.stacks.frames(stack));
        frames.iter().any(|frame| frame.filename.contains(part))
    }
}

/// Scopes of this name, as entries from and to, by where they begin.
fn scopes(device: &DeviceView<'_>, prefix: &str) -> Vec<(usize, usize)> {
    let at = |time: u64| device.entries.partition_point(|entry| entry.time_us < time);
    let mut open = None;
    let mut found = Vec::new();
    for mark in &device.file.annotations {
        if mark.device != device.device || mark.time_us == 0 || !mark.name.starts_with(prefix) {
            continue;
        }
        match mark.stage {
            Stage::Start => open = Some(mark.time_us),
            Stage::End => {
                found.extend(open.take().map(|from| (at(from), at(mark.time_us.saturating_add(1)))))
            }
            Stage::Other(_) => {}
        }
    }
    // A step that failed may have no end.
    found.extend(open.map(|from| (at(from), device.entries.len())));
    found.sort_unstable();
    found
}
