//! What PyTorch's history of a script tells: where the peak was, and what other addresses would have made of it.

use std::path::Path;

use tonnage_analysis::{CallSites, Levels, Lifetimes, devices};
use tonnage_device::{Arenas, FirstFit, Placement};
use tonnage_events::Frame;
use tonnage_replay::job::Job;
use tonnage_replay::recording::{RecordingOptions, recorded_config};
use tonnage_replay::what_if::WhatIf;
use tonnage_snapshot::SnapshotFile;

use crate::Error;

/// What a script was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Python was running: the forward, or anything else.
    Forward,
    /// No Python was: PyTorch's own threads, on the way back.
    Backward,
    /// The step of an optimizer.
    Optimizer,
}

impl Phase {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }

    fn of(frames: &[Frame]) -> Self {
        let in_optimizer =
            |frame: &Frame| frame.filename.contains("/optim/") && &*frame.name == "step";
        match frames {
            [] => Self::Backward,
            _ if frames.iter().any(in_optimizer) => Self::Optimizer,
            _ => Self::Forward,
        }
    }
}

/// The moment at which most was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakAt {
    /// What the script was doing.
    pub phase: Phase,
    /// The line that asked: `train.py:12 main`. Nothing where no Python was running.
    pub line: Option<String>,
}

/// Least and most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Least.
    pub low: u64,
    /// Most.
    pub high: u64,
}

impl Range {
    /// Of one figure.
    #[must_use]
    pub fn exactly(bytes: u64) -> Self {
        Self { low: bytes, high: bytes }
    }

    fn with(self, bytes: u64) -> Self {
        Self { low: self.low.min(bytes), high: self.high.max(bytes) }
    }
}

/// What other orders of addresses give, beside what the run gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) allocated: Range,
    pub(crate) reserved: Range,
}

/// A script's history.
pub(crate) struct History(SnapshotFile);

impl History {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        tonnage_snapshot::open(path).map(Self).map_err(|error| Error::Snapshot(error.to_string()))
    }

    /// Where most was allocated; nothing if nothing was.
    pub(crate) fn peak(&self) -> Option<PeakAt> {
        let views = devices(&self.0);
        let view = views.first()?;
        let peak = Levels::of(view, &Lifetimes::of(view)).peak(|level| level.allocated)?;
        let entry = view.entries.get(peak.moment.event()?)?;
        let frames = entry.stack.map_or(&[][..], |stack| self.0.stacks.frames(stack));
        let line = CallSites::new(&self.0.stacks).get(entry.stack);
        Some(PeakAt { phase: Phase::of(frames), line: line.map(|line| line.to_string()) })
    }

    /// Peaks under several orders of addresses. The real order depends on what else a process maps, so that any of them
    /// may come; one figure holds only where all agree.
    pub(crate) fn orders(&self, allocated: u64, reserved: u64, total: u64) -> Orders {
        let mut orders =
            Orders { allocated: Range::exactly(allocated), reserved: Range::exactly(reserved) };
        let options = RecordingOptions { total: Some(total), ..RecordingOptions::default() };
        let Ok((_, job)) = Job::read(&self.0, &options) else { return orders };
        for placement in
            [Placement::Arenas(Arenas::default()), Placement::FirstFit(FirstFit::default())]
        {
            let what_if = WhatIf { placement, ..WhatIf::new(recorded_config(&self.0)) };
            if what_if.refusal().is_some() {
                continue;
            }
            let prediction = what_if.predict(&job);
            orders.allocated = orders.allocated.with(prediction.stats.max_memory_allocated());
            orders.reserved = orders.reserved.with(prediction.stats.max_memory_reserved());
        }
        orders
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn recording(name: &str) -> History {
        let path =
            format!("{}/../../testdata/traces/{name}.pickle.zst", env!("CARGO_MANIFEST_DIR"));
        History::open(path.as_ref()).unwrap()
    }

    /// One run gave 161,480,704 bytes reserved; by the order of addresses of an H200 it is less, as was measured there.
    #[test]
    fn a_range_holds_what_other_orders_give() {
        const TOTAL: u64 = 150_109_880_320;
        let orders = recording("deepnet_plain.default").orders(152_994_816, 161_480_704, TOTAL);
        assert_eq!(orders.allocated, Range::exactly(152_994_816));
        assert_eq!(orders.reserved, Range { low: 157_286_400, high: 161_480_704 });
        let orders = recording("mlp_seed.default").orders(195_529_216, 218_103_808, TOTAL);
        assert_eq!(orders.reserved, Range::exactly(218_103_808));
    }

    #[test]
    fn phases_are_told_by_frames() {
        let frame = |filename: &str, name: &str| Frame {
            name: Arc::from(name),
            filename: Arc::from(filename),
            line: 1,
        };
        let main = frame("train.py", "<module>");
        assert_eq!(Phase::of(&[]), Phase::Backward);
        assert_eq!(Phase::of(std::slice::from_ref(&main)), Phase::Forward);
        assert_eq!(
            Phase::of(&[frame("torch/optim/adam.py", "step"), main.clone()]),
            Phase::Optimizer
        );
        assert_eq!(Phase::of(&[frame("torch/optim/adam.py", "zero_grad"), main]), Phase::Forward);
    }
}
